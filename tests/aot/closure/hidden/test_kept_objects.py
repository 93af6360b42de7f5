"""Objects that ``functools.cache`` and ``lru_cache`` keep: changed between calls, forgotten, made.

Each case is a function of a tensor and what is done between its calls; eager says what comes out.
"""

import functools
from types import SimpleNamespace

import pytest
import torch

import funcaot

CASES = {}


def case(programs):
    def note(make):
        CASES[make.__name__] = make, programs
        return make

    return note


class Scale:
    def __init__(self, value):
        self.value = value

    def of(self, x):
        return x * self.value


def scaled(value):
    box = SimpleNamespace(value=value)

    def scale(x):
        return x * box.value

    scale.box = box
    return scale


def class_of(value):
    class Made:
        factor = value

        def of(self, x):
            return x * self.factor

    return Made


# For each: what a function gives and keeps, how it is used, and how it is changed.
KEPT = {
    "object": (Scale, lambda kept, x: kept.of(x), lambda kept, v: setattr(kept, "value", v)),
    "method": (
        lambda value: Scale(value).of,
        lambda kept, x: kept(x),
        lambda kept, v: setattr(kept.__self__, "value", v),
    ),
    "function": (scaled, lambda kept, x: kept(x), lambda kept, v: setattr(kept.box, "value", v)),
    "list": (
        lambda value: [Scale(value)],
        lambda kept, x: kept[0].of(x),
        lambda kept, v: kept.__setitem__(0, Scale(v)),
    ),
    "dictionary": (
        lambda value: {"value": value},
        lambda kept, x: x * kept["value"],
        lambda kept, v: kept.update(value=v),
    ),
    "class": (class_of, lambda kept, x: kept().of(x), lambda kept, v: setattr(kept, "factor", v)),
}


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside a new one"])
@pytest.mark.parametrize("bounded", [False, True], ids=["cache", "lru_cache"])
@pytest.mark.parametrize("kind", KEPT)
def test_what_is_kept_changes(kind, bounded, beside):
    make, use, change = KEPT[kind]
    held = functools.lru_cache(maxsize=4)(make) if bounded else functools.cache(make)
    kept = held(3.0)

    def function(x):
        found = use(held(3.0), x)
        return found + use(make(5.0), x) if beside else found

    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(2)
    for value in (3.0, 3.0, 7.0, 7.0, 9.0):
        change(kept, value) if value != 3.0 else None
        held(1.0), held(2.0)
        assert torch.equal(compiled(x), function(x))
    assert funcaot.report(compiled).cache_misses <= 4


@case(programs=4)
def settings_that_are_made_again():
    source = SimpleNamespace(value=3.0)
    held = functools.lru_cache(lambda: SimpleNamespace(value=source.value))
    held()

    def between(step):
        source.value = float(step)
        held.cache_clear()

    return (lambda x: x * held().value), between


@case(programs=4)
def a_number_that_is_made_again():
    source = SimpleNamespace(value=3.0)
    held = functools.cache(lambda: source.value)
    held()

    def between(step):
        source.value = float(step)
        held.cache_clear()

    return (lambda x: x * held()), between


@case(programs=3)
def a_counter_made_in_the_first_call():
    held = functools.lru_cache(lambda: SimpleNamespace(count=0))

    def function(x):
        held().count += 1
        return x * held().count

    return function, lambda step: None


@case(programs=5)
def a_list_that_grows():
    held = functools.cache(lambda name: [])

    def function(x):
        held("rows").append(1)
        return x * len(held("rows"))

    return function, lambda step: None


@case(programs=5)
def a_module_made_in_the_first_call():
    def make():
        module = torch.nn.Linear(2, 2)
        torch.nn.init.ones_(module.weight), torch.nn.init.zeros_(module.bias)
        module.factor = 1.0
        return module

    held = functools.lru_cache(make)

    def between(step):
        if step == 2:
            held().factor = 5.0
        elif step == 3:
            held.cache_clear()
        else:
            with torch.no_grad():
                held().weight.mul_(3)

    return (lambda x: held()(x) * held().factor), between


@case(programs=4)
def tensors_that_are_made_again_and_held():
    kept = []

    def make(number):
        kept.append(torch.full((2,), float(len(kept) + number)))
        return kept[-1]

    held = functools.lru_cache(maxsize=2)(make)
    held(1)
    return (lambda x: x * held(1)), lambda step: (held(step), held(step + 1))


@case(programs=4)
def a_method_that_remembers():
    class Table:
        value = 2.0

        @functools.lru_cache  # noqa: B019
        def row(self, number):
            return SimpleNamespace(value=self.value * number)

    table = Table()
    table.row(1)

    def between(step):
        if step % 2:
            table.row(1).value = float(step)
        else:
            table.value = float(step)
            Table.row.cache_clear()

    return (lambda x: x * table.row(1).value), between


@case(programs=3)
def arguments_by_name():
    held = functools.lru_cache(lambda *args, **named: SimpleNamespace(value=float(len(named))))
    held(1, 2, b=3), held(1), held(1.0)

    def between(step):
        held(1, 2, b=3).value = float(step)
        held(7, c=step)

    return (lambda x: x * held(1, 2, b=3).value), between


@case(programs=3)
def one_that_asks_another():
    inner = functools.lru_cache(lambda number: SimpleNamespace(value=float(number)))
    outer = functools.lru_cache(lambda number: inner(number).value)
    outer(1)

    def between(step):
        inner(1).value = float(step)
        if step == 3:
            outer.cache_clear()

    return (lambda x: x * outer(1)), between


@pytest.mark.parametrize("name", CASES)
def test_as_eager_keeps_it(name):
    make, programs = CASES[name]
    found = []
    for compile_ in (lambda function: function, lambda f: funcaot.compile(f, backend="eager")):
        function, between = make()
        called = compile_(function)
        values = []
        for step in range(5):
            if step >= 2:
                between(step)
            values.append(called(torch.ones(2)).tolist())
        found.append(values)
    assert found[0] == found[1]
    assert funcaot.report(called).cache_misses <= programs


def test_a_result_that_is_used_no_more_may_be_forgotten():
    held = functools.lru_cache(maxsize=2)(lambda number: SimpleNamespace(value=float(number)))
    held(1)
    compiled = funcaot.compile(lambda x: x * held(1).value, backend="eager")
    for number in range(4):
        assert compiled(torch.ones(2)).tolist() == [1, 1]
        held(1), held(number)
    assert funcaot.report(compiled).cache_misses == 1
    held(5), held(6)
    assert compiled(torch.ones(2)).tolist() == [1, 1]
    assert compiled.entries[-1].reason == "held(1) is gone"
