"""What else a function does, beside a wrapper and to one: values read, state, real values, draws.

Each of these has a way of its own through the pipeline, and each way has to take wrappers apart.
"""

import numpy as np
import pytest
import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import checkpoint

import funcaot
from tests.aot.subclasses.kinds import leaves_behind, made, same, two
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class OnArrays(torch.autograd.Function):
    """It runs on real values, between compiled parts."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return torch.from_numpy(gradient.detach().numpy() * np.cos(x.detach().numpy()))


class Box:
    """State of a user."""

    def __init__(self):
        self.last, self.count, self.log = None, 0, []


BOX = Box()


def stored(x):
    BOX.last = x * 2
    BOX.count += 1
    BOX.log.append(BOX.count)
    return x


def gradient_inside(x):
    y = x.detach().requires_grad_()
    return torch.autograd.grad(y.sin().sum(), y)[0]


def fused(x):
    q = x.reshape(1, 1, 3, 3)
    return torch.nn.functional.scaled_dot_product_attention(q, q, q)


# On a wrapper, too, or beside one only: not every class has every op.
BOTH = {
    "a number read": lambda x: x * x.sum().item(),
    "a branch": lambda x: x * 2 if x.sum() > 0 else x * 3,
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "random": lambda x: x + torch.rand_like(x),
    "state": stored,
    "a checkpoint": lambda x: checkpoint(lambda y: y.sin(), x, use_reentrant=False),
    "a gradient": gradient_inside,
    "attention": fused,
    "a write": lambda x: (x.mul_(2), x * 1)[1],
    "out=": lambda x: torch.sin(x.detach(), out=torch.empty_like(x)),
    "a view": lambda x: x.t(),
    "itself": lambda x: x,
}
BESIDE = {
    "a mask": lambda x: x[x > 0].sum(),
    "sizes of values": lambda x: x.nonzero().float(),
    "arrays": lambda x: OnArrays.apply(x),
    "vmap": lambda x: torch.vmap(lambda row: row * row.sum())(x),
    "grad": lambda x: torch.func.grad(lambda y: (y**3).sum())(x),
    "resized": lambda x: x.detach().clone().resize_(2, 3),
    "cond": lambda x: torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (x,)),
    "complex": lambda x: torch.view_as_real(torch.complex(x, x * 2).conj().resolve_conj()),
}


def calls(function, wrapped, graded):
    """What three calls do."""
    BOX.__init__()
    found = []
    for step in range(3):
        x, other = made(step, 3, 3, grad=False), two(step + 5, 3, 3, grad=graded[1])
        if wrapped:
            x, other = other.detach(), x.requires_grad_(graded[1])
        if graded[0]:
            x = x.requires_grad_() * 1
        torch.manual_seed(step)
        result = function(x, other)
        found += [result, x, other, BOX.last, BOX.count, list(BOX.log), torch.rand(1)]
        outputs = [value for value in pytree.tree_leaves(result) if value.requires_grad]
        if outputs:
            losses = [(value * value.detach()).sum() for value in outputs]
            ones, leaves = [torch.ones_like(loss) for loss in losses], leaves_behind(x, other)
            found += torch.autograd.grad(losses, leaves, ones, allow_unused=True)
    return found


def check(act, wrapped, graded, backend):
    def function(x, other):
        return act(x), other.sin() * 2

    wanted = calls(function, wrapped, graded)
    found = calls(funcaot.compile(function, backend=backend), wrapped, graded)
    same(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("graded", [(False, False), (True, True)], ids=["plain", "graded"])
@pytest.mark.parametrize("act", [*BOTH, *BESIDE])
def test_beside_a_wrapper(act, graded):
    check((BOTH | BESIDE)[act], False, graded, COMPILER)


@pytest.mark.parametrize("graded", [(False, False), (True, True)], ids=["plain", "graded"])
@pytest.mark.parametrize("act", BOTH)
def test_on_a_wrapper(act, graded):
    check(BOTH[act], True, graded, COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize("act", ["a mask", "arrays", "a write", "a number read"])
def test_on_the_default_backend(act):
    check((BOTH | BESIDE)[act], False, (False, False), "inductor")
    check((BOTH | BESIDE)[act], False, (True, True), "inductor")
