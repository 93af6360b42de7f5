"""Forms of the operators that people differentiate twice, as functions of what moves in them."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn


def drawn(*shape, seed=0):
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def recurrent(kind, **keywords):
    """A layer as a function of its input and its weights."""
    torch.manual_seed(0)
    layer = getattr(nn, kind)(3, 4, **keywords).double()
    names = [name for name, _ in layer.named_parameters()]
    values = tuple(parameter.detach() for parameter in layer.parameters())

    def run(x, *weights):
        return torch.func.functional_call(layer, dict(zip(names, weights, strict=True)), (x,))[0]

    return run, (drawn(5, 2, 3), *values)


def cell(kind):
    torch.manual_seed(0)
    layer = getattr(nn, kind)(3, 4).double()

    def run(x, hidden, weight):
        state = (hidden, hidden * 2) if kind == "LSTMCell" else hidden
        return torch.func.functional_call(layer, {"weight_ih": weight}, (x, state))

    return run, (drawn(2, 3), drawn(2, 4), drawn(*layer.weight_ih.shape))


INDICES, STARTS = torch.tensor([0, 2, 2, 1, 3, 0]), torch.tensor([0, 2, 5])
CLASSES = torch.tensor([0, 2, 1])
PICTURES = {1: (2, 3, 8), 2: (2, 3, 6, 6), 3: (1, 2, 4, 4, 4)}


def unpooled(x, dims):
    pooled, indices = getattr(F, f"max_pool{dims}d")(x, 2, return_indices=True)
    return getattr(F, f"max_unpool{dims}d")(pooled, indices, 2)


def pools():
    for dims, shape in PICTURES.items():
        pool = getattr(F, f"max_pool{dims}d")
        x = (drawn(*shape),)
        yield f"max_pool{dims}d", (partial(pool, kernel_size=2), x)
        padded = partial(pool, kernel_size=3, stride=2, padding=1, ceil_mode=True)
        yield f"max_pool{dims}d_padded", (padded, x)
        yield f"max_unpool{dims}d", (partial(unpooled, dims=dims), x)
        adaptive = getattr(F, f"adaptive_max_pool{dims}d")
        yield f"adaptive_max_pool{dims}d", (partial(adaptive, output_size=2), x)
        average = getattr(F, f"avg_pool{dims}d")
        yield f"avg_pool{dims}d", (partial(average, kernel_size=2), x)


def fractional(x, dims):
    samples = torch.full((*x.shape[:2], dims), 0.4, dtype=x.dtype)
    pool = getattr(F, f"fractional_max_pool{dims}d")
    return pool(x, 2, output_size=2, _random_samples=samples)


def sampled(picture, grid, **keywords):
    return F.grid_sample(picture, grid * 0.8, align_corners=True, **keywords)


def losses():
    x = drawn(3, 4)
    for reduction in ("mean", "sum", "none"):
        weight = torch.arange(1.0, 5.0, dtype=torch.float64)
        yield (
            f"cross_entropy_{reduction}",
            (
                partial(F.cross_entropy, target=CLASSES, reduction=reduction),
                (x,),
            ),
        )
        yield (
            f"nll_loss_{reduction}",
            (
                partial(F.nll_loss, target=CLASSES, weight=weight, reduction=reduction),
                (x,),
            ),
        )
    smooth = partial(F.cross_entropy, target=CLASSES, label_smoothing=0.2, ignore_index=2)
    yield "cross_entropy_smooth", (smooth, (x,))
    yield (
        "cross_entropy_of_weights",
        (
            lambda x, p: F.cross_entropy(x, p.softmax(-1)),
            (x, drawn(3, 4, seed=1)),
        ),
    )
    pictures = partial(F.cross_entropy, target=torch.zeros(2, 3, 3, dtype=torch.int64))
    yield "cross_entropy_of_pictures", (pictures, (drawn(2, 4, 3, 3),))


def bags():
    for mode in ("sum", "mean", "max"):
        bag = partial(_bag, offsets=STARTS, mode=mode)
        yield f"embedding_bag_{mode}", (bag, (drawn(4, 3),))
    empty = partial(_bag, offsets=torch.tensor([0, 2, 2, 5]), mode="mean")
    yield "embedding_bag_with_an_empty_one", (empty, (drawn(4, 3),))
    last = partial(_bag, offsets=torch.tensor([0, 2, 5, 6]), mode="mean", include_last_offset=True)
    yield "embedding_bag_to_the_last", (last, (drawn(4, 3),))
    yield (
        "embedding_bag_weighted",
        (
            lambda table, weights: _bag(
                table, offsets=STARTS, mode="sum", per_sample_weights=weights
            ),
            (drawn(4, 3), drawn(6)),
        ),
    )


def _bag(table, **keywords):
    return F.embedding_bag(INDICES, table, **keywords)


FORMS = {
    **{kind: recurrent(kind) for kind in ("RNN", "LSTM", "GRU")},
    **{
        f"{kind}_of_two_layers": recurrent(kind, num_layers=2, bidirectional=True, batch_first=True)
        for kind in ("RNN", "LSTM", "GRU")
    },
    "LSTM_with_projections": recurrent("LSTM", proj_size=2),
    "RNN_of_relu": recurrent("RNN", nonlinearity="relu"),
    **{kind: cell(kind) for kind in ("RNNCell", "LSTMCell", "GRUCell")},
    "weight_norm": (lambda v, g: torch._weight_norm(v, g, 0), (drawn(4, 3, 2), drawn(4, 1, 1))),
    "weight_norm_last": (lambda v, g: torch._weight_norm(v, g, 1), (drawn(4, 3), drawn(1, 3))),
    "weight_norm_between": (
        lambda v, g: torch._weight_norm(v, g, 1),
        (drawn(4, 3, 2), drawn(1, 3, 1)),
    ),
    **dict(pools()),
    "fractional_max_pool2d": (partial(fractional, dims=2), (drawn(2, 3, 6, 6),)),
    "fractional_max_pool3d": (partial(fractional, dims=3), (drawn(1, 2, 4, 4, 4),)),
    "unfold": (partial(F.unfold, kernel_size=2, padding=1), (drawn(2, 3, 4, 4),)),
    "fold": (partial(F.fold, output_size=(4, 4), kernel_size=2), (drawn(2, 12, 9),)),
    "unfolded_view": (lambda x: x.unfold(1, 3, 2), (drawn(2, 7),)),
    **dict(bags()),
    "embedding": (lambda table: F.embedding(INDICES, table), (drawn(4, 3),)),
    **dict(losses()),
    **{
        f"grid_sample_{mode}_{padding}": (
            partial(sampled, mode=mode, padding_mode=padding),
            (drawn(1, 2, 4, 4), drawn(1, 3, 3, 2)),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for padding in ("zeros", "border", "reflection")
    },
    "grid_sample_of_a_volume": (sampled, (drawn(1, 1, 3, 3, 3), drawn(1, 2, 2, 2, 3).tanh())),
    "cdist": (torch.cdist, (drawn(3, 4), drawn(5, 4))),
    "cdist_of_many_rows": (torch.cdist, (drawn(27, 2), drawn(3, 2))),
    "scatter_reduce_prod": (
        lambda x, y: x.scatter_reduce(0, torch.tensor([0, 1, 1]), y, "prod"),
        (drawn(2), drawn(3)),
    ),
    "glu": (partial(F.glu, dim=0), (drawn(4, 3),)),
    "cosine_similarity": (F.cosine_similarity, (drawn(3, 4), drawn(3, 4, seed=2))),
    "conv_transpose2d": (
        lambda x, w: F.conv_transpose2d(x, w, stride=2, output_padding=1),
        (drawn(1, 2, 3, 3), drawn(2, 3, 3, 3)),
    ),
    "group_norm": (lambda x, w: F.group_norm(x, 2, w), (drawn(2, 4, 3), drawn(4))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (drawn(3, 4), drawn(4))),
    "prelu": (F.prelu, (drawn(2, 3), drawn(3))),
    "inverse": (torch.linalg.inv, (drawn(3, 3),)),
    "qr": (lambda x: torch.linalg.qr(x)[1], (drawn(4, 3),)),
    "singular_values": (torch.linalg.svdvals, (drawn(3, 4),)),
    "lu_solve": (
        lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a + 2 * torch.eye(3)), b),
        (drawn(3, 3), drawn(3, 2)),
    ),
    "ctc_loss": (
        lambda x: F.ctc_loss(
            x.log_softmax(-1),
            torch.tensor([[1, 2, 2], [3, 1, 0]]),
            torch.tensor([6, 5]),
            torch.tensor([3, 2]),
        ),
        (drawn(6, 2, 4),),
    ),
}
