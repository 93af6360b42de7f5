"""Writes to jagged tensors, to their values, and what autograd knows of them afterwards."""

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses import test_distributed_tensors
from tests.aot.subclasses.kinds import everything, leaves_behind, made, same
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
mesh = test_distributed_tensors.mesh
TOTALS = (6, 7, 9)


def jagged(total, *, grad):
    values, offsets = made(total, total, 2, grad=False), torch.tensor([0, 2, total])
    return torch.nested.nested_tensor_from_jagged(values, offsets).requires_grad_(grad)


def of_values(total):
    values = made(total, total, 2) * 1
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, total]))


KINDS = {
    "without grad": lambda total: jagged(total, grad=False),
    "a leaf": lambda total: jagged(total, grad=True),
    "a result": lambda total: jagged(total, grad=True) * 1,
    "of values with a history": of_values,
}
WRITES = {
    "mul_": lambda x: x.mul_(2),
    "by a tensor": lambda x: x.mul_(x.detach().clone()),
    "values": lambda x: x.values().mul_(2),
    "a row of values": lambda x: x.values()[0].mul_(2),
    "the attribute": lambda x: x._values.mul_(2),
    "zero_": lambda x: x.zero_(),
    "copy_": lambda x: x.copy_(x.detach() * 3),
    "sin_": lambda x: x.sin_(),
    "clamp_": lambda x: x.clamp_(min=0.3),
    "two": lambda x: (x.mul_(3), x.values().add_(1)),
    "requires_grad_": lambda x: x.requires_grad_(),
    "a row": lambda x: x.unbind()[0].mul_(2),
}
REFUSED = {
    ("values", "of values with a history"),
    ("a row of values", "of values with a history"),
    ("the attribute", "of values with a history"),
    ("two", "of values with a history"),
}
# Lengths are read, or autograd's node for a write to a view asks for strides as numbers.
PER_SIZE = {
    ("a row", "without grad"),
    ("values", "a result"),
    ("a row of values", "a result"),
    ("two", "a result"),
}


def seen(function, make):
    """What a call leaves: data, versions, histories, gradients; or what it raises."""
    x = make()
    leaves = leaves_behind(x)
    try:
        results = function(x)
    except RuntimeError as error:
        return [type(error).__name__]
    found = [x._version, x._values._version, x.requires_grad, x.is_leaf, x.grad_fn is None]
    for value in (x, *results):
        found += [value is x, value.requires_grad, value.offsets() is x.offsets()]
        found.append(value.detach().values().clone())
    moving = [value.values() for value in (x, *results) if value.requires_grad]
    if moving and leaves:
        losses = [(value * value.detach()).sum() for value in moving]
        try:
            gradients = torch.autograd.grad(losses, leaves, allow_unused=True)
        except NotImplementedError as error:  # torch lacks the ops for a write to jagged values
            return [*found, str(error)]
        found += [g.values() if g is not None and g.is_nested else g for g in gradients]
    return found


@pytest.mark.parametrize("result", ["itself", "new"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", WRITES)
def test_as_in_eager(write, kind, result):
    def function(x):
        WRITES[write](x)
        return (x, x * 2) if result == "itself" else (x.sin(),)

    compiled = funcaot.compile(function, backend=COMPILER)
    for total in TOTALS:
        if (write, kind) in REFUSED:
            with pytest.raises(UnsupportedError, match=r"(?s)Instead"):
                compiled(KINDS[kind](total))
            continue
        same(
            seen(compiled, lambda t=total: KINDS[kind](t)),
            seen(function, lambda t=total: KINDS[kind](t)),
        )
    assert len(compiled.entries) <= (3 if (write, kind) in PER_SIZE else 2)


def test_detaching_in_place_is_refused():
    compiled = funcaot.compile(lambda x: x.detach_() * 2, backend=COMPILER)
    with pytest.raises(UnsupportedError, match=r"(?s)writes to argument 0.*Instead"):
        compiled(jagged(6, grad=True) * 1)


def begins(x, y):
    x.requires_grad_()
    return (x * y).sin()


def ends(x, y):
    return x.detach_() * y


@pytest.mark.parametrize(("function", "grad"), [(begins, False), (ends, True)])
@pytest.mark.parametrize("placed", [Replicate(), Shard(0)], ids=str)
def test_a_distributed_tensor_begins_and_ends_to_require_grad(placed, function, grad, mesh):
    """``DTensor`` tells among its metadata whether it requires grad."""
    on = test_distributed_tensors.make_on(mesh)

    def arguments(n):
        x = on(0, n, 3, placed=placed, grad=grad)
        return x * 1 if grad else x, on(1, n, 3, placed=placed)

    compiled = funcaot.compile(function, backend=COMPILER)
    for n in (4, 5, 7):
        found = everything(compiled, lambda n=n: arguments(n))
        same(found, everything(function, lambda n=n: arguments(n)))
    assert len(compiled.entries) == 2
