"""Arguments that are rarely given, in pairs of ops: a compiler's patterns may overlook them."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot

# torch says both once in a process.
pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce"),
    pytest.mark.filterwarnings("ignore:torch.searchsorted"),
]

SIZE = 4

# Each gives a tensor of (SIZE, SIZE) from two of that shape.
PRODUCERS = {
    "itself": lambda x, y: x,
    "mm": lambda x, y: x @ y,
    "mm of a transposed": lambda x, y: x.t() @ y,
    "addmm": lambda x, y: torch.addmm(x, x, y, beta=0.5, alpha=2),
    "linear": lambda x, y: F.linear(x, y, y[0]),
    "bmm of one": lambda x, y: torch.bmm(x[None], y[None])[0],
    "baddbmm": lambda x, y: torch.baddbmm(x[None], x[None], y[None], beta=2, alpha=0.5)[0],
    "mv": lambda x, y: (x @ y[0]).expand(SIZE, SIZE),
    "convolution": lambda x, y: F.conv1d(x, y[:, None], groups=SIZE, padding=2)[:, :SIZE],
    "softmax": lambda x, y: x.softmax(-1),
    "sum": lambda x, y: x.sum(0, keepdim=True).expand(SIZE, SIZE),
    "mean of all": lambda x, y: x.mean().expand(SIZE, SIZE),
    "cat": lambda x, y: torch.cat([x[:2], y[2:]]),
    "cat of a slice": lambda x, y: torch.cat([x, x[:, :2]], 1)[:, :SIZE],
    "split": lambda x, y: torch.cat([x, y]).split([SIZE, SIZE])[1],
    "scaled": lambda x, y: x * 2,
    "divided": lambda x, y: x / 3,
    "divided down": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "full": lambda x, y: torch.full_like(x, 2.5),
    "ones": lambda x, y: torch.ones(SIZE, SIZE) + 0 * y,
    "exp": lambda x, y: x.exp(),
    "permuted": lambda x, y: x.permute(1, 0),
    "in double and back": lambda x, y: x.double().float(),
    "in half and back": lambda x, y: x.half().float(),
    "scattered": lambda x, y: torch.zeros(SIZE, SIZE).scatter(0, (y > 0).long(), 1.5) + x,
    "clamped": lambda x, y: x.clamp(min=-0.5),
    "where": lambda x, y: torch.where(x > 0, x, y),
}

CONSUMERS = {
    "add, alpha": lambda h, z: torch.add(h, z, alpha=0.5),
    "added to, alpha": lambda h, z: torch.add(z, h, alpha=0.5),
    "add a row, alpha": lambda h, z: torch.add(h, z[0], alpha=3),
    "sub, alpha": lambda h, z: torch.sub(h, z, alpha=0.5),
    "subtracted from, alpha": lambda h, z: torch.sub(z, h, alpha=0.5),
    "rsub, alpha": lambda h, z: torch.rsub(h, z, alpha=0.5),
    "add in place, alpha": lambda h, z: h.clone().add_(z, alpha=-1),
    "add another product, alpha": lambda h, z: torch.add(h, z @ z, alpha=0.5),
    "divided, rounded down": lambda h, z: torch.div(h, z, rounding_mode="floor"),
    "divided, truncated": lambda h, z: torch.div(h, 0.3, rounding_mode="trunc").softmax(-1),
    "addmm": lambda h, z: torch.addmm(h, z, z, beta=0.5, alpha=2),
    "addmm of it": lambda h, z: torch.addmm(z, h, z, beta=0),
    "addmv": lambda h, z: torch.addmv(h[0], z, z[0], beta=0.5, alpha=2),
    "addr": lambda h, z: torch.addr(h, z[0], z[1], beta=0.5, alpha=2),
    "baddbmm": lambda h, z: torch.baddbmm(h[None], z[None], h[None], beta=0.5, alpha=2),
    "addbmm": lambda h, z: torch.addbmm(h, z[None], z[None], beta=0.5, alpha=2),
    "sspaddmm's kin": lambda h, z: torch.addcmul(h, z, z, value=0.5),
    "addcdiv": lambda h, z: torch.addcdiv(h, z, z + 3, value=0.5),
    "softmax in double": lambda h, z: h.softmax(-1, dtype=torch.float64),
    "log_softmax of a quotient": lambda h, z: torch.div(h, 0.7).log_softmax(0),
    "softmax of a scaled": lambda h, z: (h * z[:, :1]).softmax(-1),
    "sum in double": lambda h, z: h.sum(1, dtype=torch.float64),
    "sum, kept": lambda h, z: h.sum((0, 1), keepdim=True),
    "mean in double": lambda h, z: h.mean(dtype=torch.float64),
    "cumsum in double": lambda h, z: h.cumsum(0, dtype=torch.float64),
    "cumprod in double": lambda h, z: h.cumprod(1, dtype=torch.float64),
    "variance": lambda h, z: h.var(1, correction=0),
    "standard deviation": lambda h, z: torch.std_mean(h, 0, correction=2, keepdim=True),
    "norm": lambda h, z: torch.linalg.vector_norm(h, 3, dim=1, dtype=torch.float64),
    "gelu by tanh": lambda h, z: F.gelu(h, approximate="tanh"),
    "leaky": lambda h, z: F.leaky_relu(h, 0.3),
    "elu": lambda h, z: F.elu(h, 2.0),
    "softplus": lambda h, z: F.softplus(h, beta=3, threshold=1),
    "hardtanh": lambda h, z: F.hardtanh(h, -0.25, 0.5),
    "rounded": lambda h, z: h.round(decimals=1),
    "clamped below": lambda h, z: h.clamp(max=0.25),
    "clamped above": lambda h, z: h.clamp(max=0.5).clamp(min=-0.5),
    "scatter added": lambda h, z: h.index_add(0, torch.tensor([2, 0, 1, 3]), z, alpha=0.5),
    "reduced": lambda h, z: h.index_reduce(
        0, torch.tensor([2, 0, 1, 3]), z, "prod", include_self=False
    ),
    "scatter reduced": lambda h, z: h.scatter_reduce(
        0, (z > 0).long(), z, "amax", include_self=False
    ),
    "put": lambda h, z: h.index_put((torch.tensor([1, 1]),), z[:2], accumulate=True),
    "nan to num": lambda h, z: h.nan_to_num(nan=1.0, posinf=2.0),
    "mean squared": lambda h, z: F.mse_loss(h, z, reduction="none"),
    "smooth": lambda h, z: F.smooth_l1_loss(h, z, beta=0.3, reduction="sum"),
    "huber": lambda h, z: F.huber_loss(h, z, delta=0.3),
    "cross entropy": lambda h, z: F.cross_entropy(
        h,
        torch.tensor([1, 0, 3, 2]),
        weight=torch.arange(1.0, SIZE + 1),
        label_smoothing=0.2,
        ignore_index=3,
    ),
    "layer norm": lambda h, z: F.layer_norm(h, (SIZE,), z[0], None, 0.1),
    "sorted": lambda h, z: h.sort(stable=True, dim=0, descending=True).values,
    "largest": lambda h, z: h.topk(2, largest=False, sorted=True).values,
    "padded": lambda h, z: F.pad(h, (1, 0, 0, 2), value=0.5),
    "averaged": lambda h, z: F.avg_pool1d(h, 2, padding=1, ceil_mode=True, count_include_pad=False),
    "bucketized": lambda h, z: torch.bucketize(h, z[0].sort().values, right=True),
    "lerped": lambda h, z: torch.lerp(h, z, 0.75),
    "foreach": lambda h, z: torch._foreach_add([h], [z], alpha=0.5)[0],
    "multiplied by a product": lambda h, z: h * torch.mm(z, z),
    "cast and summed": lambda h, z: (h.double() + z).sum(dtype=torch.float32),
}

# A row is compiled at once; each pair has inputs of its own, so that no value has two users.
FEW = ("mm", "mm of a transposed", "bmm of one", "linear")


def compare(producer, names):
    make, uses = PRODUCERS[producer], [CONSUMERS[name] for name in names]

    def row(given):
        return [use(make(x, y), z) for use, (x, y, z) in zip(uses, given, strict=True)]

    given = [[torch.randn(SIZE, SIZE) for _ in range(3)] for _ in names]
    leaves = [tensor.requires_grad_() for three in given for tensor in three]
    compiled = funcaot.compile(row, backend="inductor")
    wrong = set()
    for _ in range(2):
        expected, actual = row(given), compiled(given)
        wrong |= different(names, expected, actual)
    gradients = []
    for results in (expected, actual):
        flat = [r for result in results for r in (result if type(result) is tuple else [result])]
        loss = sum(r.double().sin().sum() for r in flat if r.requires_grad)
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        gradients.append([found[i : i + 3] for i in range(0, len(found), 3)])
    assert not wrong, wrong
    wrong = different(names, *gradients)
    assert not wrong, f"gradients: {wrong}"


def different(names, expected, actual):
    found = set()
    for name, wanted, given in zip(names, expected, actual, strict=True):
        try:
            assert_close(given, wanted, rtol=1e-4, atol=1e-4)
        except AssertionError as error:
            found.add(f"{name}: {error}")
    return found


@pytest.mark.parametrize("producer", FEW)
def test_alpha_after_products(producer):
    compare(producer, [name for name in CONSUMERS if "alpha" in name])


@pytest.mark.slow
@pytest.mark.parametrize("producer", ["mm", "full"])
def test_some_pairs(producer):
    compare(producer, list(CONSUMERS))


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("producer", PRODUCERS)
def test_every_pair(producer):
    # By default what narrow floats lose is sometimes kept (docs/special-values.md).
    with funcaot.config.patch(exact_special_values=producer == "in half and back"):
        compare(producer, list(CONSUMERS))
