"""One program for all sizes though a value is read: each way of reading, each change."""

import warnings

import pytest
import torch

import funcaot
from funcaot.errors import RecompileWarning
from tests.aot.tape.reading_values import CHANGES, READINGS, operands, results
from tests.hostile import COMPILER


def check(name, change, order, backend):
    """Each call is as in eager; afterwards there are as many programs as values ask for."""
    reading = READINGS[name]
    compiled = funcaot.compile(reading.function, backend=backend)
    with funcaot.config.patch(fallback_random=True, recompile_warning=0):
        for size, value in CHANGES[change]:
            found, expected = (
                results(function, size, value, order) for function in (compiled, reading.function)
            )
            torch.testing.assert_close(found, expected)
    values = len({value for _, value in CHANGES[change]})
    programs = len(compiled.entries)
    if change == "values":
        assert programs <= values
    else:
        assert programs <= 1 + values * reading.per_value
    report = funcaot.report(compiled)
    # A forward, and for each order a backward and what the orders before it are then.
    assert report.graphs_compiled <= programs * (1, 3, 6)[order]
    assert report.backward_traces <= programs * (1, 2, 4)[order]


@pytest.mark.parametrize("order", [0, 1, 2])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", READINGS)
def test_programs(name, change, order):
    check(name, change, order, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("change", ["sizes", "both"])
@pytest.mark.parametrize("name", READINGS)
def test_programs_of_a_compiler(name, change, order):
    check(name, change, order, COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize("name", READINGS)
def test_programs_of_inductor(name):
    check(name, "both", 1, "inductor")


@pytest.mark.parametrize("dynamic", [True, None])
def test_one_program_from_the_first_call_on(dynamic):
    function = READINGS["several"].function
    compiled = funcaot.compile(function, backend="eager", dynamic=dynamic)
    for size in (3, 4, 7):
        x, number = operands(size, 4)
        funcaot.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x, number), function(x, number))
    assert len(compiled.entries) == 1


def test_sizes_of_0_and_1_and_a_closed_one():
    function = READINGS["branch"].function
    for dynamic, count in ((None, 4), (False, 6)):
        compiled = funcaot.compile(function, backend="eager", dynamic=dynamic)
        for size in (3, 4, 0, 1, 5, 6, 0, 1):
            x = torch.ones(size, 2)
            torch.testing.assert_close(compiled(x, x.sum()), function(x, x.sum()))
        assert len(compiled.entries) <= count + 2


