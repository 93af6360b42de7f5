"""A program that asks for its place among the ranks is for that place, also out of a file."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

# Registers groups that send nothing.
import torch.testing._internal.distributed.fake_pg
from torch.distributed.device_mesh import DeviceMesh

import funcaot

PLACES = ((0, 1), (0, 2), (1, 2), (3, 4), (0, 2))


@contextlib.contextmanager
def place(rank: int, ranks: int) -> Iterator[None]:
    """This process is one of some ranks inside."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=ranks)
    try:
        yield
    finally:
        dist.destroy_process_group()


class _Turned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + dist.get_rank())


def _hooked(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * (1 + dist.get_rank()))
    return y


def _own_part(x):
    return x.chunk(dist.get_world_size())[dist.get_rank()].sin()


def _differentiated(x):
    x = x.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(_Turned.apply(x).sum(), x)
    return gradient


meshes = {}
FUNCTIONS = {
    "rank": lambda x: x * (1 + dist.get_rank()),
    "rank in a group": lambda x: x * (1 + dist.get_rank(dist.group.WORLD)),
    "size": lambda x: x / dist.get_world_size(),
    "group": lambda x: x + dist.group.WORLD.rank(),
    "running": lambda x: x.sin() if dist.is_initialized() else x.cos(),
    "own part": _own_part,
    "mesh": lambda x: x * dist.init_device_mesh("cpu", (dist.get_world_size(),)).get_local_rank(),
    "coordinate": lambda x: x * (1 + meshes["whole"].get_coordinate()[0]),
    "rule, inside": _differentiated,
    "rule": lambda x: _Turned.apply(x.sin()),
    "hook": _hooked,
}


def _values(function, x):
    x = x.detach().requires_grad_()
    found = function(x)
    if not found.requires_grad:
        return [found]
    found.square().sum().backward()
    return [found.detach(), x.grad]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_groups_in_one_process(name):
    function = FUNCTIONS[name]
    compiled, x = funcaot.compile(function, backend="eager"), torch.arange(8.0)
    for at in (*PLACES, *PLACES):
        with place(*at):
            meshes["whole"] = dist.init_device_mesh("cpu", (at[1],))
            found, expected = _values(compiled, x), _values(function, x)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=str(at))
    if name == "running":
        torch.testing.assert_close(compiled(x), function(x))
    # A program for each place, and none for a call that asks as before; each mesh is another one.
    most = 2 * len(PLACES) if name == "coordinate" else len(set(PLACES)) + 1
    assert len(compiled.entries) <= most


def _rank(x):
    return x * (1 + dist.get_rank())


def _size(x):
    return x / dist.get_world_size()


def _running(x):
    return x.sin() if dist.is_initialized() else x.cos()


@pytest.mark.parametrize(
    ("function", "recaptured"),
    [(_rank, 1), (_own_part, 1), (_size, 0), (_running, 0), (_hooked, 0)],
)
def test_another_rank_finds_it_in_a_file(function, recaptured, tmp_path):
    path, x = tmp_path / "programs", torch.arange(8.0)
    with place(0, 2):
        compiled = funcaot.compile(function, backend="eager", artifacts=path)
        _values(compiled, x)
        assert compiled.save(path).programs == 1
    for at in ((0, 2), (1, 2)):
        with place(*at):
            compiled = funcaot.compile(function, backend="eager", artifacts=path)
            found, expected = _values(compiled, x), _values(function, x)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            assert funcaot.report(compiled).cache_misses == recaptured * at[0]


def _summed(x):
    return functional.all_reduce(x.sin(), "sum", dist.group.WORLD).cos()


def _summed_in_place(x):
    found = x.detach().sin()
    dist.all_reduce(found)
    return found.cos() * x


def _summed_in_a_group(x):
    return functional.all_reduce(x.sin(), "sum", groups["own"]).cos()


def _summed_for_the_rank(x):
    return functional.all_reduce(x * dist.group.WORLD.rank(), "sum", dist.group.WORLD)


def _summed_by_name(x):
    return functional.all_reduce(x.sin(), "sum", groups["own"].group_name).cos()


def _summed_by_text(x):
    return functional.all_reduce(x.sin(), "sum", "1").cos()


def _summed_by_text_read(x):
    return functional.all_reduce(x.sin(), "sum", names["own"]).cos()


groups, names = {}, {"own": "1"}
# What each of them is compiled for in place 0 of 4, with a group of the ranks 0 and 1.
MADE = {function.__name__[1:]: function for function in (
    _summed, _summed_in_place, _summed_in_a_group, _summed_for_the_rank, _summed_by_name,
    _summed_by_text, _summed_by_text_read,
)}  # fmt: skip
# Where a program is looked for: place, the ranks of groups, of which the last one is used; and
# which of the programs are taken there.
_ALL = {*MADE}
_OF_WHOLE = {"summed", "summed_in_place", "summed_for_the_rank"}
_OF_GROUP = {"summed_in_a_group", "summed_by_name"}
WHERE = {
    "the same": ((0, 4), ([0, 1],), _ALL),
    "another rank": ((1, 4), ([0, 1],), _ALL - {"summed_for_the_rank"}),
    "fewer ranks": ((0, 2), ([0, 1],), _ALL - _OF_WHOLE),
    "other ranks": ((0, 4), ([0, 2],), _OF_WHOLE),
    "one more rank": ((0, 4), ([0, 1, 2],), _OF_WHOLE),
    "a twin": ((0, 4), ([0, 1], [0, 1]), _ALL - _OF_GROUP),
    "another name": ((0, 4), ([0, 2], [0, 1]), _OF_WHOLE | _OF_GROUP),
}


