"""Ops that are called for what they do outside of tensors: each call does it, in eager's order."""

import functools
from typing import Any

import pytest
import torch
from torch._library.effects import EffectType
from torch.library import custom_op
from torch.utils.checkpoint import checkpoint

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

LOG: list[Any] = []


@custom_op("funcaot_acting::note", mutates_args=())
def note(x: torch.Tensor, tag: str) -> None:
    LOG.append((tag, tuple(x.shape), float(x.sum())))


@note.register_fake
def _(x: torch.Tensor, tag: str) -> None: ...


@custom_op("funcaot_acting::both", mutates_args=())
def both(xs: list[torch.Tensor], factor: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    LOG.append(("both", factor, float(xs[0].sum())))
    return xs[0] * factor, xs[-1] + factor


@both.register_fake
def _(xs: list[torch.Tensor], factor: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(xs[0]), torch.empty_like(xs[-1])


@custom_op("funcaot_acting::square", mutates_args=())
def square(x: torch.Tensor) -> torch.Tensor:
    LOG.append(("square", float(x.sum())))
    return x * x


@square.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(inputs[0])


def _backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    note(gradient, "backward")
    return 2 * ctx.saved_tensors[0] * gradient


square.register_autograd(_backward, setup_context=_keep)
both.register_effect(EffectType.ORDERED)
square.register_effect(EffectType.ORDERED)


def only(x):
    note(x, "only")


def given_back(x):
    note(x, "given back")
    return x


def between(x):
    y = x.sin()
    note(y, "first")
    y.mul_(2)
    note(y + 1, "second")
    return y * x


def written(x):
    note(x, "before")
    y = x.clone()
    y.add_(1)
    note(y, "after")
    return y.cos()


def unused(x):
    both([x.detach()])
    note(x[0], "row")
    return (x * x).sum()


def lists(x):
    first, second = both([x.detach(), x.detach() * 2], factor=2)
    note(second, "second")
    return first * x.cos()


def in_backward(x):
    y = square(x)
    note(y, "forward")
    return y * x


def derivative_inside(x):
    (gradient,) = torch.autograd.grad(square(x).sum(), x, create_graph=True)
    note(gradient, "inside")
    return gradient.cos()


PROGRAMS = [only, given_back, between, written, unused, lists, in_backward, derivative_inside]


def _run(function: Any, size: int, requires_grad: bool) -> tuple[Any, Any, list[Any]]:
    LOG.clear()
    x = (torch.arange(float(size)) + 1).requires_grad_(requires_grad)
    result = function(x)
    gradient = None
    if isinstance(result, torch.Tensor) and requires_grad:
        (gradient,) = torch.autograd.grad(result.sum(), x)
    return result, gradient, list(LOG)


def _compare(function: Any, backend: Any) -> None:
    compiled = funcaot.compile(function, backend=backend)
    grads = [True] if function is derivative_inside else [False, True]
    for size, requires_grad in [(size, grad) for size in (2, 2, 3, 4) for grad in grads]:
        expected = _run(function, size, requires_grad)
        found = _run(compiled, size, requires_grad)
        assert [entry[:-1] for entry in found[2]] == [entry[:-1] for entry in expected[2]]
        torch.testing.assert_close(
            [entry[-1] for entry in found[2]], [entry[-1] for entry in expected[2]]
        )
        torch.testing.assert_close(found[:2], expected[:2])


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
def test_each_call_acts(function, backend):
    _compare(function, backend)


@pytest.mark.slow
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_each_call_acts_on_inductor(function):
    _compare(function, "inductor")


def test_a_value_of_what_acts_is_refused():
    def function(x):
        y = square(x)
        return y.sin() if y.sum() > 3 else y

    with pytest.raises(UnsupportedError, match="acts outside of tensors"):
        funcaot.compile(function, backend="eager")(torch.ones(3))


def test_a_checkpoint_acts_once():
    def function(x):
        return checkpoint(lambda y: square(y).sin().exp(), x.cos(), use_reentrant=False)

    result, gradient, log = _run(funcaot.compile(function, backend="eager"), 3, True)
    expected = _run(function, 3, True)
    torch.testing.assert_close((result, gradient), expected[:2])
    assert [entry[0] for entry in log] == ["square", "backward"]


def test_a_checkpoint_changes_statistics_once():
    """Where eager computes again it changes them again; results and gradients are the same."""
    found = []
    for compile_it in (False, True):
        norm = torch.nn.BatchNorm1d(3)
        function = functools.partial(checkpoint, norm, use_reentrant=False)
        if compile_it:
            function = funcaot.compile(function, backend="eager")
        x = torch.arange(12.0).reshape(4, 3).sin().requires_grad_()
        result = function(x)
        result.square().sum().backward()
        found.append(((result, x.grad, norm.weight.grad), norm.num_batches_tracked.item()))
    torch.testing.assert_close(found[1][0], found[0][0])
    assert [count for _, count in found] == [2, 1]


def _checked(x):
    torch._assert_async(x.sum() > 0)
    return x * 2


def _only_checked(x):
    torch._assert_async(x.sum() > 0)
    return x


def _checked_with_words(x):
    torch._assert_async(x.sum() > 0, "nothing is positive")


@pytest.mark.parametrize("function", [_checked, _only_checked, _checked_with_words])
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_checks_are_made(function, backend):
    compiled = funcaot.compile(function, backend=backend)
    compiled(torch.ones(2))
    with pytest.raises(RuntimeError) as expected:
        function(-torch.ones(2))
    with pytest.raises(RuntimeError) as found:
        compiled(-torch.ones(2))
    assert str(found.value).splitlines()[0] == str(expected.value).splitlines()[0]
