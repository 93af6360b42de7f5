"""Objects that hold tensors out of sight, and that nobody can make again, are refused.

Those that can are in ``tests/aot/state/test_recipes.py``.
"""

import functools
import itertools
import operator

import pytest
import torch

import funcaot
from funcaot.aot.closure.lazy import holds_traced
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

MADE = {
    "iter of a dictionary": lambda x: iter({"a": x + 1}.values()),
    "generator": lambda x: (t * 2 for t in [x, x + 1]),
    "tee": lambda x: itertools.tee([x + 1])[0],
    "groupby": lambda x: itertools.groupby([x + 1], key=id),
    "keys": lambda x: {x + 1: 3}.keys(),
    "method": lambda x: (x + 1).sum,
    "method of Python": lambda x: [x + 1].__iter__,
    "caller": lambda x: operator.methodcaller("add", x + 1),
    "exception": lambda x: ValueError(x + 1),
}


class Keeper:
    kept = None

    def keep(self, make, x):
        self.kept = make(x)
        return x * 2


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("case", MADE)
def test_what_is_returned(case, backend):
    for function in (MADE[case], lambda x: {"in": [x * 2, MADE[case](x)]}):
        called = funcaot.compile(function, backend=backend)
        for _ in range(2):
            with pytest.raises(UnsupportedError, match="return"):
                called(torch.ones(2))


@pytest.mark.parametrize("case", sorted(MADE))
def test_what_is_kept(case):
    keeper = Keeper()
    called = funcaot.compile(functools.partial(keeper.keep, MADE[case]), backend="eager")
    with pytest.raises(UnsupportedError):
        called(torch.ones(2))
    assert keeper.kept is None


def test_what_is_consumed_inside_is_like_any_other():
    def function(x):
        first, second = itertools.accumulate([x, x + 1])
        values = {"a": first, "b": second}.values()
        return list(map(torch.sin, values)), max(zip([1, 2], [3, 4], strict=True))

    called = funcaot.compile(function, backend=COMPILER)
    for number in range(3):
        x = torch.ones(2) + number
        found, expected = called(x), function(x)
        assert torch.equal(torch.stack(found[0]), torch.stack(expected[0]))
        assert found[1] == expected[1]


def test_other_objects_hold_nothing():
    x = torch.ones(2)
    for value in (
        iter([x]),
        {"a": x}.values(),
        x.sum,
        [x],
        3,
        slice(1),
        torch,
        torch.sin,
        Keeper(),
    ):
        assert not holds_traced(value)
