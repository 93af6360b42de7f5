"""Functions that write to an input without marking it dirty: compiled, the write is there too."""

import pytest
import torch
from torch.autograd import Function

import funcaot
from funcaot.errors import UnsupportedError


def inlining(module, examples):
    """A backend that gets graphs of ops, as Inductor does."""
    return module.forward


class Counts(Function):
    """Writes in its forward and, to the same tensor, in its backward."""

    @staticmethod
    def forward(ctx, x, count):
        count.add_(1)
        count.mul_(2)
        ctx.count = count
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.count.add_(10 * grad.detach().sum())
        return grad, None


class Averages(Function):
    """Reads and saves what it wrote; two outputs."""

    @staticmethod
    def forward(x, mean):
        mean.lerp_(x.detach(), 0.5)
        return x * mean, x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, first, second):
        (mean,) = ctx.saved_tensors
        return first * mean + 2 * second, None


def counted(x, state):
    return Counts.apply(x, state) * state


def averaged(x, state):
    first, second = Averages.apply(x.sin(), state)
    return first + second + state


def part(x, state):
    return Averages.apply(x, state[1])[0]


def intermediate(x, state):
    kept = state * 2
    y = Averages.apply(x, kept)[0]
    return y + kept


def seen(function, step, *, whole):
    x = torch.arange(1.0, 3.0).add(step).requires_grad_()
    state = torch.ones(2, 2) * step
    state = state if whole else state[1]
    y = function(x, state)
    between = state.clone()
    (grad,) = torch.autograd.grad((y * torch.tensor([1.0, 3.0])).sum(), x)
    return y.detach(), between, grad, state, torch.tensor(state._version)


BACKENDS = ["eager", inlining, pytest.param("inductor", marks=pytest.mark.slow)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [counted, averaged, part, intermediate])
def test_as_in_eager(function, backend):
    compiled = funcaot.compile(function, backend=backend)
    for step in range(3):
        whole = function is part
        found, expected = seen(compiled, step, whole=whole), seen(function, step, whole=whole)
        torch.testing.assert_close(found, expected)


def test_without_gradients():
    compiled = funcaot.compile(averaged, backend=inlining)
    for step in range(3):
        x, ours = torch.arange(2.0) + step, torch.ones(2)
        theirs = ours.clone()
        torch.testing.assert_close(compiled(x, ours), averaged(x, theirs))
        torch.testing.assert_close(ours, theirs)


class ReturnsIt(Function):
    """Returns what it wrote to, unmarked."""

    @staticmethod
    def forward(ctx, x, state):
        return state.add_(x.detach())

    @staticmethod
    def backward(ctx, grad):
        return None, grad


def test_what_is_returned_has_to_be_marked():
    compiled = funcaot.compile(lambda x, state: ReturnsIt.apply(x, state), backend="eager")
    with pytest.raises(UnsupportedError, match="doesn't mark as dirty"):
        compiled(torch.ones(2, requires_grad=True), torch.ones(2))


def test_memory_of_two_inputs():
    compiled = funcaot.compile(
        lambda x, state: Averages.apply(x * state[0], state[0])[0] + Averages.apply(x, state[1])[0],
        backend=inlining,
    )
    x, state = torch.ones(2, requires_grad=True), torch.ones(2, 2)
    theirs = state.clone()
    expected = Averages.apply(x * theirs[0], theirs[0])[0] + Averages.apply(x, theirs[1])[0]
    torch.testing.assert_close(compiled(x, state), expected)
    torch.testing.assert_close(state, theirs)


class Normed(torch.autograd.Function):
    """The op's schema doesn't say that it writes to the statistics."""

    @staticmethod
    def forward(x, mean, variance):
        return torch.nn.functional.batch_norm(x, mean, variance, training=True)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g, None, None


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_running_statistics(backend):
    x = torch.randn(5, 3)
    mine, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    compiled = funcaot.compile(lambda x, *s: Normed.apply(x, *s), backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, *mine), Normed.apply(x, *theirs))
    torch.testing.assert_close(mine, theirs)
