"""``DTensor`` on a mesh of one rank."""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.distributed.tensor.parallel import loss_parallel

import funcaot
from funcaot._torch.distributed.settings import how_it_dispatches
from tests.aot.subclasses.kinds import everything, leaves_behind, made, run, same
from tests.hostile import COMPILER

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


def holding_a_leaf(on):
    """A ``DTensor`` that needs no gradient, around a tensor that does."""
    mesh = on(0, 4, 4).device_mesh
    x = distribute_tensor(made(0, 4, 4, grad=False), mesh, [Replicate()])
    x._local_tensor.requires_grad_()
    return x


def written_by(write):
    def function(x, *others):
        write(x, *others)
        return x.sin().to_local() * 1

    return function


WRITES = {
    "product": (
        written_by(lambda x, y: x.mul_(y)),
        lambda on: (on(0, 4, 4) * 1, on(1, 4, 4)),
    ),
    "another placement": (
        written_by(lambda x, y: x.copy_(y)),
        lambda on: (on(0, 4, 4, placed=Shard(0)) * 1, on(1, 4, 4)),
    ),
    "a row": (written_by(lambda x: x[0].mul_(2)), lambda on: (on(0, 4, 4) * 1,)),
    "squeeze_": (written_by(lambda x: x.squeeze_()), lambda on: (on(0, 4, 4) * 1,)),
    "a leaf inside": (lambda x: x.to_local() * 2, lambda on: (holding_a_leaf(on),)),
    "a leaf inside, by its name": (
        lambda x: x._local_tensor * 2,
        lambda on: (holding_a_leaf(on),),
    ),
}


@pytest.mark.parametrize("program", WRITES)
def test_writes_that_autograd_records(program, mesh):
    function, make = WRITES[program]
    on = make_on(mesh)

    def done(each):
        arguments = make(on)
        leaves = [leaf for value in arguments for leaf in leaves_behind(value)]
        result = each(*arguments)
        if not result.requires_grad:
            return [result, *arguments]
        found = torch.autograd.grad(result.pow(2).sum(), leaves, allow_unused=True)
        return [result, *arguments, *found]

    compiled = funcaot.compile(function, backend=COMPILER)
    for _ in range(3):
        same(done(compiled), done(function))
    assert len(compiled.entries) == 1


def test_a_write_by_which_it_begins_to_require_grad(mesh):
    """Which ``DTensor`` tells among its metadata."""
    on = make_on(mesh)

    def function(x, y):
        return x.mul_(y).sin()

    compiled = funcaot.compile(function, backend=COMPILER)
    for _ in range(3):

        def arguments():
            return on(0, 4, 4, grad=False), on(1, 4, 4)

        same(everything(compiled, arguments), everything(function, arguments))
    assert len(compiled.entries) == 1


def test_later_results_share_a_spec_as_those_of_eager(mesh, monkeypatch):
    """To describe placements and sizes took longer than all else of a small call."""
    described = []

    def unflatten(*given, original=DTensor.__tensor_unflatten__):
        described.append(given)
        return original(*given)

    monkeypatch.setattr(DTensor, "__tensor_unflatten__", staticmethod(unflatten))
    function = lambda x: (x.sin(), x.t() * 2)  # noqa: E731
    compiled = funcaot.compile(function, backend="eager", dynamic=False)
    on, kept = make_on(mesh), []
    for grad, rows in ((False, 4), (True, 4), (False, 5)):
        for call in range(3):
            x = on(call, rows, 3, placed=Shard(0), grad=grad)
            before = len(described)
            found, expected = compiled(x), function(x)
            assert call == 0 or len(described) == before
            for one, other in zip(found, expected, strict=True):
                assert one._spec == other._spec
                assert (one.requires_grad, one.stride()) == (other.requires_grad, other.stride())
                torch.testing.assert_close(one.to_local(), other.to_local())
            kept.append((found, expected))
    for found, expected in kept:
        torch.testing.assert_close(found[0].full_tensor(), expected[0].full_tensor())
        assert type(found[0] + found[0]) is DTensor


def outcome(function, *arguments):
    try:
        return function(*arguments)
    except RuntimeError as error:
        return str(error)


