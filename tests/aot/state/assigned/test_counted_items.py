"""``kept[key] += value`` counts where whole numbers are; what else is there is made of the old."""

import random
import sys
import types
from collections import OrderedDict, defaultdict, deque
from decimal import Decimal
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import funcaot

HOLDERS = {
    "dictionary": ("{'a': V, 'z': 0}", "H['a']"),
    "list": ("[V, 0]", "H[0]"),
    "last of a list": ("[0, V]", "H[-1]"),
    "default": ("defaultdict(lambda: V)", "H['q']"),
    "ordered": ("OrderedDict(a=V)", "H['a']"),
    "nested": ("{'u': {'a': V}}", "H['u']['a']"),
    "list in dictionary": ("{'u': [V]}", "H['u'][0]"),
    "in a tuple": ("({'a': V},)", "H[0]['a']"),
    "attribute": ("SimpleNamespace(a=V)", "H.a"),
    "item of an attribute": ("SimpleNamespace(a={'b': V})", "H.a['b']"),
    "attribute of an item": ("{'o': SimpleNamespace(a=V)}", "H['o'].a"),
    "deque": ("deque([V, 0])", "H[0]"),
    "number as key": ("{1: V}", "H[1]"),
}
VALUES = {
    "int": ("1", "1"),
    "float": ("1.5", "0.5"),
    "float by int": ("1.5", "1"),
    "int by float": ("1", "0.5"),
    "bool": ("True", "1"),
    "str": ("'a'", "'b'"),
    "tuple": ("(1,)", "(2,)"),
    "list": ("[1]", "[2]"),
    "complex": ("1j", "1j"),
    "fraction": ("Fraction(1, 2)", "Fraction(1, 3)"),
    "decimal": ("Decimal(1)", "1"),
    "numpy": ("np.float64(1.5)", "0.5"),
    "whole numpy": ("np.int64(2)", "1"),
    "tensor": ("torch.ones(2)", "x.detach()"),
}
UPDATES = ("{h} += {d}", "{h} = {h} + {d}", "{h} += {d}; {h} += {d}", "y = {h}; {h} += {d}")
KINDS = (defaultdict, OrderedDict, deque, SimpleNamespace, Fraction, Decimal)
NAMES = {kind.__name__: kind for kind in KINDS} | {"np": np, "torch": torch}


def plain(value):
    if isinstance(value, SimpleNamespace):
        return plain(vars(value))
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [type(value).__name__, *map(plain, value)]
    return type(value).__name__, repr(value)


def life(holder, value, update, needs, *, compiled):
    """What is there after each call; how many programs."""
    (make, at), (old, added) = HOLDERS[holder], VALUES[value]
    module = types.ModuleType("counted_items")
    module.__dict__.update(NAMES)
    sys.modules[module.__name__] = module
    body = update.format(h=at, d=added)
    text = f"V = {old}\nH = {make}\ndef f(x):\n    {body}\n    return x + 1\n"
    exec(text, module.__dict__)
    function = funcaot.compile(module.f, backend="eager") if compiled else module.f
    seen = []
    for each in needs:
        function(torch.ones(2).requires_grad_(each))
        seen.append(plain(module.H))
    return seen, funcaot.report(function).cache_misses if compiled else 0


def check(holder, value, update):
    for needs in ((False,) * 4, (True, False) * 3):
        expected, _ = life(holder, value, update, needs, compiled=False)
        seen, programs = life(holder, value, update, needs, compiled=True)
        assert seen == expected
        if holder != "deque" and value in ("int", "float"):
            assert programs <= 5


CASES = [(h, v, u) for h in HOLDERS for v in VALUES for u in UPDATES]
random.Random(0).shuffle(CASES)
FAST = 36


@pytest.mark.parametrize(("holder", "value", "update"), CASES[:FAST])
def test_is_what_eager_has(holder, value, update):
    check(holder, value, update)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_all_holders_and_values(part):
    for case in CASES[FAST + part :: 10]:
        check(*case)


def test_on_inductor():
    totals = {"loss": 0.5, "calls": 0}

    def step(x):
        totals["loss"] += 0.25
        totals["calls"] += 1
        return x.sin()

    compiled = funcaot.compile(step)
    for call in range(5):
        compiled(torch.ones(2).requires_grad_(call % 2 == 0))
    assert totals == {"loss": 1.75, "calls": 5}
