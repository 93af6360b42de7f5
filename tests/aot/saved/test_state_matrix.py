"""No program from a file returns what was true where it was saved: cells of the matrix of changes.

A cell is a small world (``tests.aot.reader.held.worlds``), here made several times under one
name, as several processes would make it: one saves, one is as it was there and changes later, and
in one the change comes first.
"""

import itertools

import pytest

import funcaot
from tests.aot.reader.cells import sample
from tests.aot.reader.held import worlds
from tests.aot.reader.held.worlds import World, differences, finish, forward, run
from tests.aot.saved.reloading import is_loaded

_numbers = itertools.count(10_000_000, 10)
FAST = sample()[::12]


def eager_and_compiled(cell, path, monkeypatch):
    """What eager shows, and a function to make the compiled one in a world of its own."""
    number = next(_numbers)

    def world():
        monkeypatch.setattr(worlds, "_numbers", itertools.count(number))
        return World(cell.script())

    def compiled(use, **options):
        made = world()
        try:
            return use(made, funcaot.compile(made.target, backend="eager", **options))
        finally:
            made.close()

    def first(made, target):
        for _ in range(2):
            finish(*forward(target))
        return target.save(path).programs

    saved = compiled(first)
    eager = world()
    try:
        return saved, run(eager, eager.target), compiled
    finally:
        eager.close()


def check(cell, path, monkeypatch):
    """Whether the program was found where nothing had changed."""
    saved, eager, compiled = eager_and_compiled(cell, path, monkeypatch)
    if not saved:
        return False

    def changed_before(world, target):
        world.change()
        return finish(*forward(target))

    assert not differences(compiled(run, artifacts=path), eager)
    assert compiled(changed_before, artifacts=path) == eager[2]
    called = compiled(lambda world, target: (forward(target), target)[1], artifacts=path)
    return is_loaded(called)


@pytest.mark.parametrize("cell", FAST, ids=str)
def test_a_change_is_noticed(cell, tmp_path, monkeypatch):
    check(cell, tmp_path / "programs", monkeypatch)


@pytest.mark.slow
def test_most_cells_are_found(tmp_path, monkeypatch):
    found = [check(cell, tmp_path / "programs", monkeypatch) for cell in sample()[5::12]]
    assert sum(found) > len(found) / 2
