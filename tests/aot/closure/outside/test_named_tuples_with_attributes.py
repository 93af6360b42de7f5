"""A named tuple among the arguments that also has attributes, which a structure doesn't show."""

from collections import namedtuple

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


class Pair(namedtuple("Fields", "a b")):
    pass


def scaled(pair):
    return pair.a * pair.b * getattr(pair, "scale", 1)


@pytest.mark.parametrize("calls", [1, 3])
def test_they_are_refused_also_after_calls_without(calls):
    compiled = funcaot.compile(scaled, backend="eager")
    pair = Pair(torch.ones(2), torch.full((2,), 3.0))
    for _ in range(calls):
        assert torch.equal(compiled(pair), scaled(pair))
    pair.scale = 2
    with pytest.raises(UnsupportedError, match="attributes of its own: scale"):
        compiled(pair)
    del pair.scale
    assert torch.equal(compiled(pair), scaled(pair))


def test_with_fullgraph_off_the_call_runs_as_it_is():
    compiled = funcaot.compile(scaled, backend="eager", fullgraph=False)
    pair = Pair(torch.ones(2), torch.full((2,), 3.0))
    pair.scale = 2
    with pytest.warns(funcaot.errors.CaptureWarning):
        assert torch.equal(compiled(pair), scaled(pair))
