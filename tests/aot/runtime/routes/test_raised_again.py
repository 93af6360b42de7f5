"""Calls like one that raised aren't captured again, until one of them returns."""

import threading
import types

import pytest
import torch

import funcaot
from funcaot.aot import pipeline


class Stop(Exception):
    """The function's own."""


def seen_of(thing):
    """What calls have left in the state of a function."""
    names = ("calls", "buffer", "seen")
    found = [getattr(thing, name, None) for name in names]
    return [each.tolist() if isinstance(each, torch.Tensor) else each for each in found]


BROKEN = True


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.broken, self.calls = True, 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        self.seen.add_(x.sum())
        if self.broken:
            raise Stop(f"call {self.calls}")
        return x * 2 + self.seen


def by_argument():
    def function(x, s, broken):
        s.calls.append(len(s.calls))
        if broken:
            raise Stop(f"call {len(s.calls)}")
        return x * 2

    state, broken = types.SimpleNamespace(calls=[]), [True]
    return (lambda run, x: run(x, state, broken[0])), function, broken, state


def by_closure():
    broken, state = [True], types.SimpleNamespace(buffer=torch.zeros(3))

    def function(x):
        state.buffer.add_(1)
        if broken[0]:
            raise Stop("closed over")
        return x + state.buffer

    return (lambda run, x: run(x)), function, broken, state


def by_global():
    class Globals:
        def __setitem__(self, at, value):
            globals()["BROKEN"] = value

    def function(x):
        if BROKEN:
            raise Stop("global")
        return x * 3

    Globals()[0] = True
    return (lambda run, x: run(x)), function, Globals(), types.SimpleNamespace()


def by_attribute():
    module = Scaled()

    class Attribute:
        def __setitem__(self, at, value):
            module.broken = value

    return (lambda run, x: run(x)), module, Attribute(), module


def by_tensor():
    broken, state = torch.ones(1), types.SimpleNamespace(calls=0)

    def function(x):
        state.calls += 1
        if broken.sum() > 0:
            raise Stop("a value")
        return x * state.calls

    return (lambda run, x: run(x)), function, broken, state


def by_size_of_values():
    broken, state = [True], types.SimpleNamespace(calls=0)

    def function(x):
        places = x.nonzero()
        state.calls += 1
        if broken[0]:
            raise Stop("after values")
        return places.sum() + x

    return (lambda run, x: run(x)), function, broken, state


CAUSES = [by_argument, by_closure, by_global, by_attribute, by_tensor, by_size_of_values]


def told_of(make, compile_):
    """What calls give while there is a cause, when it is gone, and when it is back."""
    call, function, broken, state = make()
    run, told = compile_(function), []
    for is_broken in (True, False, True, False):
        broken[0] = is_broken
        for _ in range(3):
            try:
                told.append(call(run, torch.ones(3)).tolist())
            except Stop as error:
                told.append(str(error))
            told.append(repr(seen_of(state)))
    return told, run


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("make", CAUSES)
def test_a_cause_that_goes_and_comes(make, backend):
    found, run = told_of(make, lambda function: funcaot.compile(function, backend=backend))
    expected, _ = told_of(make, lambda function: function)
    assert found == expected
    assert funcaot.report(run).entries  # it is compiled when the cause is gone


@pytest.mark.parametrize("make", CAUSES)
def test_one_capture_for_all_calls_that_raise(make, monkeypatch):
    call, function, _, _ = make()
    run = funcaot.compile(function, backend="eager")
    with pytest.raises(Stop):
        call(run, torch.ones(3))
    if make is not by_size_of_values:  # its stages are captured for each size
        for size in (3, 4, 5, 3):
            with pytest.raises(Stop):
                call(run, torch.ones(size))
    made = funcaot.report(run).cache_misses
    captures = []
    settle = pipeline.settle

    def counted(*given):
        captures.append(given)
        return settle(*given)

    monkeypatch.setattr(pipeline, "settle", counted)
    for _ in range(5):
        with pytest.raises(Stop):
            call(run, torch.ones(3))
    assert funcaot.report(run).cache_misses == made <= 1
    assert len(captures) <= (make is by_size_of_values)  # a stage opens the number of calls


def test_sizes_that_raise_and_sizes_that_do_not():
    def function(x):
        if len(x) % 2:
            raise Stop
        return x * 2

    compiled = funcaot.compile(function, backend="eager", dynamic=False)
    for size in (3, 4, 5, 6, 3, 4, 5, 6, 3, 4, 5, 6):
        if size % 2:
            with pytest.raises(Stop):
                compiled(torch.ones(size))
        else:
            assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
    assert len(compiled.entries) == 2
    assert funcaot.report(compiled).cache_misses == 3


def test_what_else_a_call_looks_like_counts():
    def function(x, how):
        if how == "bad" or x.dtype == torch.float64:
            raise Stop(how)
        return x * 2

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        with pytest.raises(Stop, match="bad"):
            compiled(torch.ones(3), "bad")
        with pytest.raises(Stop, match="good"):
            compiled(torch.ones(3).double(), "good")
    assert torch.equal(compiled(torch.ones(3), "good"), torch.full((3,), 2.0))
    assert len(compiled.entries) == 1  # nothing like it had raised
    compiled.clear()
    with pytest.raises(Stop):
        compiled(torch.ones(3), "bad")
    assert funcaot.report(compiled).cache_misses == 4


def test_transforms_over_a_function_that_raises():
    state = types.SimpleNamespace(broken=True, calls=0)

    def function(x):
        state.calls += 1
        if state.broken:
            raise Stop(f"call {state.calls}")
        return (x * x).sum()

    compiled, eager_calls = funcaot.compile(function, backend="eager"), 0
    for transform in (torch.func.grad, torch.func.vmap, torch.func.jacfwd):
        for _ in range(3):
            eager_calls += 1
            with pytest.raises(Stop, match=f"call {eager_calls}$"):
                transform(compiled)(torch.ones(3, 2))
    state.broken = False
    for transform in (torch.func.grad, torch.func.vmap, torch.func.jacfwd):
        for factor in (1.0, 2.0, 3.0):
            x = torch.full((3, 2), factor)
            assert torch.equal(transform(compiled)(x), transform(function)(x))


def test_an_error_that_is_another_each_time():
    kinds = [Stop, KeyError, RuntimeError, ZeroDivisionError]

    def make():
        state = types.SimpleNamespace(calls=0)

        def function(x):
            state.calls += 1
            if state.calls < 9:
                raise kinds[state.calls % 4](f"call {state.calls}")
            return x * 2

        return function

    told = []
    for function in (make(), funcaot.compile(make(), backend="eager")):
        told.append([])
        for _ in range(12):
            try:
                told[-1].append(function(torch.ones(3)).tolist())
            except tuple(kinds) as error:
                told[-1].append(repr(error))
    assert told[0] == told[1]


def test_threads_with_calls_that_raise_and_calls_that_do_not():
    state = types.SimpleNamespace(broken=True)

    def function(x, bad):
        if bad and state.broken:
            raise Stop(str(len(x)))
        return x * 2 + bad

    compiled, wrong = funcaot.compile(function, backend="eager"), []

    def work(number):
        for step in range(30):
            size, bad = 2 + (number + step) % 3, step % 2 == 0
            try:
                found = compiled(torch.ones(size), bad)
                if found.tolist() != [2.0 + bad] * size:
                    wrong.append(found)
            except Stop as error:
                if not bad or str(error) != str(size):
                    wrong.append(error)
            if number == 0 and step == 20:
                state.broken = False

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert torch.equal(compiled(torch.ones(2), True), torch.full((2,), 3.0))