def _make_groups(*every):
    for ranks in every:
        groups["own"] = dist.new_group(ranks)


@pytest.mark.parametrize("name", MADE)
def test_a_group_is_what_it_was(name, tmp_path):
    path, x = tmp_path / "programs", torch.arange(8.0).reshape(4, 2)
    function = MADE[name]
    with place(0, 4):
        _make_groups([0, 1])
        compiled = funcaot.compile(function, backend="eager")
        _values(compiled, x)
        assert compiled.save(path).programs == 1
    for where, (at, every, taken) in WHERE.items():
        with place(*at):
            _make_groups(*every)
            compiled = funcaot.compile(function, backend="eager", artifacts=path)
            torch.testing.assert_close(_values(compiled, x), _values(function, x))
            misses = funcaot.report(compiled).cache_misses
            assert misses == (name not in taken), (where, compiled.entries[0].reason)
            if misses:
                assert compiled.entries[0].reason


@pytest.mark.parametrize("shape", [(8, 1), (2, 4), (4, 3)])
def test_another_size_is_a_miss(shape, tmp_path):
    path = tmp_path / "programs"
    with place(0, 2):
        compiled = funcaot.compile(_summed, backend="eager", dynamic=False)
        _values(compiled, torch.ones(4, 2))
        compiled.save(path)
        again = funcaot.compile(_summed, backend="eager", dynamic=False, artifacts=path)
        x = torch.ones(shape)
        torch.testing.assert_close(_values(again, x), _values(_summed, x))
        assert funcaot.report(again).cache_misses == 1


def test_a_group_that_is_gone_ends_a_program():
    compiled, x = funcaot.compile(_summed_in_a_group, backend="eager"), torch.arange(8.0)
    with place(0, 4):
        for ranks in ([0, 1], [0, 2], [0, 1, 2]):
            _make_groups(ranks)
            torch.testing.assert_close(_values(compiled, x), _values(_summed_in_a_group, x))
            dist.destroy_process_group(groups.pop("own"))
    assert len(compiled.entries) == 3


own = {}


def _over_a_mesh(x):
    return functional.all_reduce(x.sin(), "sum", (own["mesh"], 0)).cos()


def _by_a_coordinate(x):
    return x * (1 + own["mesh"].get_coordinate()[0])


def _by_a_part_of_a_mesh(x):
    return functional.all_reduce(x.sin(), "sum", own["part"]) * own["part"].size()


# Where a program is looked for that was made in place 0 of 4 for a mesh of 2 by 2: place, shape,
# names, other ranks in the mesh; and whether those take it that ask for no coordinate.
MESHES = {
    "the same": ((0, 4), (2, 2), "ab", None, True),
    "another shape": ((0, 4), (4, 1), "ab", None, False),
    "other names": ((0, 4), (2, 2), "ba", None, False),
    "made of its ranks": ((0, 4), (2, 2), "ab", [[0, 1], [2, 3]], True),
    "the rank across": ((2, 4), (2, 2), "ab", None, False),
    "more ranks": ((0, 8), (2, 2), "ab", [[0, 1], [2, 3]], True),
    "other ranks": ((0, 8), (2, 2), "ab", [[0, 2], [1, 3]], False),
}


def _make_mesh(shape, names, ranks):
    if ranks is None:
        own["mesh"] = dist.init_device_mesh("cpu", shape, mesh_dim_names=tuple(names))
    else:
        own["mesh"] = DeviceMesh("cpu", ranks, mesh_dim_names=tuple(names))
    own["part"] = own["mesh"]["a"]


@pytest.mark.parametrize("function", [_over_a_mesh, _by_a_coordinate, _by_a_part_of_a_mesh])
def test_a_mesh_is_what_it_was(function, tmp_path):
    path, x = tmp_path / "programs", torch.arange(8.0)
    with place(0, 4):
        _make_mesh((2, 2), "ab", None)
        compiled = funcaot.compile(function, backend="eager")
        _values(compiled, x)
        saved = compiled.save(path)
        assert saved.programs == 1, saved
    for where, (at, shape, names, ranks, taken) in MESHES.items():
        with place(*at):
            _make_mesh(shape, names, ranks)
            compiled = funcaot.compile(function, backend="eager", artifacts=path)
            torch.testing.assert_close(_values(compiled, x), _values(function, x))
            misses = funcaot.report(compiled).cache_misses
            by_coordinate = function is _by_a_coordinate and where == "more ranks"
            expected = not taken or by_coordinate
            assert misses == expected, (where, compiled.entries[0].reason)
