"""Calls of the ops in the table, as data: a function of tensors in double precision."""

from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F


@dataclass(frozen=True)
class Call:
    function: object
    shapes: tuple
    shift: float = 0.0
    positive: bool = False
    tolerance: float = 2e-6  # of the differences

    def primals(self):
        generator = torch.Generator().manual_seed(11)
        drawn = [torch.rand(s, generator=generator, dtype=torch.float64) for s in self.shapes]
        scale = 1.0 if self.positive else 2.0
        return [scale * x + self.shift - (0 if self.positive else 1) for x in drawn]


def ctc(log_probs, *, targets, lengths, reduction="none"):
    return F.ctc_loss(
        log_probs.log_softmax(-1),
        targets,
        torch.tensor([6, 5]),
        torch.tensor(lengths),
        reduction=reduction,
    )


def bag(weight, *, mode, weights=None, **keywords):
    indices = torch.tensor([0, 2, 2, 1, 3, 0])
    return F.embedding_bag(
        indices, weight, torch.tensor([0, 2, 5]), mode=mode, per_sample_weights=weights, **keywords
    )


def weighted_bag(weight, weights):
    return bag(weight, mode="sum", weights=weights, padding_idx=1)


def segments(data, *, reduce, **keywords):
    return torch.segment_reduce(data, reduce, **keywords, unsafe=True)


def heaviside(values):
    return torch.heaviside(torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64), values)


def grid(picture, places, *, mode="bilinear"):
    return F.grid_sample(picture, places * 0.8, mode=mode, align_corners=False)


def counted(x, weight, *, density, **keywords):
    """The counts, and the edges that the least and the largest element move."""
    hist, edges = torch.histogram(x, weight=weight.square(), density=density, **keywords)
    return torch.cat([hist, edges])


def counted_in_two(x, weight):
    hist, edges = torch.histogramdd(x, [2, 3], weight=weight.square(), density=True)
    return torch.cat([hist.reshape(-1), *edges])


def reflectors(x):
    packed, scales = torch.geqrf(x)
    return torch.cat([packed.reshape(-1), scales.reshape(-1)])


def chunked(x, layer, bias, *, reduction):
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=2, allow_retain_graph=True)
    return F.linear_cross_entropy(
        x,
        layer,
        torch.tensor([0, 2, 1, 2, 0]),
        linear_bias=bias,
        weight=torch.tensor([0.5, 1.0, 2.0], dtype=x.dtype),
        reduction=reduction,
        options=options,
    )


def matrix_of(x):
    """A matrix far from a singular one."""
    return x @ x.mT + 2 * torch.eye(x.shape[-1], dtype=x.dtype) + x.triu(1)


def symmetric_factors(x):
    """Of a matrix with blocks of two by two among its pivots."""
    return torch.linalg.ldl_factor(x - 0.9 * torch.diag_embed(x.diagonal())).LD


def symmetric_solution(x, right):
    far = torch.eye(4, dtype=x.dtype).flip(0) * 6  # from a singular one, with pivots of two
    factors, pivots = torch.linalg.ldl_factor(x + far)
    return torch.linalg.ldl_solve(factors, pivots, right)


def batch_norm(x, weight=None, bias=None, *, trains=True):
    mean = variance = None  # which vmap couldn't write to
    if not trains:
        mean, variance = torch.tensor([[0.1, -0.2, 0.3], [1.5, 0.7, 2.0]], dtype=x.dtype)
    return F.batch_norm(x, mean, variance, weight, bias, training=trains)


PLACES = torch.tensor([0, 2, 1, 2, 0])
EDGES = torch.tensor([-1.0, -0.2, 0.5, 0.9], dtype=torch.float64)
TARGETS = torch.tensor([[1, 2, 2], [3, 1, 0]])
LENGTHS = torch.tensor([2, 3])
special = torch.special

