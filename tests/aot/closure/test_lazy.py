"""Objects that hold tensors out of sight are refused where they are returned or kept."""

import functools
import itertools
import operator
import types

import pytest
import torch

import funcaot
from funcaot.aot.closure.lazy import holds_traced
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER


def twice(x):
    return x * 2


MADE = {
    "map": lambda x: map(torch.sin, [x, x + 1]),
    "map of a function": lambda x: map(twice, [x, x + 1]),
    "zip": lambda x: zip([x], [x + 1], strict=True),
    "filter": lambda x: filter(torch.is_tensor, [x, x + 1]),
    "enumerate": lambda x: enumerate([x + 1]),
    "reversed": lambda x: reversed([x + 1, x]),
    "iter of a list": lambda x: iter([x + 1]),
    "iter of a tuple": lambda x: iter((x + 1,)),
    "iter of a dictionary": lambda x: iter({"a": x + 1}.values()),
    "iter of a tensor": lambda x: iter(x + 1),
    "iter of a function": lambda x: iter(functools.partial(next, iter([x + 1])), None),
    "generator": lambda x: (t * 2 for t in [x, x + 1]),
    "numbers": lambda x: iter([1, 2]),
    "accumulate": lambda x: itertools.accumulate([x, x + 1]),
    "chain": lambda x: itertools.chain([x], [x + 1]),
    "islice": lambda x: itertools.islice([x, x + 1], 1),
    "starmap": lambda x: itertools.starmap(torch.add, [(x, x)]),
    "product": lambda x: itertools.product([x + 1], [x]),
    "cycle": lambda x: itertools.cycle([x + 1]),
    "repeat": lambda x: itertools.repeat(x + 1),
    "tee": lambda x: itertools.tee([x + 1])[0],
    "groupby": lambda x: itertools.groupby([x + 1], key=id),
    "values": lambda x: {"a": x + 1}.values(),
    "items": lambda x: {"a": x + 1}.items(),
    "keys": lambda x: {x + 1: 3}.keys(),
    "proxy": lambda x: types.MappingProxyType({"a": x + 1}),
    "partial": lambda x: functools.partial(torch.add, x + 1),
    "method": lambda x: (x + 1).sum,
    "method of a list": lambda x: [x + 1].copy,
    "method of Python": lambda x: [x + 1].__iter__,
    "caller": lambda x: operator.methodcaller("add", x + 1),
    "function": lambda x: lambda y=x + 1: y,
    "set": lambda x: {x + 1},
    "slice": lambda x: slice(x + 1, None),
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


@pytest.mark.parametrize("case", sorted(set(MADE) - {"numbers", "iter of a function"}))
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
