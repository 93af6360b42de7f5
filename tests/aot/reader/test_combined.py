"""Cells of the matrix together: several at once, under transforms, compiled twice, on Inductor."""

import contextlib
import random
import types

import pytest
import torch

import funcaot
from tests.aot.reader.cells import Cell, limitation_of, random_cells, sample
from tests.aot.reader.held.values import NAMES_OF_FUNCTIONS, VALUES
from tests.aot.reader.held.worlds import World, argument, differences, finish, forward, run
from tests.aot.reader.readers import READERS

PLACES = 3
STEPS = 14


def suits(cell: Cell) -> bool:
    """Whether a cell's result can be added to another's."""
    return (
        VALUES[cell.value].keeps_shape
        and cell.change != "delete_error"
        and limitation_of(cell) is None
    )


def several(seed: int) -> list[Cell]:
    """Cells that are read by one function. One of the environment: it has one name."""
    cells = [cell for cell in random_cells(40, seed=seed) if suits(cell)]
    return [cell for cell in cells if "environment" not in cell.holder][:PLACES]


def target_of(worlds: list[World]):
    """A function that adds what each world's target returns, as globals of its own."""
    names = {f"part_{n}": types.SimpleNamespace(target=w.target) for n, w in enumerate(worlds)}
    calls = " + ".join(f"part_{n}.target(x)" for n in range(len(worlds)))
    exec(f"def target(x):\n    return {calls}", names)
    return names["target"]


def state_after(cell: Cell, changes: int) -> int:
    """The state of a cell: each change leads to a new one where it puts another object there."""
    makes_another = cell.programs > 2 or cell.change == "mutate"
    return changes if makes_another or cell.holder == "own_replaced_class" else changes % 2


def check_several(seed: int) -> None:
    """Changes at random places, one after another, as in eager; a program for each state."""
    cells, draw = several(seed), random.Random(seed)
    sides = [[World(cell.script()) for cell in cells] for _ in range(2)]
    eager = target_of(sides[0])
    compiled = funcaot.compile(target_of(sides[1]), backend="eager")
    changes, states = [0] * len(cells), set()
    try:
        for step in range(STEPS):
            states.add(tuple(map(state_after, cells, changes)))
            theirs, ours = finish(*forward(eager)), finish(*forward(compiled))
            assert ours == theirs, (step, changes, [str(cell) for cell in cells], ours, theirs)
            if step % 3:  # sometimes nothing changes between two calls
                at = draw.randrange(len(cells))
                for side in sides:
                    side[at].undo() if changes[at] % 2 else side[at].change()
                changes[at] += 1
    finally:
        for world in (*sides[0], *sides[1]):
            world.close()
    # A cell that finds something missing puts it there in its first call.
    assert funcaot.report(compiled).cache_misses <= len(states) + 1


@pytest.mark.parametrize("seed", range(12))
def test_several_places(seed):
    check_several(seed)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("start", range(0, 300, 30))
@pytest.mark.parametrize("fast", [True, False], ids=["generated path", "general path"])
def test_many_more_places(start, fast):
    with funcaot.config.patch(fast_path=fast):
        for seed in range(1000 + start, 1030 + start):
            check_several(seed)


def under_vmap(call):
    return lambda x: torch.func.vmap(call)(x)


def under_grad(call):
    return lambda x: torch.func.grad(lambda x: call(x).sum())(x.detach())


def under_jvp(call):
    return lambda x: torch.func.jvp(call, (x.detach(),), (torch.ones_like(x),))[1]


def without_grad(call):
    @torch.no_grad()
    def wrapped(x):
        return call(x)

    return wrapped


TRANSFORMS = [under_vmap, under_grad, under_jvp, without_grad]


def transformed(kind) -> list[Cell]:
    """Cells that eager can transform."""
    cells = []
    for cell in random_cells(200, seed=21):
        if not suits(cell) or cell.value in NAMES_OF_FUNCTIONS or "array" in cell.value:
            continue
        if READERS[cell.reader].keeps_shape or cell.reader == "function_forward":
            continue
        if "gradient" in cell.value or "requires_grad" in cell.value or "mutate" in cell.change:
            continue
        cells.append(cell)
    start = 6 * TRANSFORMS.index(kind)
    return cells[start : start + 6]


@pytest.mark.parametrize(
    ("kind", "cell"),
    [(kind, cell) for kind in TRANSFORMS for cell in transformed(kind)],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_change_is_noticed_under_a_transform(kind, cell):
    """A transform straight over a compiled function is compiled with it, and compared as well."""
    seen = []
    for wrap in (lambda target: target, lambda t: funcaot.compile(t, backend="eager")):
        world = World(cell.script())
        try:
            seen.append(run(world, kind(wrap(world.target))))
        finally:
            world.close()
    assert not differences(seen[1], seen[0])


def nested(cell: Cell, *, inner: bool, outer: bool):
    """A target that calls the world's target, each compiled or not."""
    world = World(cell.script())
    names = {"inner": funcaot.compile(world.target, backend="eager") if inner else world.target}
    exec("def target(x):\n    return inner(x) + x", names)
    target = names["target"]
    try:
        return run(world, funcaot.compile(target, backend="eager") if outer else target)
    finally:
        world.close()


@pytest.mark.parametrize("outer", [True, False], ids=["in a compiled one", "alone"])
@pytest.mark.parametrize("cell", [c for c in random_cells(60, seed=31) if suits(c)][:6], ids=str)
def test_a_change_is_noticed_by_a_compiled_function_inside(cell, outer):
    ours, eager = nested(cell, inner=True, outer=outer), nested(cell, inner=False, outer=False)
    assert not differences(ours, eager)


@pytest.mark.parametrize("cell", [cell for cell in sample() if suits(cell)][::60], ids=str)
def test_a_change_is_noticed_on_inductor(cell):
    seen = []
    for wrap in (lambda target: target, funcaot.compile):
        world = World(cell.script())
        with contextlib.closing(world):
            seen.append(run(world, wrap(world.target)))
    # Inductor may compute in another order.
    for ours, theirs in zip(seen[1], seen[0], strict=True):
        torch.testing.assert_close(ours.result, theirs.result, equal_nan=True)
        torch.testing.assert_close(ours.gradient, theirs.gradient, equal_nan=True)


def test_one_argument_for_all_calls():
    """The same tensor, whose gradient is not asked for: nothing but the change is new."""
    x = argument()
    for cell in sample()[::40]:
        if not suits(cell) or "environment" in cell.holder:  # both sides would change one variable
            continue
        sides = [World(cell.script()) for _ in range(2)]
        compiled = funcaot.compile(sides[1].target, backend="eager")
        for step in ("", "", "change", "", "undo", ""):
            for world in sides if step else ():
                getattr(world, step)()
            assert torch.equal(compiled(x), sides[0].target(x)), (cell, step)
        for world in sides:
            world.close()
