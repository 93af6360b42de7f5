"""Random programs over ``DTensor``s, placed in drawn ways, and so are the gradients that arrive.

Three calls of each, of which some have other placements. A gradient of one result may be missing.
Compared with eager: class, placements, strides, values, versions, identity, gradients of two
orders. Second derivatives are compared by values: eager may leave a sum ``Partial``.
"""

import random

import pytest
import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses import test_distributed_tensors
from tests.aot.subclasses.kinds import made
from tests.aot.subclasses.programs import BINARY, UNARY
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
mesh = test_distributed_tensors.mesh
PLACEMENTS = (Replicate(), Shard(0), Shard(1), Partial(), Partial("avg"))
OPS = ("sin", "two", "clone", "softmax", "relu", "written", "no grad", "function", "where")
STEPS = ("op", "op", "binary", "binary", "moved", "local", "whole", "view", "write", "inside")


def placed(value, mesh, placement):
    """A tensor as the part of one rank."""
    return DTensor.from_local(value, mesh, [placement], run_check=False)


def program(draw, mesh):
    """A function of two ``DTensor``s, as text and as itself."""
    steps = []
    for _ in range(draw.randint(1, 5)):
        step = draw.choice(STEPS)
        name = draw.choice(OPS if step == "op" else list(BINARY))
        steps.append((step, name, draw.choice("xyz"), draw.choice("xyz"), draw.choice(PLACEMENTS)))
    ends = draw.sample(("x", "y", "z", "w", "v"), draw.randint(1, 3))

    def run(x, y):
        held = {"x": x, "y": y, "z": x * 2, "w": y + 1, "v": x * y}
        for step, name, one, other, placement in steps:
            held["w"] = held["z"]
            held["z"] = _step(step, name, held[one], held[other], (mesh, placement))
        return [held[end] for end in ends]

    return f"{steps} {ends}", run


def _step(step, name, one, other, where):
    mesh, placement = where
    if step == "op":
        return UNARY[name](one)
    if step == "binary":
        return BINARY[name](one, other)
    if step == "moved":
        return one.redistribute(mesh, [Replicate() if placement.is_partial() else placement])
    if step == "local":
        return placed(one.to_local() * 2, mesh, placement)
    if step == "whole":
        return placed(one.full_tensor().sin(), mesh, placement)
    if step == "view":
        return one.view(one.shape)
    if step == "write":
        return one.mul_(1.5)
    return placed(one._local_tensor.cos(), mesh, placement)


def given(draw, mesh, seed):
    """Two leaves, results or tensors without gradients."""
    found, leaves = [], []
    for number in range(2):
        value = placed(made(seed + number, 4, 4, grad=False), mesh, draw.choice(PLACEMENTS))
        history = draw.choice(("none", "leaf", "leaf", "result"))
        if history != "none":
            leaves.append(value.requires_grad_())
        found.append(value * 1 if history == "result" else value)
    return found, leaves


def gradients(results, leaves, draw, mesh):
    """Those of two orders, for drawn gradients."""
    outputs = list({id(value): value for value in results if value.requires_grad}.values())
    found = []
    for order in range(2):
        if len(outputs) > 1 and draw.random() < 0.4:
            outputs.pop(draw.randrange(len(outputs)))
        if not (outputs and leaves):
            break
        tangents = [
            torch.ones_like(value)
            if draw.random() < 0.3
            else placed(made(n, *value.shape, grad=False), mesh, draw.choice(PLACEMENTS))
            for n, value in enumerate(outputs)
        ]
        grads = torch.autograd.grad(
            outputs, leaves, tangents, allow_unused=True, create_graph=not order
        )
        found.append(grads)
        outputs = [each for each in grads if each is not None and each.requires_grad]
    return found


def played(function, seed, mesh):
    """What three calls give, until one raises."""
    draw, seen = random.Random(seed), []
    for call in range(3):
        arguments = random.Random(f"{seed} {call if draw.random() < 0.5 else 0}")
        (x, y), leaves = given(arguments, mesh, 10 * seed + call)
        number = draw.random()
        try:
            results = function(x, y)
            first, *second = gradients(results, leaves, random.Random(number), mesh) or [()]
        except UnsupportedError as error:
            return [*seen, ("refused", str(error))]
        except Exception as error:  # noqa: BLE001  (whatever a class or autograd raises)
            return [*seen, ("raised", type(error).__name__)]
        everything = (x, y, *results)
        objects = [[one is other for other in everything] for one in everything]
        counts = [(value._version, value._local_tensor._version) for value in (x, y)]
        seen.append((objects, counts, [*everything, *first], [g for gs in second for g in gs]))
    return seen


def local(value):
    """The part of this rank."""
    return torch.zeros(()) if value is None else value._local_tensor.detach()


def told(value):
    """All but the numbers; of the part of this rank not whether it has a history by itself."""
    if value is None:
        return None
    looks = type(value), value.requires_grad, value.grad_fn is None, value.is_leaf
    return *looks, value.shape, value.stride(), value.__tensor_flatten__(), local(value).stride()


def whole(gradient):
    """Its values, wherever they are."""
    return torch.zeros(()) if gradient is None else gradient.detach().full_tensor()


def check(seed, mesh, backend=COMPILER):
    """How many calls were compared."""
    text, function = program(random.Random(seed), mesh)
    wanted = played(function, seed, mesh)
    found = played(funcaot.compile(function, backend=backend), seed, mesh)
    refused = found[-1][0] == "refused"
    assert refused or len(found) == len(wanted), f"seed {seed}: {text}: {found[-1]} {wanted[-1]}"
    for call, (one, other) in enumerate(zip(found[: len(found) - refused], wanted, strict=False)):
        where = f"seed {seed}, call {call}: {text}"
        assert one[:2] == other[:2], f"{where}: {one[:2]}, eager has {other[:2]}"
        if other[0] == "raised":
            break
        try:
            assert list(map(told, one[2])) == list(map(told, other[2]))
            for a, b in zip(one[2], other[2], strict=True):
                assert_close(local(a), local(b), rtol=1e-4, atol=1e-5)
            assert_close(*(list(map(whole, each[3])) for each in (one, other)))
        except AssertionError as error:
            raise AssertionError(f"{where}: {error}") from error
    return len(found) - refused


def test_placements(mesh):
    assert sum(check(seed, mesh) for seed in range(4)) > 8


def test_placements_on_the_default_backend(mesh):
    assert check(4, mesh, "inductor") > 2


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_more_placements(part, mesh):
    assert sum(check(seed, mesh) for seed in range(50 * part, 50 * part + 50)) > 100
