"""Values that one rank reads: another program for some is none that calls collectives again.

The oracle is the function itself, called on the same ranks.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable

import funcaot
from tests.distributed.ranks import Ranks
from tests.hostile import COMPILER

# Of each rank at each step: values whose sum has this sign.
SIGNS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, -1), (-1, 1))


def _reduced(x):
    y = x.clone()
    dist.all_reduce(y)
    return y


def _after(x):
    y = _reduced(x)
    return y * 2 if x.sum().item() > 0 else y.sin()


def _between(x):
    y = _reduced(x) * 3
    y = y * 2 if x.sum().item() > 0 else y
    y = _reduced(y)
    return y + int(x.abs().max().item() * 2)


def _size(x):
    """All ranks call alike, whatever they read."""
    y, rows = _reduced(x), x[x > 0]
    return _reduced(y * 2 if rows.shape[0] > 1 else y.sin())


def _drawn(x):
    y = _reduced(x)
    noise = torch.rand_like(x)
    return y * noise if (x * torch.rand_like(x)).sum().item() > 0 else y - noise


def _derivative(x):
    y = differentiable.all_reduce(x.sin())
    y = y * 2 if x.sum().item() > 0 else y
    return differentiable.all_reduce(y * x)


class _Chooses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        gradient = _reduced(gradient)
        return gradient * 2 if x.sum().item() > 0 else gradient.sin()


def _in_backward(x):
    return _Chooses.apply(x * 2).sin()


FUNCTIONS = {
    "after": _after,
    "between": _between,
    "size": _size,
    "drawn": _drawn,
    "derivative": _derivative,
    "in backward": _in_backward,
}


def _called(function, x, differentiated):
    torch.manual_seed(dist.get_rank())
    x = x.clone().requires_grad_(differentiated)
    y = function(x)
    if differentiated:
        y.square().sum().backward()
    return y.detach(), x.grad, torch.get_rng_state()


def _as_in_eager(name: str) -> None:
    function, rank = FUNCTIONS[name], dist.get_rank()
    compiled = funcaot.compile(function, backend=COMPILER)
    differentiated = name in ("derivative", "in backward")
    for step, signs in enumerate(SIGNS):
        made = torch.Generator().manual_seed(2 * step + rank)
        x = (torch.rand(4, generator=made) + 0.1) * signs[rank]
        expected = _called(function, x, differentiated)
        found = _called(compiled, x, differentiated)
        torch.testing.assert_close(found, expected, msg=lambda said, step=step: f"{step}: {said}")


@pytest.mark.filterwarnings("ignore:torch.distributed.nn")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_in_eager(ranks: Ranks, name):
    ranks.run(_as_in_eager, name, deadline=60)


def _drawn_in_between() -> None:
    def function(x):
        y = torch.nn.functional.dropout(_reduced(x))
        return y * 2 if (x * torch.rand_like(x)).sum().item() > 0 else y

    with pytest.raises(funcaot.errors.UnsupportedError, match="other ranks contribute to is read"):
        funcaot.compile(function, backend=COMPILER)(torch.ones(3))


def test_draws_keep_their_order(ranks: Ranks):
    ranks.run(_drawn_in_between, deadline=60)