CALLS = {
    **{
        f"cdist_{p}": Call(
            partial(torch.cdist, p=p), ((3, 4), (5, 4)), tolerance=1e-3 if p == 1.5 else 2e-6
        )
        for p in (1.0, 1.5, 2.0, 3.0, float("inf"))
    },
    "cdist_batched": Call(partial(torch.cdist, p=3.0), ((2, 3, 2), (2, 2, 2))),
    **{
        f"pdist_{p}": Call(partial(F.pdist, p=p), ((4, 3),), tolerance=1e-3 if p == 1.5 else 2e-6)
        for p in (1.0, 1.5, 2.0, 3.0)
    },
    "hardsigmoid": Call(lambda x: F.hardsigmoid(x * 4), ((7,),)),
    "heaviside": Call(heaviside, ((3,),)),
    "zeta": Call(torch.special.zeta, ((5,), (5,)), shift=1.5, positive=True, tolerance=1e-4),
    "zeta_of_numbers": Call(
        lambda x: torch.special.zeta(x, 2.5) + torch.special.zeta(3.5, x), ((5,),), shift=2.5
    ),
    "igamma": Call(torch.special.gammainc, ((5,), (4, 1)), shift=0.6, positive=True),
    "igamma_of_much": Call(
        lambda a, x: torch.special.gammainc(3 + 9 * a, 6 * x), ((5,), (5,)), positive=True
    ),
    "igammac": Call(torch.special.gammaincc, ((5,), (4, 1)), shift=0.6, positive=True),
    "unique": Call(lambda x: torch.unique(x[PLACES]) * x.sum(), ((3,),)),
    "unique_of_rows": Call(
        lambda x: torch.unique(x[PLACES], dim=0, return_counts=True)[0].sin(), ((3, 2),)
    ),
    "unique_of_runs": Call(
        lambda x: torch.unique_consecutive(x[PLACES].repeat_interleave(2)), ((3,),)
    ),
    "unique_of_runs_of_columns": Call(
        lambda x: torch.unique_consecutive(x[:, PLACES.repeat_interleave(2)], dim=1), ((2, 3),)
    ),
    "chunk_cat": Call(lambda x, y: torch._chunk_cat([x, y], 0, 2), ((3, 2), (2, 2, 2))),
    "histogram": Call(partial(counted, bins=3, density=False), ((7,), (7,))),
    "histogram_density": Call(partial(counted, bins=3, density=True), ((7,), (7,))),
    "histogram_edges": Call(partial(counted, bins=EDGES, density=True), ((7,), (7,))),
    "histogramdd": Call(counted_in_two, ((7, 2), (7,))),
    "geqrf": Call(reflectors, ((4, 3),), tolerance=1e-5),
    "geqrf_wide": Call(reflectors, ((2, 3, 4),), tolerance=1e-5),
    "ctc": Call(partial(ctc, targets=TARGETS, lengths=[3, 2]), ((6, 2, 4),)),
    "ctc_mean": Call(partial(ctc, targets=TARGETS, lengths=[2, 1], reduction="mean"), ((6, 2, 4),)),
    "ctc_joined": Call(
        partial(ctc, targets=torch.tensor([1, 2, 2, 3, 1]), lengths=[3, 2]), ((6, 2, 4),)
    ),
    "multi_margin": Call(
        lambda x: F.multi_margin_loss(
            x, torch.tensor([0, 2, 1]), p=2, weight=torch.arange(1.0, 5.0, dtype=x.dtype)
        ),
        ((3, 4),),
    ),
    "multi_margin_none": Call(
        lambda x: F.multi_margin_loss(x, torch.tensor([0, 2, 1]), margin=0.5, reduction="none"),
        ((3, 4),),
    ),
    "multilabel_margin": Call(
        lambda x: F.multilabel_margin_loss(x, torch.tensor([[3, 0, -1, 1], [1, -1, 0, 0]])),
        ((2, 4),),
    ),
    "ormqr": Call(lambda a, tau, c: torch.ormqr(a, tau, c), ((4, 3), (3,), (4, 2))),
    "bag_mean": Call(partial(bag, mode="mean"), ((4, 3),)),
    "bag_max": Call(partial(bag, mode="max"), ((4, 3),)),
    "bag_weighted": Call(weighted_bag, ((4, 3), (6,))),
    **{
        f"chunked_cross_entropy_{reduction}": Call(
            partial(chunked, reduction=reduction), ((5, 2), (3, 2), (3,))
        )
        for reduction in (("mean", "sum", "none") if hasattr(F, "linear_cross_entropy") else ())
    },
    "soft_margin": Call(
        lambda x: F.soft_margin_loss(x, torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=x.dtype)),
        ((4,),),
    ),
    "huber": Call(lambda x, y: F.huber_loss(x * 2, y, delta=0.7, reduction="none"), ((5,), (5,))),
    "glu": Call(lambda x: F.glu(x, 0), ((4, 3),)),
    "det": Call(torch.linalg.det, ((2, 3, 3),), tolerance=1e-5),
    "slogdet": Call(lambda x: torch.linalg.slogdet(matrix_of(x))[1], ((3, 3),), tolerance=1e-5),
    "logdet": Call(lambda x: torch.logdet(matrix_of(x)), ((3, 3),), tolerance=1e-5),
    "solve": Call(
        lambda a, b: torch.linalg.solve(matrix_of(a), b), ((3, 3), (3, 2)), tolerance=1e-5
    ),
    "householder": Call(
        lambda a, tau: torch.linalg.householder_product(a, tau), ((4, 3), (3,)), tolerance=1e-5
    ),
    "ldl_factor": Call(symmetric_factors, ((4, 4),), tolerance=1e-4),
    "ldl_solve": Call(symmetric_solution, ((4, 4), (4, 2)), tolerance=1e-4),
    "cholesky_inverse": Call(lambda x: torch.cholesky_inverse(x.tril()), ((3, 3),), shift=2.0),
    "eigh": Call(lambda x: torch.linalg.eigh(x + x.mT)[1].square(), ((3, 3),), tolerance=1e-4),
    "layer_norm": Call(lambda x, w, b: F.layer_norm(x, (5,), w, b), ((2, 3, 5), (5,), (5,))),
    "layer_norm_plain": Call(lambda x: F.layer_norm(x, (3, 2), eps=0.1), ((4, 3, 2),)),
    "batch_norm": Call(batch_norm, ((4, 3, 2), (3,), (3,))),
    "batch_norm_plain": Call(batch_norm, ((5, 3),)),
    "batch_norm_evaluated": Call(partial(batch_norm, trains=False), ((4, 3, 2), (3,), (3,))),
    "instance_norm": Call(lambda x, w: F.instance_norm(x, weight=w), ((2, 3, 4), (3,))),
    "index_reduce": Call(
        lambda x, y: x.index_reduce(0, torch.tensor([0, 2, 0]), y, "mean"), ((3, 2), (3, 2))
    ),
    **{
        f"segment_{reduce}": Call(partial(segments, reduce=reduce, lengths=LENGTHS), ((5, 2),))
        for reduce in ("sum", "mean", "max", "min")
    },
    "segment_offsets": Call(
        partial(segments, reduce="mean", offsets=torch.tensor([0, 2, 5])), ((5, 2),)
    ),
    "grid_sampler_2d": Call(grid, ((1, 2, 4, 4), (1, 3, 3, 2))),
    "grid_sampler_3d": Call(grid, ((1, 1, 3, 3, 3), (1, 2, 2, 2, 3))),
    **{
        name: Call(getattr(special, name), ((5,),), shift=0.4)
        for name in (
            "bessel_j0",
            "bessel_j1",
            "modified_bessel_i0",
            "modified_bessel_i1",
            "spherical_bessel_j0",
        )
    },
    **{
        name: Call(getattr(special, name), ((5,),), shift=0.5, positive=True)
        for name in (
            "bessel_y0",
            "bessel_y1",
            "modified_bessel_k0",
            "modified_bessel_k1",
            "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1",
        )
    },
    **{
        name: Call(partial(lambda f, x: f(x, 4), getattr(special, name)), ((5,),))
        for name in (
            "chebyshev_polynomial_t",
            "chebyshev_polynomial_u",
            "chebyshev_polynomial_v",
            "chebyshev_polynomial_w",
            "hermite_polynomial_h",
            "hermite_polynomial_he",
            "laguerre_polynomial_l",
            "legendre_polynomial_p",
        )
    },
    **{
        name: Call(
            partial(lambda f, x: f(x, 4), getattr(special, name)),
            ((5,),),
            positive=True,
            tolerance=1e-4,
        )
        for name in (
            "shifted_chebyshev_polynomial_t",
            "shifted_chebyshev_polynomial_u",
            "shifted_chebyshev_polynomial_v",
            "shifted_chebyshev_polynomial_w",
        )
    },
}

# Torch can't call these for a batch: values decide a size, or there is no rule.
UNBATCHED = tuple(name for name in CALLS if name.startswith(("unique", "histogramdd")))
