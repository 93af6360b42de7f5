"""A pytest plugin that writes down every program of the tests, to compare two states of the code.

    pytest -p tests.record_programs --programs=before.jsonl tests/opinfo tests/aot/effects
    pytest -p tests.record_programs --programs=after.jsonl tests/opinfo tests/aot/effects
    python -m tests.record_programs before.jsonl after.jsonl

The last command prints what differs, test by test, and fails if anything does. What is written down
is what `funcaot.report` says but for timings, the code of every graph, and the effects in words.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_TIMES = re.compile(r"(?:[\w ]+ \d+\.\d ms(?:, )?)+")
_ADDRESS = re.compile(r"0x[0-9a-f]+")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--programs", help="where to write the programs that tests make")


def pytest_configure(config: pytest.Config) -> None:
    target = config.getoption("--programs")
    if target:
        config.pluginmanager.register(_Recorder(Path(target)))


class _Recorder:
    """Keeps the compiled functions of a test until it ends, and writes them down."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.target.write_text("")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Any:
        from funcaot.aot.runtime.compiled import CompiledFunction

        made: list[CompiledFunction] = []
        right = CompiledFunction.__init__

        def noted(function: CompiledFunction, *args: Any) -> None:
            right(function, *args)
            made.append(function)

        CompiledFunction.__init__ = noted  # type: ignore[method-assign]
        try:
            return (yield)
        finally:
            CompiledFunction.__init__ = right  # type: ignore[method-assign]
            with self.target.open("a") as file:
                for function in made:
                    lines = list(map(_steady, _described(function)))
                    file.write(json.dumps([item.nodeid, lines]) + "\n")


def _steady(text: str) -> str:
    """Without what differs from run to run."""
    return _ADDRESS.sub("0x", _TIMES.sub("", text))


def _described(function: Any) -> Iterator[str]:
    from funcaot.report.build import _report

    try:
        report = _report(function)
        yield str(report)
    except Exception as error:  # noqa: BLE001  (a test may leave something that has no report)
        yield f"{type(error).__name__}: {error}"
        return
    for entry in function.entries:
        yield str(entry.effects)
    for part in report.entries:
        for graph in part.graphs:
            yield from _graphs(graph)
        yield from map(str, part.residuals)
        for derivative in (*part.backwards, *part.pushforwards):
            yield from _derived(derivative)


def _graphs(graph: Any) -> Iterator[str]:
    yield f"{graph.name} {graph.compiler} {graph.opaque}\n{graph.graph.code}"
    for derived in graph.derived:
        yield from _graphs(derived)


def _derived(derivative: Any) -> Iterator[str]:
    yield f"{derivative.kind} {derivative.tangents} {derivative.create_graph}"
    for graph in derivative.graphs:
        yield from _graphs(graph)
    for further in derivative.derivatives:
        yield from _derived(further)


def _read(path: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in Path(path).read_text().splitlines():
        test, described = json.loads(line)
        found.setdefault(test, []).append(described)
    return found


def main() -> None:
    before, after = map(_read, sys.argv[1:])
    differing = [test for test in before if before[test] != after.get(test)]
    for test in differing:
        print(test)
        pairs = zip(before[test], after.get(test, ()), strict=False)
        for old, new in pairs:
            for left, right in zip(old, new, strict=False):
                if left != right:
                    print(f"  was: {left}\n  is:  {right}")
    print(
        f"{sum(map(len, before.values()))} programs of {len(before)} tests, {len(differing)} differ"
    )
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main()
