"""Hold the project's sizes: folders of 16 files, of 500 lines; functions of 60, six parameters.

A function's docstring is not counted (its examples are welcome), nor are ``self`` and ``cls``.

    python scripts/check_lengths.py [PATH ...]
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

MAX_FILES = 16
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_PARAMETERS = 6
DEFAULT_PATHS = ("funcaot", "tests", "examples", "benchmarks", "scripts", "docs/conf.py")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


def function_lines(function: FunctionNode) -> int:
    """Lines from ``def`` to the last statement, without the docstring."""
    first = function.body[0]
    docstring = (
        first.end_lineno - first.lineno + 1 if ast.get_docstring(function) is not None else 0
    )
    return function.end_lineno - function.lineno + 1 - docstring


def parameter_count(function: FunctionNode) -> int:
    """Named parameters, ``self`` and ``cls`` left out."""
    arguments = function.args
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names[1:] if names[:1] in (["self"], ["cls"]) else names)


def offenders(path: Path) -> Iterator[str]:
    """Yield a line for everything in ``path`` that is too long."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > MAX_FILE_LINES:
        yield f"{path}:1: file of {lines} lines (at most {MAX_FILE_LINES})"
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if not isinstance(node, FunctionNode):
            continue
        where = f"{path}:{node.lineno}: {node.name}"
        if (length := function_lines(node)) > MAX_FUNCTION_LINES:
            yield f"{where}: {length} lines (at most {MAX_FUNCTION_LINES})"
        if (count := parameter_count(node)) > MAX_PARAMETERS:
            yield f"{where}: {count} parameters (at most {MAX_PARAMETERS})"


def python_files(paths: list[str]) -> Iterator[Path]:
    """Yield the Python files at and under ``paths``; absent ones are skipped."""
    for path in map(Path, paths):
        if path.is_dir():
            yield from sorted(path.rglob("*.py"))
        elif path.is_file():
            yield path


def full_folders(files: Iterable[Path]) -> Iterator[str]:
    """Yield a line for every folder with too many of the files; a folder in it counts for none."""
    for folder, count in sorted(Counter(path.parent for path in files).items()):
        if count > MAX_FILES:
            yield f"{folder}: {count} files (at most {MAX_FILES})"


def main(arguments: list[str]) -> int:
    """Print the offenders; 1 when there are any."""
    files = list(python_files(arguments or list(DEFAULT_PATHS)))
    found = [line for path in files for line in offenders(path)] + list(full_folders(files))
    print("\n".join(found) if found else "lengths: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
