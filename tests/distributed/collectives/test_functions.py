"""Users' Functions that call collectives, as layers of tensor parallelism and experts do."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import funcaot
from tests.distributed.ranks import Ranks
from tests.hostile import COMPILER


def _summed(x):
    y = x.contiguous().clone()
    dist.all_reduce(y)
    return y


def _part(x):
    return x.chunk(dist.get_world_size(), -1)[dist.get_rank()].contiguous()


def _gathered(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.contiguous())
    return torch.cat(parts, -1)


def _exchanged(x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x.contiguous())
    return out


def _pair(name, forward, backward):
    """A Function of one operand, whose backward calls the other direction."""
    members = {
        "forward": staticmethod(lambda ctx, x: forward(x)),
        "backward": staticmethod(lambda ctx, gradient: backward(gradient)),
    }
    return type(name, (torch.autograd.Function,), members)


Copy = _pair("Copy", lambda x: x.view_as(x), _summed)
Reduce = _pair("Reduce", _summed, lambda gradient: gradient)
Scatter = _pair("Scatter", _part, _gathered)
Gather = _pair("Gather", _gathered, _part)
Exchange = _pair("Exchange", _exchanged, _exchanged)


class ReduceInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def _layers(x, w):
    return Reduce.apply(torch.tanh(Copy.apply(x) @ w.t()) @ w)


FUNCTIONS = {
    "copy": lambda x, w: Copy.apply(x * w).sin(),
    "reduce": lambda x, w: Reduce.apply(x * w).sin(),
    "reduce in place": lambda x, w: ReduceInPlace.apply(x * w).sin(),
    "scatter": lambda x, w: Scatter.apply(torch.cat([x * w, x], 1)).sin(),
    "gather": lambda x, w: Gather.apply(x * w).sin(),
    "exchange": lambda x, w: Exchange.apply(x * w).sin(),
    "layers": _layers,
    "checkpointed layers": lambda x, w: checkpoint(_layers, x, w, use_reentrant=False),
}


def _derivatives(function, step, rows):
    made = torch.Generator().manual_seed(2 * step + dist.get_rank())
    x, w = (
        torch.randn(rows, 3, generator=made, dtype=torch.float64, requires_grad=True)
        for _ in range(2)
    )
    value = function(x, w)
    first = torch.autograd.grad(value.sin().sum(), (x, w), create_graph=True)
    return value, first, torch.autograd.grad(sum(each.pow(2).sum() for each in first), (x, w))


def _compare(name: str, backend) -> None:
    warnings.simplefilter("ignore")  # Torch's of the second derivatives of such Functions.
    function = FUNCTIONS[name]
    compiled = funcaot.compile(function, backend=backend)
    for step, rows in enumerate((4, 6, 2)):
        expected, found = _derivatives(function, step, rows), _derivatives(compiled, step, rows)
        torch.testing.assert_close(found, expected, msg=lambda text, step=step: f"{step}: {text}")
    assert 1 <= len(compiled.entries) <= 3


def _compare_on_hostile(name: str) -> None:
    _compare(name, COMPILER)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_eager(ranks: Ranks, name):
    ranks.run(_compare_on_hostile, name)


@pytest.mark.long
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_eager_on_inductor(ranks: Ranks, name):
    ranks.run(_compare, name, "inductor", deadline=300)
