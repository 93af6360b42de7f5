"""One program for all sizes though a value is read: each way of reading, each change."""

import pytest
import torch

import funcaot
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
