"""Of functions with one code that nothing leads to, those that ran are compared, and no others."""

import functools
import types

import pytest
import torch

import funcaot


def scaled(value):
    """A function with a number of its own, which the test changes."""
    box = types.SimpleNamespace(value=value)

    def scale(x):
        return x * box.value

    scale.box = box
    return scale


def counting(value):
    """A function that counts its calls."""
    calls = value

    def count(x):
        nonlocal calls
        calls += 1
        return x * calls

    return count


def replaced(value):
    """A function whose number another one replaces."""

    def scale(x):
        return x * value

    def replace(new):
        nonlocal value
        value = new

    scale.replace = replace
    return scale


def in_a_cache(make):
    return functools.lru_cache(maxsize=2)(make)


def in_a_list(make):
    made = [make(number) for number in range(5)]
    return functools.partial(made.__getitem__)


HIDING = {"a cache": in_a_cache, "a list": in_a_list}


@pytest.mark.parametrize("hiding", HIDING)
def test_one_that_ran_is_compared_beside_one_that_is_reached(hiding):
    held, reached = HIDING[hiding](scaled), scaled(2)
    held(3)
    compiled = funcaot.compile(lambda x: reached(x) + held(3)(x), backend="eager")
    x = torch.ones(2)
    for value in (3, 3, 40, 5.5):
        held(3).box.value = value
        assert torch.equal(compiled(x), x * (2 + value))
        reached.box.value = 7
        assert torch.equal(compiled(x), x * (7 + value))
        reached.box.value = 2


def test_one_that_did_not_run_may_change_and_be_gone():
    held = in_a_cache(scaled)
    held(2), held(3)
    compiled = funcaot.compile(lambda x: held(2)(x), backend="eager")
    x = torch.ones(2)
    compiled(x)
    held(3).box.value = 7
    assert torch.equal(compiled(x), x * 2)
    for number in (4, 5):
        held(2), held(number)  # The one that was asked for least recently is gone.
        assert torch.equal(compiled(x), x * 2)
    assert funcaot.report(compiled).cache_misses == 1


def test_one_that_ran_may_be_gone_and_be_another():
    held = in_a_cache(scaled)
    held(2).box.value = 5
    compiled = funcaot.compile(lambda x: held(2)(x), backend="eager")
    x = torch.ones(2)
    assert torch.equal(compiled(x), x * 5)
    held.cache_clear()
    held(2)
    assert torch.equal(compiled(x), x * 2)
    assert "held(2) is another function than before" in compiled.entries[1].reason


@pytest.mark.parametrize("hiding", HIDING)
def test_those_whose_variables_get_other_values(hiding):
    def world():
        held = HIDING[hiding](counting)
        held(1), held(2)
        return held, lambda x: held(1)(x) + held(2)(x) * held(1)(x)

    held, target = world()
    compiled = funcaot.compile(target, backend="eager")
    other, eager = world()
    x = torch.ones(2)
    for call in range(6):
        assert torch.equal(compiled(x), eager(x))
        if call % 2:  # Between the calls, one of them counts on.
            assert torch.equal(held(2)(x), other(2)(x))


@pytest.mark.parametrize("between", [True, False])
def test_one_whose_variable_another_function_replaces(between):
    def world():
        held, reached = in_a_list(replaced), replaced(2.0)

        def target(x):
            found = reached(x) + held(2)(x)
            if not between:
                held(2).replace(held(2)(x).sum().item())
            return found

        return held, target

    held, target = world()
    other, eager = world()
    compiled = funcaot.compile(target, backend="eager", fullgraph=False)
    x = torch.ones(2)
    for call in range(5):
        assert torch.equal(compiled(x), eager(x))
        if between:
            held(2).replace(float(call))
            other(2).replace(float(call))
