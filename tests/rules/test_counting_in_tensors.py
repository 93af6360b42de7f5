"""Rules that count in a tensor which isn't an operand: once per call, from the first call on."""

from __future__ import annotations

import weakref

import pytest
import torch

import funcaot
from funcaot._torch.tracing.tracing import fake_mode

SEEN = torch.zeros(3)


class InForward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        SEEN.add_(1)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Averaged(InForward):
    @staticmethod
    def forward(ctx, x):
        SEEN.mul_(0.5).add_(1)
        return x * SEEN


class Dirty(InForward):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        SEEN.mul_(0.5).add_(1)
        return x.mul_(2)


class WithView(InForward):
    @staticmethod
    def forward(ctx, x):
        SEEN.add_(1)
        return x.view_as(x)


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        SEEN.add_(1)
        return gradient * SEEN


class OnTheClass(InForward):
    calls = torch.zeros(())

    @staticmethod
    def forward(ctx, x):
        OnTheClass.calls += 1
        return x * OnTheClass.calls


def hooked(x):
    y = x * 2
    y.register_hook(count)
    return y


def count(gradient):
    SEEN.add_(1)
    return gradient * 2


RULES = {
    "forward": InForward.apply,
    "average": Averaged.apply,
    "dirty": Dirty.apply,
    "view": WithView.apply,
    "backward": InBackward.apply,
    "class": OnTheClass.apply,
    "hook": hooked,
}


def steps(function, *, whole):
    """Three steps, of which the function is a part or the whole."""
    SEEN.zero_()
    OnTheClass.calls = torch.zeros(())
    compiled = function if whole is None else funcaot.compile(function, backend="eager")

    def step(x):
        result = (compiled if whole is False else function)(x * 1)
        (gradient,) = torch.autograd.grad(result.sum(), x)
        return result.detach(), gradient

    run = funcaot.compile(step, backend="eager") if whole else step
    found = []
    for number in range(3):
        x = (torch.arange(3.0) + number).requires_grad_()
        found.append((run(x), SEEN.clone(), OnTheClass.calls.clone()))
    return found


@pytest.mark.filterwarnings(
    "ignore:A call of step runs in eager:funcaot.errors.CaptureWarning"
)  # the hook's step
@pytest.mark.parametrize("whole", [False, True], ids=["alone", "step"])
@pytest.mark.parametrize("rule", RULES)
def test_counts_once(rule, whole):
    function = RULES[rule]
    wanted = steps(function, whole=None)
    if rule == "hook" and not whole:
        # What is refused has changed nothing.
        with pytest.raises(funcaot.errors.UnsupportedError, match="isn't an operand"):
            steps(function, whole=False)
        assert torch.equal(SEEN, torch.zeros(3))
        return
    torch.testing.assert_close(steps(function, whole=whole), wanted)


def test_what_a_capture_computes_with_dies_with_it():
    """A mode that takes care of real tensors isn't held by what takes care."""
    for _ in range(2):  # torch itself holds the first one of a process for longer
        mode = fake_mode()
        with mode:
            assert torch.ones(2).add(1).shape == (2,)
        alive = weakref.ref(mode)
        del mode
    assert alive() is None
