"""The table of what ops are given and don't read, and forward mode over reverse that needs it."""

import pytest
import torch
import torch.nn.functional as F

import funcaot
from funcaot.aot.segment.unread import UNREAD

aten = torch.ops.aten


def drawn(*shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


CLASSES, PICTURE_CLASSES = torch.tensor([0, 2, 1]), torch.zeros(1, 2, 3, dtype=torch.int64)
ONE, POOL2, POOL3 = torch.tensor(1.0, dtype=torch.float64), [2, 2], [2, 2, 2]


def pooled(op, x, *rest):
    """A gradient's picture, and which element of each window was the greatest."""
    output, indices = op(x, *rest)
    return drawn(*output.shape), x, indices


_2D, _3D = drawn(2, 3, 4, 4), drawn(2, 3, 4, 4, 4)
# Arguments with which each op of the table is called.
CALLS = {
    aten.zeros_like: (_2D,),
    aten.ones_like: (_2D,),
    aten.full_like: (_2D, 2.0),
    aten.adaptive_max_pool2d_backward: pooled(aten.adaptive_max_pool2d, _2D, POOL2),
    aten.adaptive_max_pool3d_backward: pooled(aten.adaptive_max_pool3d, _3D, POOL3),
    aten._adaptive_avg_pool2d_backward: (drawn(2, 3, 2, 2), _2D),
    aten._adaptive_avg_pool3d_backward: (drawn(2, 3, 2, 2, 2), _3D),
    aten.avg_pool2d_backward: (drawn(2, 3, 2, 2), _2D, POOL2, POOL2, [0, 0], False, True, None),
    aten.avg_pool3d_backward: (
        (drawn(2, 3, 2, 2, 2), _3D, POOL3, POOL3, [0, 0, 0], False, True, None)
    ),
    aten.fractional_max_pool2d_backward: (lambda g, x, i: (g, x, POOL2, POOL2, i))(
        *pooled(aten.fractional_max_pool2d, _2D, POOL2, POOL2, torch.rand(2, 3, 2).double())
    ),
    aten.fractional_max_pool3d_backward: (lambda g, x, i: (g, x, POOL3, POOL3, i))(
        *pooled(aten.fractional_max_pool3d, _3D, POOL3, POOL3, torch.rand(2, 3, 3).double())
    ),
    aten.max_pool2d_with_indices_backward: (
        lambda g, x, i: (g, x, POOL2, POOL2, [0, 0], [1, 1], False, i)
    )(*pooled(aten.max_pool2d_with_indices, _2D, POOL2, POOL2)),
    aten.max_pool3d_with_indices_backward: (
        lambda g, x, i: (g, x, POOL3, POOL3, [0] * 3, [1] * 3, False, i)
    )(*pooled(aten.max_pool3d_with_indices, _3D, POOL3, POOL3)),
    aten.nll_loss_backward: (ONE, drawn(3, 4), CLASSES, None, 1, -100, 3 * ONE),
    aten.nll_loss2d_backward: (ONE, drawn(1, 4, 2, 3), PICTURE_CLASSES, None, 1, -100, 6 * ONE),
    aten.reflection_pad1d_backward: (drawn(2, 3, 6), drawn(2, 3, 4), [1, 1]),
    aten.reflection_pad2d_backward: (drawn(2, 3, 6, 6), _2D, [1] * 4),
    aten.reflection_pad3d_backward: (drawn(2, 3, 6, 6, 6), _3D, [1] * 6),
    aten.replication_pad1d_backward: (drawn(2, 3, 6), drawn(2, 3, 4), [1, 1]),
    aten.replication_pad2d_backward: (drawn(2, 3, 6, 6), _2D, [1] * 4),
    aten.replication_pad3d_backward: (drawn(2, 3, 6, 6, 6), _3D, [1] * 6),
    aten.grid_sampler_2d_backward: (
        (drawn(2, 3, 5, 5), _2D, drawn(2, 5, 5, 2).tanh(), 0, 0, False, [True, True])
    ),
    aten.grid_sampler_3d_backward: (
        (drawn(2, 3, 5, 5, 5), _3D, drawn(2, 5, 5, 5, 3).tanh(), 0, 0, False, [True, True])
    ),
    aten.convolution_backward: (
        *(drawn(2, 5, 3, 3), _2D, drawn(5, 3, 2, 2), [5], [1, 1], [0, 0], [1, 1]),
        *(False, [0, 0], 1, [True, True, True]),
    ),
    aten.nll_loss_forward: (drawn(3, 4), CLASSES, None, 1, -100),
    aten.nll_loss2d_forward: (drawn(1, 4, 2, 3), PICTURE_CLASSES, None, 1, -100),
}


@pytest.mark.parametrize("packet", [p for p in UNREAD if p is not aten.empty_like], ids=str)
def test_nothing_depends_on_what_is_unread(packet):
    args = CALLS[packet]
    listed = _as_list(packet(*args))
    for result, positions in UNREAD[packet].items():
        spoiled = [
            torch.full_like(value, float("nan")) if place in positions else value
            for place, value in enumerate(args)
        ]
        again = _as_list(packet(*spoiled))
        for place, (one, other) in enumerate(zip(again, listed, strict=True)):
            if result in (None, place):
                assert torch.equal(one, other)


def _as_list(results):
    return list(results) if isinstance(results, tuple) else [results]


def loss(function):
    return lambda x: (function(x).sin() * 1.3).sum()


FUNCTIONS = {
    "cross_entropy": (lambda x: F.cross_entropy(x, CLASSES, label_smoothing=0.1), (3, 4)),
    "nll_loss": (lambda x: F.nll_loss(x, CLASSES, reduction="none"), (3, 4)),
    "cross_entropy_2d": (lambda x: F.cross_entropy(x, PICTURE_CLASSES), (1, 4, 2, 3)),
    "avg_pool": (lambda x: F.avg_pool2d(x, 2), (2, 3, 4, 4)),
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (3, 3)), (2, 3, 4, 4)),
    "max_pool": (lambda x: F.max_pool2d(x, 2), (2, 3, 4, 4)),
    "adaptive_max": (lambda x: F.adaptive_max_pool2d(x, 2), (2, 3, 4, 4)),
    "reflection": (lambda x: F.pad(x, (1, 1), mode="reflect"), (2, 3, 4)),
    "replication": (lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"), (2, 3, 4, 4)),
    "grid_sample": (
        lambda x: F.grid_sample(x, torch.linspace(-0.9, 0.8, 18).reshape(1, 3, 3, 2).double()),
        (1, 3, 4, 4),
    ),
    "ctc_loss": (
        lambda x: F.ctc_loss(
            x.log_softmax(-1),
            torch.tensor([[1, 2, 2], [3, 1, 0]]),
            torch.tensor([6, 5]),
            torch.tensor([3, 2]),
        ),
        (6, 2, 4),
    ),
}
SECOND = {
    "product": lambda f, x: torch.func.jvp(torch.func.grad(loss(f)), (x,), (x.cos(),))[1],
    "of_batch": lambda f, x: torch.func.vmap(
        lambda t: torch.func.jvp(torch.func.grad(loss(f)), (x,), (t,))[1]
    )(torch.stack([x.cos(), x])),
    "differentiated": lambda f, x: torch.func.grad(
        lambda x: torch.func.jvp(torch.func.grad(loss(f)), (x,), (x.detach().cos(),))[1].sin().sum()
    )(x),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.filterwarnings("ignore:Default grid_sample")
@pytest.mark.parametrize("backend", [
    "eager", pytest.param("inductor", marks=[pytest.mark.slow, pytest.mark.long])
])  # fmt: skip
@pytest.mark.parametrize("asked", SECOND)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_over_reverse(name, asked, backend):
    function, shape = FUNCTIONS[name]
    compiled = funcaot.compile(function, backend=backend)
    for x in (drawn(*shape), drawn(*shape).flip(-1)):
        with funcaot.install():
            wanted = SECOND[asked](function, x)
        torch.testing.assert_close(SECOND[asked](compiled, x), wanted)
