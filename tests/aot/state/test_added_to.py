"""Lists that a function only adds to, wherever they are; what stands there may be changed between.

Eager says what is right: where something is appended to, and which error comes where nothing is.
"""

import dataclasses
import types
from collections import defaultdict, deque

import pytest
import torch

import funcaot


class Own:
    """Takes what is appended, in its own way."""

    def __init__(self):
        self.got = []

    def append(self, value):
        self.got.append(value * 2)

    def __repr__(self):
        return f"Own{self.got}"


class Louder(list):
    def append(self, value):
        super().append(value + 100)


def in_dictionary():
    kept = {"loss": [], "sizes": []}

    def function(x):
        kept["loss"].append(x.mean().item())
        kept["sizes"].append(len(x))
        return x * 2

    return function, kept


def deep_inside():
    holder = types.SimpleNamespace(kept={"train": [{"loss": [], "sizes": []}]})

    def function(x):
        holder.kept["train"][0]["loss"].append(x.mean().item())
        holder.kept["train"][0]["sizes"].extend([len(x), 1])
        return x * 2

    return function, holder.kept["train"][0]


def by_default():
    kept = defaultdict(list)

    def function(x):
        for key in ("loss", "sizes"):
            kept[key].append(x.mean().item())
        return x * 2

    return function, kept


def in_attributes():
    holder = types.SimpleNamespace(loss=[], sizes=[])

    def function(x):
        holder.loss.append(x.mean().item())
        holder.sizes.append(len(x))
        return x * 2

    return function, vars(holder)


MAKERS = (in_dictionary, deep_inside, by_default, in_attributes)
BETWEEN = {
    "nothing": lambda kept: None,
    "cleared": lambda kept: kept.clear(),
    "a new list": lambda kept: kept.update(loss=[]),
    "emptied": lambda kept: kept["loss"].clear(),
    "a deque": lambda kept: kept.update(loss=deque(maxlen=2)),
    "a tuple": lambda kept: kept.update(loss=()),
    "nothing there": lambda kept: kept.update(loss=None),
    "an object": lambda kept: kept.update(loss=Own()),
    "a list of its own class": lambda kept: kept.update(loss=Louder()),
    "one list for both": lambda kept: kept.update(sizes=kept["loss"]),
    "one gone": lambda kept: kept.pop("sizes"),
    "another one": lambda kept: kept.update(more=[]),
}


def outcome(function, kept, between):
    found = []
    for step in range(4):
        torch.manual_seed(step)
        try:
            found.append(function(torch.randn(4, 3, dtype=torch.float64)).tolist())
        except (AttributeError, KeyError) as error:
            found.append(type(error))
        found.append(repr(kept))
        if step == 1:
            between(kept)
    return found


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("make", MAKERS)
def test_as_in_eager(make, between):
    function, kept = make()
    expected = outcome(function, kept, BETWEEN[between])
    function, kept = make()
    compiled = funcaot.compile(function, backend="eager")
    assert outcome(compiled, kept, BETWEEN[between]) == expected
    if between == "nothing":
        # Where a key has no list yet, the first call makes one.
        assert len(funcaot.report(compiled).entries) == (2 if make is by_default else 1)


def test_a_list_that_is_also_read_is_compared():
    kept = {"loss": []}

    def function(x):
        kept["loss"].append(x.mean().item())
        return x * len(kept["loss"])

    compiled = funcaot.compile(function, backend="eager")
    for step in range(1, 4):
        assert compiled(torch.ones(2)).tolist() == [float(step)] * 2


@dataclasses.dataclass
class Record:
    scale: float
    parent: object = None

    def __add__(self, other):
        return Record(self.scale + other.scale)


class Other(Record):
    def __add__(self, other):
        return Record(self.scale * other.scale)


class Twice(Own):
    def append(self, value):
        self.got += [value, value]


@pytest.mark.parametrize(
    "held", [Record(1.0), torch.nn.ReLU(), types.SimpleNamespace(a=Record(2.0)), {"a": Record(1.0)}]
)
def test_what_is_in_a_list_that_is_only_added_to_is_not_compared(held):
    records = [held]

    def function(x):
        record = Record(2.0)
        record.parent = Record(record.scale)
        records.append(record)
        return x * record.scale

    compiled = funcaot.compile(function, backend="eager")
    for size in (2, 3, 2, 4, 3):
        assert compiled(torch.ones(size)).tolist() == [2.0] * size
    assert len(compiled.entries) <= 2
    assert len({*map(id, records)}) == 6


def last_of_all(x, kept):
    kept.records.append(Record(3.0))
    return x * kept.records[-2].scale


def each(x, kept):
    kept.records.append(Record(1.0))
    return x * sum(record.scale for record in kept.records[:1])


def by_another_name(x, kept):
    kept.records.append(Record(1.0))
    return x * kept.first.scale


def added_to_an_item(x, kept):
    kept.totals["a"] += Record(2.0)
    return x * 1


def appended_to_an_item(x, kept):
    kept.own["a"].append(len(x))
    return x * 1


def change_value(kept):
    kept.first.scale = 7.0


def change_class(kept):
    kept.totals["a"] = Other(5.0)
    kept.own["a"] = Twice()
    kept.records[:] = [Other(4.0)]
    kept.first = kept.records[0]


@pytest.mark.parametrize("between", [change_value, change_class])
@pytest.mark.parametrize(
    "function", [last_of_all, each, by_another_name, added_to_an_item, appended_to_an_item]
)
def test_what_is_read_otherwise_is_compared(function, between):
    found = []
    for compiles in (True, False):
        first = Record(2.0)
        kept = types.SimpleNamespace(
            records=[first], first=first, totals={"a": Record(1.0)}, own={"a": Own()}
        )
        closed = lambda x, kept=kept: function(x, kept)  # noqa: E731
        called = funcaot.compile(closed, backend="eager") if compiles else closed
        for step in range(4):
            found.append((called(torch.ones(2)).tolist(), repr(kept)))
            if step == 1:
                between(kept)
    assert found[:4] == found[4:]
