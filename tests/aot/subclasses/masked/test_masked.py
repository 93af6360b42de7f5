"""Masked tensors, which torch gives no way to take apart: each program as in eager."""

from __future__ import annotations

import contextlib
import functools
import warnings

import pytest

import funcaot
from funcaot.errors import CaptureWarning
from tests.aot.subclasses.masked.masked_programs import PROGRAMS, difference, made, play
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*MaskedTensor:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*is not implemented in __torch_dispatch__:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*[Ss]parse:UserWarning"),
]
# Which numbers show in each of three calls, in the first argument and in the second.
MASKS = {
    "same": [(0, 0), (1, 1), (0, 0)],
    "other": [(0, 1), (2, 3), (0, 0)],
    "all or none": [("all", "all"), (1, 1), ("none", "none")],
}
FAST = (
    *("unary sqrt", "sum of rows", "a softmax", "mul_ of an argument", "its data as they are"),
    *("made by values", "both", "where", "a branch", "mask written"),
)
# What says by the values of masks which ops run, so that each answer has a program of its own.
READ = ("a branch", "masks compared", "an item")
# Sparse masks are compared and coalesced as values, which isn't captured.
AS_THEY_ARE = ("sparse", "sparse and back", "sparse rows")


def _calls(masks, **options):
    def arguments(call, first, second):
        return made(call, first, **options), made(call + 50, second, **options)

    return [functools.partial(arguments, *each) for each in ((i, *m) for i, m in enumerate(masks))]


def _compare(name, masks, tangent, backend=COMPILER, **options):
    function, calls = PROGRAMS[name], _calls(MASKS[masks], **options)
    compiled = funcaot.compile(function, backend=backend)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        wanted = play(function, calls, tangent)
        warnings.simplefilter("always", CaptureWarning)
        found = play(compiled, calls, tangent)
    assert not difference(found, wanted), (masks, tangent, options)
    told = [str(each.message) for each in caught if issubclass(each.category, CaptureWarning)]
    raises = isinstance(wanted[0][0], str)
    if name not in AS_THEY_ARE and not raises:
        assert not told
        assert compiled.entries
    if masks == "same" and name not in (*READ, *AS_THEY_ARE):
        assert len(compiled.entries) <= 1, "a mask's values are in a program"


@pytest.mark.parametrize("name", FAST)
def test_some(name):
    for tangent in ("plain", "its mask"):
        _compare(name, "same", tangent)
    _compare(name, "other", "plain", grad=False)


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_all(name):
    for masks in MASKS:
        _compare(name, masks, "plain", grad=False)
        for tangent in ("plain", "its mask", "other mask"):
            _compare(name, masks, tangent)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a chain of one", "a softmax", "mul_ of an argument", "filled"])
def test_on_inductor(name):
    for grad in (False, True):
        _compare(name, "same", "plain", "inductor", grad=grad)


@pytest.mark.parametrize("layout", ["sparse", "rows"])
def test_sparse_ones_are_as_in_eager(layout):
    for name in ("unary sin", "a number", "its data"):
        function, calls = PROGRAMS[name], _calls(MASKS["same"], layout=layout, grad=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            wanted = play(function, calls, "plain")
            found = play(funcaot.compile(function, backend=COMPILER), calls, "plain")
        assert not difference(found, wanted)


def test_all_of_a_call_is_compiled():
    compiled = funcaot.compile(PROGRAMS["a softmax"], backend=COMPILER, fullgraph=True)
    with contextlib.suppress(UserWarning):
        result = compiled(made(0, 0), made(1, 0))
    assert type(result).__name__ == "MaskedTensor"
    assert len(compiled.entries) == 1
