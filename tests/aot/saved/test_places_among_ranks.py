"""A program that asks for its place among the ranks is for that place, also out of a file."""

import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

# Registers groups that send nothing.
import torch.testing._internal.distributed.fake_pg

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


FUNCTIONS = {
    "rank": lambda x: x * (1 + dist.get_rank()),
    "rank in a group": lambda x: x * (1 + dist.get_rank(dist.group.WORLD)),
    "size": lambda x: x / dist.get_world_size(),
    "group": lambda x: x + dist.group.WORLD.rank(),
    "running": lambda x: x.sin() if dist.is_initialized() else x.cos(),
    "own part": _own_part,
    "mesh": lambda x: x * dist.init_device_mesh("cpu", (dist.get_world_size(),)).get_local_rank(),
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
            found, expected = _values(compiled, x), _values(function, x)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=str(at))
    if name == "running":
        torch.testing.assert_close(compiled(x), function(x))
    # A program for each place, and none for a call that asks as before.
    assert len(compiled.entries) <= len(set(PLACES)) + 1


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
