"""No call returns what was true before a change: every cell of the matrix, against eager.

Each cell is a small world of its own (``worlds``), made twice. The compiled function is called
twice, so that the generated path is in use; then something that it reads changes, and changes back.
"""

import pytest

import funcaot
from tests.aot.dependencies.cells import Cell, all_cells, limitation_of, random_cells, sample
from tests.aot.dependencies.readers import READERS
from tests.aot.dependencies.worlds import World, run


@pytest.fixture(params=["generated path", "general path"])
def path(request: pytest.FixtureRequest):
    """Calls run generated code, or the general path."""
    with funcaot.config.patch(fast_path=request.param == "generated path"):
        yield request.param


def calls(cell: Cell, *, compiled: bool, between: bool = False):
    world = World(cell.script())
    try:
        target = world.target
        if compiled:
            target = funcaot.compile(target, backend="eager")
        return run(world, target, between=between)
    finally:
        world.close()


def check(cell: Cell, *, between: bool = False) -> None:
    """Compare a cell with eager; where it is limited, an error that says so has to come."""
    eager = calls(cell, compiled=False, between=between)
    assert eager[2] != eager[1] == eager[0], "the change changes nothing"
    assert eager[5] == eager[1], "the change was not undone"
    limitation = limitation_of(cell)
    if limitation is None:
        assert calls(cell, compiled=True, between=between) == eager
    else:
        with pytest.raises(limitation.error, match=limitation.message):
            calls(cell, compiled=True, between=between)


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


@pytest.mark.slow
@pytest.mark.parametrize("reader", READERS)
def test_all_changes_that_a_reader_can_miss(reader, path):
    assert not wrong(cell for cell in all_cells() if cell.reader == reader)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_random_cells(seed, path):
    assert not wrong(random_cells(200, seed=1000 + seed))


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
