"""Each subclass by each program by each order, in three sizes, against eager."""

import pytest
import torch
from torch.distributed.tensor import DTensor, Replicate, Shard

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses import test_distributed_tensors, test_open_sizes
from tests.aot.subclasses.kinds import Factor, TwoTensor, made, run, same, two
from tests.aot.subclasses.programs import UNARY
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
mesh = test_distributed_tensors.mesh
SIZES = (4, 5, 7)


def jagged(n):
    values = made(n, n + 3, 4, grad=False)
    offsets = torch.tensor([0, 2, n, n + 3])
    return torch.nested.nested_tensor_from_jagged(values, offsets).requires_grad_()


KINDS = {
    "two": lambda n, mesh: two(0, n, 4),
    "nested": lambda n, mesh: TwoTensor(
        two(0, n, 4, grad=False), two(3, n, 4, grad=False)
    ).requires_grad_(),
    "metadata": lambda n, mesh: Factor(made(0, n, 4, grad=False), 3).requires_grad_(),
    "sizes as metadata": lambda n, mesh: test_open_sizes.Blocks.of(
        made(0, n, 4, grad=False)
    ).requires_grad_(),
    "replicated": lambda n, mesh: DTensor.from_local(
        made(0, n, 4, grad=False), mesh, [Replicate()]
    ).requires_grad_(),
    "sharded": lambda n, mesh: DTensor.from_local(
        made(0, n, 4, grad=False), mesh, [Shard(0)]
    ).requires_grad_(),
    "jagged": lambda n, mesh: jagged(n),
}
# What comes out has metadata that are computed from sizes and aren't its own.
PER_SIZE = {("sizes as metadata", "expand")}


def comparable(values):
    """Jagged tensors by what is inside of them."""
    found = []
    for value in values:
        if isinstance(value, tuple):
            found += comparable(value)
        elif isinstance(value, torch.Tensor) and value.is_nested:
            found += [type(value).__name__, value.requires_grad, value.values(), value.offsets()]
        else:
            found.append(value)
    return found


def outcome(function, make, order):
    """Results and derivatives; or what eager raises for what a class lacks."""
    try:
        return comparable(run(function, make, order=order))
    except UnsupportedError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever a class raises)
        return type(error).__name__


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("program", UNARY)
@pytest.mark.parametrize("kind", KINDS)
def test_as_in_eager(kind, program, order, mesh):
    function = UNARY[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for n in SIZES:
        wanted = outcome(function, lambda n=n: (KINDS[kind](n, mesh),), order)
        found = outcome(compiled, lambda n=n: (KINDS[kind](n, mesh),), order)
        if isinstance(wanted, str):
            assert isinstance(found, str), f"eager raises {wanted}"
            return
        same(found, wanted)
    if (kind, program) not in PER_SIZE:
        assert len(compiled.entries) <= 2
