"""A backward on real values inside of a compiled step, which changes or reads what others do."""

import itertools

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

PLACES = ("forward", "middle", "backward", "end")


class State:
    def __init__(self):
        self.value, self.given, self.items, self.seen = 0, 1, [], []


def assign(state):
    state.value = state.given


def count(state):
    state.value += 1


def append(state):
    state.items.append(state.given)


def look(state):
    state.seen.append(state.value)


def pop(state):
    if state.items:
        state.seen.append(state.items.pop())


def step_of(state, write, read, write_at, read_at):
    """A step with a Function whose backward is NumPy's, and what happens where."""
    weight = torch.nn.Parameter(torch.ones(3))

    def at(place):
        if place == write_at:
            write(state)
        if place == read_at:
            read(state)

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            at("forward")
            ctx.save_for_backward(x, weight)
            return x * weight

        @staticmethod
        def backward(ctx, gradient):
            x, weight = ctx.saved_tensors
            numbers = gradient.detach().numpy()
            at("backward")
            gradient = torch.from_numpy(numbers * 1)
            return gradient * weight, gradient * x

    def step(x):
        weight.grad = None
        y = Scale.apply(x, weight)
        at("middle")
        y.square().sum().backward()
        at("end")
        return y.detach(), weight.grad.clone()

    return step


def lived(step, state):
    """What each of some calls gives, and leaves."""
    found = []
    for index, given in enumerate((1, 1, 2, 1, 2)):
        state.given = given
        if index == 3:  # a call like one that has been captured
            state.value = 0
            state.items.clear()
        y, gradient = step(torch.arange(3.0) + index)
        found.append((y.tolist(), gradient.tolist(), state.value, [*state.items], [*state.seen]))
    return found


CHANGES = {"assign": (assign, look), "count": (count, look), "list": (append, pop)}
CASES = [(kind, *places) for kind in CHANGES for places in itertools.product(PLACES, PLACES)]


def compare(kind, write_at, read_at):
    """Whether a compiled step was refused; else it has done what eager does."""
    write, read = CHANGES[kind]
    eager, compiled = State(), State()
    expected = lived(step_of(eager, write, read, write_at, read_at), eager)
    step = step_of(compiled, write, read, write_at, read_at)
    try:
        found = lived(funcaot.compile(step, backend="eager"), compiled)
    except UnsupportedError:
        return True
    assert found == expected
    return False


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_state_is_eagers_or_refused(case):
    compare(*case)


@pytest.mark.parametrize(
    "case",
    [
        ("assign", "middle", "backward"),
        ("assign", "backward", "end"),
        ("count", "backward", "end"),
        ("list", "end", "backward"),
    ],
    ids="-".join,
)
def test_what_is_shared_with_the_function_is_refused_or_right(case):
    compare(*case)


def test_what_a_backward_keeps_to_itself_is_compiled():
    assert not compare("assign", "backward", "backward")
    assert not compare("list", "backward", "backward")


def test_a_backward_that_counts_after_its_forward_on_real_values():
    def run(compiles):
        seen, weight = [], torch.nn.Parameter(torch.ones(3))

        class Counted:
            calls = 0

            def act(self, x):
                x.detach().numpy()
                self.calls += 1
                seen.append(self.calls)
                return x

        counted = Counted()

        class Scale(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, weight):
                ctx.save_for_backward(x, weight)
                return counted.act(x) * weight

            @staticmethod
            def backward(ctx, gradient):
                x, weight = ctx.saved_tensors
                return counted.act(gradient) * weight, gradient * x

        def step(x):
            weight.grad = None
            Scale.apply(x, weight).sum().backward()

        step = funcaot.compile(step, backend="eager") if compiles else step
        for _ in range(3):
            step(torch.arange(3.0))
        return seen, counted.calls, weight.grad.tolist()

    try:
        found = run(True)
    except UnsupportedError as error:
        assert "backward" in str(error)  # noqa: PT017
    else:
        assert found == run(False)


def test_a_backward_that_finds_the_parameters_that_it_is_given():
    def run(compiles):
        torch.manual_seed(0)
        layer, calls = torch.nn.Linear(3, 3), []

        def act(x):
            calls.append(len(calls))
            return torch.tanh(layer(x))

        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, *parameters):
                ctx.save_for_backward(x, *parameters)
                with torch.no_grad():
                    return act(x)

            @staticmethod
            def backward(ctx, gradient):
                x, *parameters = ctx.saved_tensors
                gradient = torch.from_numpy(gradient.detach().numpy())
                with torch.enable_grad():
                    y = act(x.detach())
                found = torch.autograd.grad(y, parameters, gradient, allow_unused=True)
                return None, *found

        def step(x):
            layer.zero_grad()
            Again.apply(x, *layer.parameters()).square().sum().backward()

        step = funcaot.compile(step, backend="eager") if compiles else step
        found = []
        for index in range(3):
            step(torch.arange(6.0).view(2, 3) * 0.1 + index)
            found.append([parameter.grad.tolist() for parameter in layer.parameters()])
        return found, calls

    assert run(True) == run(False)
