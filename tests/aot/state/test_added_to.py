"""Lists that a function only adds to, wherever they are; what stands there may be changed between.

Eager says what is right: where something is appended to, and which error comes where nothing is.
"""

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
