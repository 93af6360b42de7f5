"""No call returns what was true before a change: every cell of the matrix, against eager.

Each cell is a small world of its own (``worlds``), made twice. The compiled function is called
twice, so that the generated path is in use; then something that it reads changes, and changes back.
"""

import contextlib

import pytest

import funcaot
from tests.aot.reader.cells import Cell, cells_of, limitation_of, random_cells, sample
from tests.aot.reader.held.worlds import Seen, World, differences, run
from tests.aot.reader.readers import READERS


@pytest.fixture(params=["generated path", "general path"])
def path(request: pytest.FixtureRequest):
    """Calls run generated code, or the general path."""
    with funcaot.config.patch(fast_path=request.param == "generated path"):
        yield request.param


def calls(cell: Cell, *, between: bool = False) -> list[Seen]:
    """What eager shows."""
    with world_of(cell) as world:
        return run(world, world.target, between=between)


def compiled_calls(cell: Cell, *, between: bool = False) -> tuple[list[Seen], int]:
    """What the compiled function shows, and how often it was compiled."""
    with world_of(cell) as world:
        target = funcaot.compile(world.target, backend="eager")
        return run(world, target, between=between), funcaot.report(target).cache_misses


@contextlib.contextmanager
def world_of(cell: Cell):
    world = World(cell.script())
    try:
        yield world
    finally:
        world.close()


def check(cell: Cell, *, between: bool = False) -> None:
    """Compare a cell with eager; where it is limited, an error that says so has to come."""
    eager = calls(cell, between=between)
    assert eager[2] != eager[1] == eager[0], "the change changes nothing"
    assert eager[5] == eager[1], "the change was not undone"
    limitation = limitation_of(cell)
    if limitation is not None:
        with pytest.raises(limitation.error, match=limitation.message):
            compiled_calls(cell, between=between)
        return
    seen, misses = compiled_calls(cell, between=between)
    assert not differences(seen, eager)
    assert misses <= cell.programs, "compiled again when changed back"


@pytest.mark.parametrize("cell", sample(), ids=str)
def test_a_change_is_noticed(cell):
    check(cell)


@pytest.mark.parametrize("cell", sample()[::4], ids=str)
def test_a_change_is_noticed_on_the_general_path(cell):
    with funcaot.config.patch(fast_path=False):
        check(cell)


@pytest.mark.parametrize("value", ["float", "str", "object", "function"])
@pytest.mark.parametrize("holder", ["global_name", "class_as_namespace", "dictionary_item"])
def test_a_backward_reads_when_it_runs(holder, value, path):
    """What changes between a forward and its backward is what the backward reads."""
    check(Cell("function_backward", holder, value, "rebind"), between=True)


@pytest.mark.parametrize("reader", READERS)
def test_functions_of_one_factory(reader):
    """They share their code, and all of them exist from the beginning."""
    for holder in ("dictionary_item", "imported_inside"):
        for cell in cells_of(reader, holder, "closure"):
            check(cell)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_random_cells(seed):
    assert not wrong(random_cells(80, seed=1000 + seed))


def wrong(cells) -> list[str]:
    """The cells that differ from eager."""
    found = []
    for cell in cells:
        try:
            check(cell)
        except (AssertionError, pytest.fail.Exception, RuntimeError, *LOOKUPS) as error:
            found.append(f"{cell}: {type(error).__name__} {str(error)[:200]}")
    return found


LOOKUPS = (NameError, AttributeError, LookupError, TypeError, ValueError)
