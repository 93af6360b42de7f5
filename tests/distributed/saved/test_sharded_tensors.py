"""One rank compiles functions of ``DTensor``s; another takes what doesn't depend on its place."""

import ast
import inspect
import textwrap

import pytest
import torch
from torch.distributed.tensor import Partial, Replicate, Shard, placement_types

import funcaot
from tests.distributed.saved import sharded

# Torch warns once in a process where ranks draw on CPUs.
pytestmark = pytest.mark.filterwarnings("ignore:DTensor random operators")


def _eager(function, x, order):
    try:
        return sharded.derivatives(function, x, order)
    except Exception as error:  # noqa: BLE001 (to be compared)
        return type(error)


def _compare(compiled, function, given, order):
    """Call with two steps' numbers; whether eager can do it."""
    for step in range(2):
        x = sharded.shared(*given, step)
        expected = _eager(function, x, order)
        if isinstance(expected, type):
            with pytest.raises(expected):
                sharded.derivatives(compiled, x, order)
            return False
        found = sharded.derivatives(compiled, x, order)
        # A derivative that is a sum may have other strides than in eager: a second one, and that
        # of an argument of which a view is returned.
        sums = order if function is sharded.FUNCTIONS["viewed"][0] else order == 2
        last = len(found) - sums
        assert sharded.looks(found)[:last] == sharded.looks(expected)[:last]
        pairs = [[sharded.plain(each).detach() for each in side] for side in (found, expected)]
        torch.testing.assert_close(*pairs)
    return True


def _taken(name, given, order, path, places):
    """What each place captures, forwards and backwards, of what place 0 has saved."""
    function, backend = sharded.FUNCTIONS[name][0], "eager"
    with sharded.place(0, places[-1][1]):
        compiled = funcaot.compile(function, backend=backend, dynamic=False)
        if not _compare(compiled, function, given, order):
            return []
        compiled.save(path)
    captured = []
    for place in places:
        with sharded.place(*place):
            compiled = funcaot.compile(function, backend=backend, dynamic=False, artifacts=path)
            _compare(compiled, function, given, order)
            report = funcaot.report(compiled)
            captured.append((report.cache_misses, report.backward_traces))
            assert not report.cache_misses or compiled.entries[0].reason
    return captured


def _check(name, order, path):
    taken = sharded.FUNCTIONS[name][1]
    ((misses, traces),) = _taken(name, ((4, 6), (Shard(0),)), order, path, [(1, 2)])
    assert misses == (taken == "nothing")
    if taken != "nothing":
        assert (traces == 0) == (taken == "all")


TELLING = (
    "softmax", "flat", "two", "dropout", "whole", "rule by local rank", "columns", "looked up",
    "by coordinate", "by coordinate through torch", "by rank",
)  # fmt: skip


@pytest.mark.parametrize("name", TELLING)
def test_another_rank(name, tmp_path):
    _check(name, 1, tmp_path / "programs")


# Torch can't differentiate the backward of a norm of these twice.
@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in sharded.FUNCTIONS if name != "norm"])
def test_another_rank_at_second_order(name, tmp_path):
    _check(name, 2, tmp_path / "programs")


@pytest.mark.parametrize("name", ["pointwise", "whole", "made inside"])
def test_the_same_rank_in_its_next_process(name, tmp_path):
    given = (5, 3), (Shard(0),)
    assert _taken(name, given, 2, tmp_path / "programs", [(0, 2)]) == [(0, 0)]


# Parts of 2, 2 and 1 rows: the second rank's look like the first one's.
@pytest.mark.parametrize("name", ["made inside", "cut"])
def test_parts_of_other_sizes(name, tmp_path):
    places = [(1, 3), (2, 3)]
    second, third = _taken(name, ((5, 5), (Shard(0),)), 1, tmp_path / "programs", places)
    assert third[0] == 1
    assert second[0] == (name == "made inside")  # It asks for the size of its part.


# What is reduced is padded, and what was padded is cut off again: on the last rank, more of it.
@pytest.mark.parametrize("name", ["columns", "looked up"])
@pytest.mark.parametrize("order", [0, 1])
def test_parts_that_are_padded(name, order, tmp_path):
    places = [(1, 3), (2, 3)]
    captured = _taken(name, ((5, 5), (Partial(),)), order, tmp_path / "programs", places)
    assert [misses for misses, _ in captured] == [1, 1]


@pytest.mark.long
@pytest.mark.parametrize(("size", "ranks"), [((4, 6), 2), ((5, 5), 3), ((1, 3), 2)])
@pytest.mark.parametrize("placement", sharded.PLACEMENTS)
@pytest.mark.parametrize("name", sharded.FUNCTIONS)
def test_values_are_eagers_on_every_rank(name, placement, size, ranks, tmp_path):
    if (name, placement) == ("flat", "columns"):
        pytest.skip("torch can't make such a tensor again, so it isn't compiled")
    given = size, sharded.PLACEMENTS[placement]
    places = [(rank, ranks) for rank in range(ranks)]
    path, order = tmp_path / "programs", 2
    captured = _taken(name, given, order, path, places) or _taken(name, given, 1, path, places)
    assert not captured or name in ("by offset", "viewed") or captured[0] == (0, 0)


# --- other meshes -------------------------------------------------------------------------------

# Where a program is looked for that was made in place 0 of 4, on a mesh of 2 by 2.
MESHES = {
    "the same": ((0, 4), (2, 2), True),
    "the same row": ((1, 4), (2, 2), False),
    "another shape": ((0, 4), (4, 1), False),
    "more ranks": ((0, 8), (4, 2), False),
}


@pytest.mark.parametrize("where", MESHES)
def test_another_mesh(where, tmp_path):
    at, shape, is_taken = MESHES[where]
    path, function = tmp_path / "programs", sharded.FUNCTIONS["pointwise"][0]
    given = (8, 4), (Shard(0), Replicate())
    with sharded.place(0, 4, (2, 2)):
        compiled = funcaot.compile(function, backend="eager", dynamic=False)
        _compare(compiled, function, given, 1)
        assert compiled.save(path).programs == 1
    with sharded.place(*at, shape):
        compiled = funcaot.compile(function, backend="eager", dynamic=False, artifacts=path)
        _compare(compiled, function, given, 1)
        assert funcaot.report(compiled).cache_misses == (not is_taken)


# --- what torch's code is trusted with ------------------------------------------------------------


@pytest.mark.parametrize("name", ["_make_replicate_tensor", "_reduce_shard_tensor"])
def test_torch_only_asks_whether_it_is_in_the_mesh(name):
    """The functions of which that is taken for granted read the coordinate in no other way."""
    owner = next(
        kind for kind in (placement_types.Replicate, placement_types.Shard) if hasattr(kind, name)
    )
    tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(owner, name))))
    named = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    read = [each for each in named if each.id == "my_coordinate" and isinstance(each.ctx, ast.Load)]
    tested = [
        node.left
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Is)
    ]
    assert read
    assert all(any(each is left for left in tested) for each in read)
