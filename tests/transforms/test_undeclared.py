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


# Ways to write that symbolic tensors, or versions, don't count.
UNCOUNTED = {
    "in place": lambda x: x.mul_(2),
    "lists": lambda x: torch._foreach_mul_([x], [2]),
    "lists by keywords": lambda x: torch._foreach_mul_(self=[x], scalar=2),
    "lists by an overload": lambda x: torch.ops.aten._foreach_add_.Scalar([x], 1),
    "lists of views": lambda x: torch._foreach_mul_([x[0], x[1:]], 3),
    "lists of data": lambda x: torch._foreach_mul_([x.data], 3),
    "copied lists": lambda x: torch._foreach_copy_([x], [torch.ones(3)]),
    "out in lists": lambda x: torch.split_copy(torch.ones(3), 3, out=[x]),
    "scaled": lambda x: torch._amp_foreach_non_finite_check_and_unscale_(
        [x], torch.zeros(1), torch.full((1,), 0.5)
    ),
    "data": lambda x: x.data.mul_(2),
    "a view of data": lambda x: x.data[1:].mul_(2),
    "detached": lambda x: x.detach().mul_(2),
}


def written_by(way):
    class Writes(Function):
        @staticmethod
        def forward(ctx, x, state):
            way(state)
            return x * state

        @staticmethod
        def backward(ctx, gradient):
            return gradient.cos(), None

    return Writes


@pytest.mark.parametrize("way", UNCOUNTED)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_every_way_to_write_is_seen(way, requires_grad):
    function = written_by(UNCOUNTED[way]).apply
    compiled = funcaot.compile(function, backend=inlining)
    for _ in range(3):
        found = []
        for call in (function, compiled):
            x = torch.full((3,), 2.0, requires_grad=requires_grad)
            state = torch.full((3,), 4.0)
            result = call(x, state)
            gradients = torch.autograd.grad(result.sum(), x) if requires_grad else ()
            found.append((result, state, gradients))
            if way == "data":
                assert state._version == 0
        torch.testing.assert_close(found[1], found[0])


def test_other_data_of_an_input_is_refused():
    def assign(state):
        state.data = torch.zeros(3)

    compiled = funcaot.compile(written_by(assign).apply, backend=inlining)
    with pytest.raises(UnsupportedError, match="assigns to the data of its input"):
        compiled(torch.ones(3), torch.ones(3))
