"""Random programs over wrappers: ops, writes, views and inputs that are returned, in two sizes.

Each is compared with eager: class, metadata, values, strides, versions, identity, derivatives of
two orders.
"""

import random

import pytest

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses import test_distributed_tensors, test_subclass_table
from tests.aot.subclasses.kinds import everything, same
from tests.aot.subclasses.programs import BINARY, UNARY, WRITES
from tests.hostile import COMPILER

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
mesh = test_distributed_tensors.mesh
# Ops after which the shape is what it was.
KEEPING = (
    "sin", "two", "size", "clone", "detach", "mean", "softmax", "flip", "stack", "where", "relu",
    "clamp", "layer norm", "no grad", "written", "function", "checkpoint",
)  # fmt: skip
ENDING = ("sum", "t", "reshape", "unsqueeze", "part", "column", "expand", "cat", "split", "product")
SIZES = (4, 6, 4, 9, 5)


def program(seed):
    """A function of two tensors, as text and as itself."""
    draw = random.Random(seed)
    steps = []
    for _ in range(draw.randint(1, 4)):
        table = draw.choice((KEEPING, KEEPING, tuple(BINARY), tuple(WRITES)))
        steps.append((draw.choice(table), draw.choice("xyz"), draw.choice("xyz")))
    ending = draw.choice((*ENDING, *KEEPING))
    results = draw.choice(("end", "end and x", "all", "view", "detached"))

    def function(x, y):
        held = {"x": x, "y": y, "z": x * 1}
        for name, first, second in steps:
            if name in BINARY:
                held["z"] = BINARY[name](held[first], held[second])
            elif name in WRITES:
                WRITES[name](held[first])
            else:
                held["z"] = UNARY[name](held[first])
        end = UNARY[ending](held["z"])
        if results == "end and x":
            return end, x
        if results == "all":
            return end, x, y, held["z"]
        if results == "view":
            return end, x[1:]
        return (end, y.detach()) if results == "detached" else (end,)

    return f"{steps} {ending} {results}", function


def arguments(seed, kind, n, mesh):
    """Leaves, results or tensors without gradients."""
    draw = random.Random(seed)
    found = []
    for _ in range(2):
        value, history = (
            test_subclass_table.KINDS[kind](n, mesh),
            draw.choice(("leaf", "result", "none")),
        )
        value = value.detach() if history == "none" else value
        found.append(value * 2 if history == "result" else value)
    return tuple(found)


def check(seed, mesh):
    """Whether the program was compared; it may be refused."""
    kind = random.Random(seed).choice(
        [name for name in test_subclass_table.KINDS if name != "jagged"]
    )
    text, function = program(seed)
    compiled = funcaot.compile(function, backend=COMPILER)
    for n in SIZES:
        wanted = attempt(function, seed, kind, n, mesh)
        found = attempt(compiled, seed, kind, n, mesh)
        if found == "refused":
            return False
        if isinstance(wanted, str):
            assert isinstance(found, str), f"{kind} {text}: eager raises {wanted}"
            return True
        assert not isinstance(found, str), f"{kind} {text}: {found}"
        try:
            same(found, wanted, rtol=1e-4, atol=1e-5)
        except AssertionError as error:
            raise AssertionError(f"{kind} {text}, {n} rows: {error}") from error
    return True


def attempt(function, seed, kind, n, mesh):
    try:
        return everything(function, lambda: arguments(seed, kind, n, mesh))
    except UnsupportedError:
        return "refused"
    except Exception as error:  # noqa: BLE001  (whatever a class raises)
        return f"{type(error).__name__}: {error}"


def test_as_in_eager(mesh):
    assert sum(check(seed, mesh) for seed in range(6)) > 3


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_more(part, mesh):
    compared = sum(check(seed, mesh) for seed in range(40 * part, 40 * part + 40))
    assert compared > 20
