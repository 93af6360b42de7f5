"""``DTensor`` on a mesh of one rank."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

import funcaot
from tests.aot.subclasses.kinds import made, run, same

F = torch.nn.functional


@pytest.fixture(scope="module")
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def make_on(mesh):
    def make(seed, *shape, placed=None, grad=True):
        local = made(seed, *shape, grad=False)
        return DTensor.from_local(local, mesh, [placed or Replicate()]).requires_grad_(grad)

    return make


def layers(x, w, v):
    return F.linear(F.gelu(F.linear(x, w)), v)


PROGRAMS = {
    "pointwise": (lambda mesh, x: x.sin().exp(), lambda on: (on(0, 4, 3),)),
    "no grad": (lambda mesh, x: x.sin(), lambda on: (on(0, 4, 3, grad=False),)),
    "product": (
        lambda mesh, x, y: (x @ y).relu(),
        lambda on: (on(0, 4, 3, placed=Shard(0)), on(1, 3, 5)),
    ),
    "partial sums": (
        lambda mesh, x, y: (x @ y).sum(),
        lambda on: (on(0, 4, 3, placed=Shard(1)), on(1, 3, 5, placed=Shard(0))),
    ),
    "redistributed": (
        lambda mesh, x: x.sum(0).redistribute(mesh, [Replicate()]) * 2,
        lambda on: (on(0, 4, 3, placed=Shard(0)),),
    ),
    "from and to local": (
        lambda mesh, x: (DTensor.from_local(x, mesh, [Shard(0)]) * 2).to_local() * 3,
        lambda on: (made(0, 4, 3),),
    ),
    "gathered": (
        lambda mesh, x: (x * 2).full_tensor() * 3,
        lambda on: (on(0, 4, 3, placed=Shard(0)),),
    ),
    "tensor parallel": (
        lambda mesh, x, w, v: layers(x, w, v),
        lambda on: (on(0, 4, 3), on(1, 6, 3, placed=Shard(0)), on(2, 5, 6, placed=Shard(1))),
    ),
}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program, order, mesh):
    body, make = PROGRAMS[program]
    on = make_on(mesh)

    def function(*arguments):
        return body(mesh, *arguments)

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        found = run(compiled, lambda: make(on), order=order)
        same(found, run(function, lambda: make(on), order=order))
    assert len(compiled.entries) == 1


def test_on_the_default_backend(mesh):
    on = make_on(mesh)
    make = PROGRAMS["tensor parallel"][1]
    compiled = funcaot.compile(layers)
    same(run(compiled, lambda: make(on)), run(layers, lambda: make(on)))


@pytest.mark.parametrize("placed", [Replicate(), Shard(0), Partial()], ids=str)
def test_placements_of_gradients(placed, mesh):
    on = make_on(mesh)

    def function(x):
        return x.sin()

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):

        def tangent(_):
            return DTensor.from_local(made(3, 4, 3, grad=False), mesh, [placed])

        found = run(compiled, lambda: (on(0, 4, 3),), tangent)
        same(found, run(function, lambda: (on(0, 4, 3),), tangent))


def test_placements_and_mesh_are_parts_of_the_signature(mesh):
    on = make_on(mesh)
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    for placed, count in ((Replicate(), 1), (Shard(0), 2), (Shard(1), 3), (Replicate(), 3)):
        x = on(0, 4, 3, placed=placed, grad=False)
        same(compiled(x), x * 2)
        assert len(compiled.entries) == count
    other = init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
    compiled(make_on(other)(0, 4, 3, grad=False))
    assert len(compiled.entries) == 4


def test_a_plain_gradient_is_eagers_error(mesh):
    on = make_on(mesh)
    messages = []
    for function in (lambda x: x.sin(), funcaot.compile(lambda x: x.sin(), backend="eager")):
        x = on(0, 4, 3)
        with pytest.raises(RuntimeError, match="got mixed") as raised:
            torch.autograd.grad(function(x), x, torch.ones(4, 3))
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
