"""Print which cells of the matrix are stale: a table for each part, not a test.

    python -m tests.aot.reader.survey [--random N] [--seed S] [--all] [--tc] [--general]

Runs the sample that the fast tests run, unless it is told otherwise. With ``--tc`` the cells run on
``torch.compile(backend="eager")`` instead, for comparison.
"""

import argparse
import collections
import sys
import time
import warnings

import torch

import funcaot
from tests.aot.reader.cells import Cell, all_cells, random_cells, sample
from tests.aot.reader.held.worlds import World, run


def compiled(target):
    """``target`` compiled by funcaot."""
    return funcaot.compile(target, backend="eager")


def by_torch(target):
    """``target`` compiled by torch.compile."""
    torch._dynamo.reset()
    return torch.compile(target, backend="eager")


def misses_of(target) -> int:
    """How often a target was compiled by funcaot."""
    return (
        0 if hasattr(target, "_torchdynamo_orig_callable") else funcaot.report(target).cache_misses
    )


def outcome(cell: Cell, compiler) -> tuple[str, str]:
    """How a cell came out, and what was raised."""
    script = cell.script()
    seen = []
    for make in (lambda target: target, compiler):
        world = World(script)
        try:
            target = make(world.target)
            seen.append(run(world, target))
        except Exception as error:  # noqa: BLE001  (a survey reports whatever comes)
            text = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
            return "raises" if seen else "eager raises", text
        finally:
            world.close()
    eager, ours = seen
    if eager[1] == eager[2] or eager[1] != eager[5]:
        return "vacuous", ""
    if eager == ours:
        return ("recompiled" if misses_of(target) > cell.programs else "right"), ""
    return ("wrong" if ours[:2] != eager[:2] else "stale"), ""


def main() -> None:
    """Run the cells and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--tc", action="store_true")
    parser.add_argument("--general", action="store_true")
    parser.add_argument("--list", default="", help="write each cell to a file")
    options = parser.parse_args()
    cells = all_cells() if options.all else sample()
    if options.random:
        cells = random_cells(options.random, options.seed)
    warnings.simplefilter("ignore")
    start = time.perf_counter()
    with funcaot.config.patch(fast_path=not options.general):
        found = {cell: outcome(cell, by_torch if options.tc else compiled) for cell in cells}
    print(f"{len(cells)} cells in {time.perf_counter() - start:.0f} s")
    show(found)
    if options.list:
        with open(options.list, "w") as file:
            for cell, (kind, text) in found.items():
                print(kind.replace(" ", "_"), cell, text, file=file)


def show(found: dict[Cell, tuple[str, str]]) -> None:
    """Print the counts, for all cells and by part."""
    kinds = collections.Counter(kind for kind, _ in found.values())
    print("  ".join(f"{kind} {count}" for kind, count in kinds.most_common()))
    for part in ("reader", "holder", "value", "change"):
        rows = collections.defaultdict(collections.Counter)
        for cell, (kind, _) in found.items():
            rows[getattr(cell, part)][kind] += 1
        print(f"\n{part:42s} {'cells':>6s} " + " ".join(f"{kind:>8s}" for kind in kinds))
        for name, row in sorted(rows.items(), key=lambda item: item[1]["right"] / item[1].total()):
            print(f"{name:42s} {row.total():6d} " + " ".join(f"{row[kind]:8d}" for kind in kinds))
    errors = collections.Counter(text for _, text in found.values() if text)
    print()
    for text, count in errors.most_common(30):
        print(f"{count:5d} {text[:180]}")


if __name__ == "__main__":
    main()
    sys.exit()
