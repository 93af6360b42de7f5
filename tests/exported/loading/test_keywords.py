"""A call of an artifact passes arguments by position or by keyword, as the function takes them."""

import functools

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import ArgumentError
from funcaot.exported.loading.keywords import in_order, names_of


def plain(x, y, z=1):
    return x


def mixed(x, /, y, *rest, z, **others):
    return x


class Module(nn.Module):
    def forward(self, positions, cell=None):
        return positions


def test_names():
    assert names_of(plain) == ("x", "y", "z")
    assert names_of(mixed) == ("", "y")
    assert names_of(Module()) == ("positions", "cell")
    assert names_of(functools.partial(plain, 1)) == ("y", "z")
    assert names_of(dict.fromkeys) == ("", "")


# What the function is, how it was exported, how it is called, and what is made of that.
CALLS = [
    (plain, (2, []), ((1,), {"y": 2}), ((1, 2), {})),
    (plain, (2, []), ((), {"y": 2, "x": 1}), ((1, 2), {})),
    (plain, (1, ["y"]), ((1, 2), {}), ((1,), {"y": 2})),
    (plain, (0, ["y", "x"]), ((1, 2), {}), ((), {"y": 2, "x": 1})),
    (plain, (1, ["z"]), ((), {"z": 3, "x": 1}), ((1,), {"z": 3})),
    (mixed, (2, ["z"]), ((1,), {"y": 2, "z": 3}), ((1, 2), {"z": 3})),
    (mixed, (1, ["y", "z"]), ((1, 2), {"z": 3}), ((1,), {"y": 2, "z": 3})),
    # These are refused by what compares structures.
    (plain, (2, []), ((1,), {}), ((1,), {})),
    (plain, (2, []), ((1,), {"w": 2}), ((1,), {"w": 2})),
    (plain, (2, []), ((1, 2, 3), {}), ((1, 2, 3), {})),
    (plain, (2, []), ((1, 2, 3, 4), {}), ((1, 2, 3, 4), {})),
    (mixed, (3, []), ((1, 2), {}), ((1, 2), {})),
    (mixed, (2, []), ((), {"x": 1, "y": 2}), ((), {"x": 1, "y": 2})),
]


@pytest.mark.parametrize(("function", "exported", "given", "expected"), CALLS)
def test_arguments_in_order(function, exported, given, expected):
    assert in_order(names_of(function), exported, given, "The artifact f") == expected


def test_an_argument_that_is_given_twice():
    with pytest.raises(ArgumentError, match="was given y twice"):
        in_order(names_of(plain), (2, []), ((1, 2), {"y": 2}), "The artifact f")


@pytest.mark.slow
def test_an_artifact_is_called_by_keyword(tmp_path):
    def difference(x, y):
        return x - y

    x, y = torch.rand(3), torch.rand(3)
    first = funcaot.load(funcaot.export(difference, (x, y), path=tmp_path / "one.pt2"))
    second = funcaot.load(funcaot.export(difference, (x,), {"y": y}, path=tmp_path / "two.pt2"))
    for artifact in (first, second):
        for found in (artifact(x, y), artifact(x, y=y), artifact(y=y, x=x)):
            torch.testing.assert_close(found, x - y)
        with pytest.raises(ArgumentError, match="another structure"):
            artifact(x)
        with pytest.raises(ArgumentError, match="twice"):
            artifact(x, y, y=y)