@pytest.mark.parametrize("order", ["inside first", "outside first"])
def test_plain_tensors_are_replicated_where_eager_replicates_them(order, mesh):
    def function(x, y):
        return x * y

    compiled = funcaot.compile(function, backend="eager")
    on = make_on(mesh)
    for call in range(4):
        inside = (call % 2 == 0) is (order == "inside first")
        with implicit_replication() if inside else contextlib.nullcontext():
            arguments = on(call, 3, grad=False), made(call, 3, grad=False)
            found, wanted = (outcome(each, *arguments) for each in (compiled, function))
        assert isinstance(wanted, str) is not inside
        same(found, wanted)


def test_backwards_where_plain_tensors_are_replicated(mesh):
    """The forward's result is multiplied by a plain tensor, and its gradient is."""

    def function(x, y):
        return x * y

    compiled = funcaot.compile(function, backend="eager")
    on = make_on(mesh)
    for inside in (True, False, True, False):
        found = []
        for each in (compiled, function):
            x = on(0, 3)
            with implicit_replication():
                result = each(x, made(1, 3, grad=False)).sum()
            with implicit_replication() if inside else contextlib.nullcontext():
                found.append(outcome(lambda x=x, r=result: torch.autograd.grad(r, x)))
        assert isinstance(found[1], str) is not inside
        same(*found)


def test_by_default_nothing_is_told_of_how_ops_are_dispatched(mesh):
    """The class may be imported after the first call."""
    assert how_it_dispatches() == ()
    with loss_parallel():
        assert how_it_dispatches()
    with implicit_replication():
        assert how_it_dispatches()
    assert how_it_dispatches() == ()


def test_losses_in_parallel_are_another_program(mesh):
    compiled = funcaot.compile(F.cross_entropy, backend="eager")
    target = torch.tensor([1, 0, 2])
    on = make_on(mesh)
    for call in range(4):
        with loss_parallel() if call % 2 else contextlib.nullcontext():

            def run(function, call=call):
                x = on(call, 3, 4, placed=Shard(1))
                whole = DTensor.from_local(target, mesh, [Replicate()])
                loss = outcome(function, x, whole)
                return loss if isinstance(loss, str) else [loss, *torch.autograd.grad(loss, x)]

            same(run(compiled), run(F.cross_entropy))
    assert len(compiled.entries) == 2


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("placed", [Replicate(), Shard(0)], ids=str)
def test_distributed_inside(placed, grad, mesh):
    """A leaf around the memory of the argument, or around a part of it."""

    def function(x):
        return distribute_tensor(x, mesh, [placed])

    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        seen = []
        for each in (compiled, function):
            x = made(call, 4, 3, grad=grad)
            result = each(x)
            local = result._local_tensor
            told = [result.requires_grad, result.is_leaf, local.requires_grad, local.is_leaf]
            with torch.no_grad():
                local[0] += 1
            told += [x._version, result._spec]
            (result * 2).to_local().sum().backward() if grad else None
            seen.append((told, [x.detach(), local.detach(), x.grad, result.grad]))
        assert seen[0][0] == seen[1][0]
        same(seen[0][1], seen[1][1])
    assert len(compiled.entries) == 1


PARTS_OF_MESHES = {
    "its size": lambda x, mesh: x * mesh["b"].size(),
    "its rank": lambda x, mesh: x + mesh["b"].get_local_rank(),
    "around a result": lambda x, mesh: DTensor.from_local(x * 2, mesh["b"], [Shard(0)]).sin(),
    "of two dimensions": lambda x, mesh: DTensor.from_local(x, mesh["a", "c"], [Shard(0)] * 2) * 2,
    "in a transform": lambda x, mesh: torch.func.grad(lambda y: (y * mesh["b"].size()).sum())(x),
    "its ranks": lambda x, mesh: x * (mesh.mesh.sum() + 2) + mesh["b"].mesh,
    "ranks as numbers": lambda x, mesh: x * (max(mesh.mesh.flatten().tolist()) + 2),
}


@pytest.mark.parametrize("program", PARTS_OF_MESHES)
def test_parts_of_a_mesh_that_are_taken_inside(program, mesh):
    """A mesh reads its part off a tensor of ranks, which is no part of the program."""
    del mesh
    whole = init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=("a", "b", "c"))

    def function(x):
        return PARTS_OF_MESHES[program](x, whole)

    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        seen = [run(each, lambda: (made(call, 4 + call, 3),)) for each in (compiled, function)]  # noqa: B023
        same(*seen)