def test_another_branch_at_another_size_of_the_same_program():
    """What a program reads is compared for the sizes of the call, not for those it was made at."""

    def mean(x):
        return x * 2 if x.mean() > 0.5 else x * 3

    compiled = funcaot.compile(mean, backend="eager", dynamic=True)
    for size in range(2, 12):
        x = torch.zeros(size)
        x[: size // 2 + size % 2] = 1
        torch.testing.assert_close(compiled(x), mean(x))
    assert len(compiled.entries) == 2


def test_a_number_of_a_call_that_leaves_is_not_kept():
    """A program that a call leaves at some size has done nothing, and serves calls after it."""

    def update(x):
        x.add_(1)
        noise = torch.rand(x.shape[0])
        if x.sum() > 0:
            x.mul_(2)
        return x + noise

    compiled = funcaot.compile(update, backend="eager")
    for size, sign in ((3, 1), (4, 1), (5, -3), (6, 1), (7, -3), (3, -3), (8, 1)):
        outcomes = []
        for function in (compiled, update):
            x = torch.ones(size + 2)[:size] * sign
            torch.manual_seed(3)
            outcomes.append((function(x), x, torch.get_rng_state(), x._version))
        torch.testing.assert_close(*outcomes, rtol=0, atol=0)
    assert len(compiled.entries) == 3


def scaled(x, number):
    y = x.sin() * number.item() if number > 4 else x.cos()
    return (y * 2 if number.item() < x.shape[0] + 100 else y).sum()


def of_what_is_differentiated(x, number):
    return (x.sin() if (x.detach() > 0).all() else x.cos() * number).sum()


def inner_gradients(x, number):
    first = torch.func.grad(scaled)(x, number)
    return first + torch.func.grad(lambda x: torch.func.grad(scaled)(x, number).sin().sum())(x)


def gradients_inside(x, number):
    x = x.detach().requires_grad_()
    (first,) = torch.autograd.grad(scaled(x, number), x, create_graph=True)
    return torch.autograd.grad(first.sin().sum() if first.sum() > -1e6 else first.sum(), x)[0]


STACKS = {
    "vmap": (lambda f: torch.func.vmap(f, (0, None)), scaled, 4),
    "grad": (torch.func.grad, scaled, 4),
    "grad of what is read": (torch.func.grad, of_what_is_differentiated, 4),
    "vmap of grad": (lambda f: torch.func.vmap(torch.func.grad(f), (0, None)), scaled, 4),
    "inside": (lambda f: f, inner_gradients, 3),
    "autograd inside": (lambda f: f, gradients_inside, 3),
    # Each size has its program under levels.
    "jvp": (lambda f: lambda x, n: torch.func.jvp(lambda x: f(x, n), (x,), (x.cos(),)), scaled, 8),
    "hessian": (torch.func.hessian, scaled, 8),
}


@pytest.mark.parametrize("backend", ["eager", pytest.param(COMPILER, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", STACKS)
def test_under_transforms(name, backend):
    stack, function, programs = STACKS[name]
    compiled = funcaot.compile(function, backend=backend)
    for size, value in [(3, 4), (4, 4), (4, 5), (5, 5), (6, 4), (7, 5), (8, 5), (8, 4)]:
        given = operands(size, value)
        torch.testing.assert_close(stack(compiled)(*given), stack(function)(*given))
    assert funcaot.report(compiled).cache_misses <= programs


class Squared(torch.autograd.Function):
    """Its backward reads a value, and is traced."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return 2 * x * gradient


def a_function_beside(x, number):
    return Squared.apply(x) * number.item() if (x > -5).all() else Squared.apply(x.sin())


def hooked(x, number):
    y = x.sin()
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2 if gradient.sum() > 0 else gradient * 3)
    return y * number


def hooked_by_value(x, number):
    y = x.sin()
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 2 if number > 4 else gradient * 3)
    return y * number


def product(x, number):
    """The second derivative of this op branches on whether there are zeros."""
    index = torch.arange(x.shape[0])[:, None].expand(x.shape) // 2
    return torch.scatter_reduce(x, 0, index, x * 2, "prod")


BACKWARDS = [a_function_beside, hooked, hooked_by_value, product]


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("function", BACKWARDS)
def test_backwards_that_read_values(function, backend):
    """Each answer keeps its backward: that of another gradient doesn't take its place."""
    compiled = funcaot.compile(function, backend=backend)
    traces = []
    for size in (3, 4, 5, 6, 7, 4, 8, 9):
        for sign in (1.0, -1.0):
            for value in (4, 5):
                found = []
                for candidate in (compiled, function):
                    x, number = operands(size, value)
                    x.requires_grad_()
                    y = candidate(x, number)
                    cotangent = torch.full_like(y, sign)
                    (first,) = torch.autograd.grad(y, x, cotangent, create_graph=True)
                    (second,) = torch.autograd.grad(first.sin().sum(), x)
                    found.append((y.detach(), first.detach(), second))
                torch.testing.assert_close(*found)
        traces.append(funcaot.report(compiled).backward_traces)
    assert traces[2] == traces[-1]


def test_a_value_that_a_hook_reads_is_looked_at_in_each_backward():
    def function(x, number):
        y = x.sin()
        y.register_hook(lambda gradient: gradient * 2 if number > 4 else gradient * 3)
        return y * 2

    compiled = funcaot.compile(function, backend="eager")
    for size, value in ((3, 4), (4, 4), (4, 6), (5, 2), (3, 6)):
        x, number = operands(size, value)
        x.requires_grad_()
        found, expected = (f(x, number) for f in (compiled, function))
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, expected)))


class Doubled(torch.autograd.Function):
    """Runs on real values, so that each size has its program."""

    @staticmethod
    def forward(ctx, x):
        return x * (2.0 if float(x.detach().numpy().sum()) > 0 else 3.0)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_function_on_real_values_has_a_program_per_size():
    def function(x, number):
        return Doubled.apply(x.sin()) * number.item()

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 4, 5, 3, 4, 5):
        given = operands(size, 4)
        torch.testing.assert_close(compiled(*given), function(*given))
    assert len(compiled.entries) == 3


def test_what_is_said_of_a_program_for_another_value(capsys):
    compiled = funcaot.compile(scaled, backend="eager")
    with funcaot.config.patch(logs="recompiles"):
        for size, value in ((3, 4), (4, 4), (5, 5)):
            compiled(*operands(size, value))
    said = capsys.readouterr().err
    assert "a value that it reads is another one: item at test_values_at_open_sizes.py" in said
    assert "is False, now True" in said


def test_many_programs_for_values_warn_of_values_at_any_size():
    compiled = funcaot.compile(lambda x, number: x * round(number.item()), backend="eager")
    with funcaot.config.patch(recompile_warning=0):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for size in range(2, 11):
                compiled(torch.ones(size), torch.tensor(float(size)))
        with pytest.warns(RecompileWarning, match="differ in values only"):
            compiled(torch.ones(11), torch.tensor(11.0))
