"""Runs the notebooks of ``docs/tutorials`` as IPython does, and keeps what their cells give.

    python scripts/run_notebooks.py [PATH ...]    runs and writes them
    make notebooks

Needs IPython and matplotlib, which the extra ``test`` brings; no Jupyter.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "tutorials"
# What a page can show; the first one that a value has.
_KINDS = ("text/html", "image/svg+xml", "text/plain")


class CellError(RuntimeError):
    """A cell raised; ``__cause__`` is what it raised."""


def quiet_shell() -> Any:
    """An IPython whose results aren't printed: they are taken from it."""
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell()
    shell.history_manager.enabled = False
    shell.showtraceback = lambda *args, **kwargs: None
    shell.displayhook.write_output_prompt = lambda: None
    shell.displayhook.write_format_data = lambda *args: None
    shell.displayhook.finish_displayhook = lambda: None
    return shell


def run_cell(shell: Any, source: str) -> list[dict[str, Any]]:
    """What a cell gives, as a notebook keeps it.

    Raises:
        CellError: If the cell raises.
    """
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell(source, store_history=True)
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        raise CellError(f"{type(error).__name__}: {error}\nin the cell:\n{source}") from error
    outputs: list[dict[str, Any]] = []
    if captured.stdout:
        stream = {"output_type": "stream", "name": "stdout"}
        outputs.append({**stream, "text": captured.stdout.splitlines(keepends=True)})
    if result.result is not None:
        data, metadata = shell.display_formatter.format(result.result)
        kind = next(kind for kind in _KINDS if kind in data)
        kept = {kind: data[kind].splitlines(keepends=True)}
        count = shell.execution_count - 1
        output = {"output_type": "execute_result", "execution_count": count}
        outputs.append({**output, "data": kept, "metadata": metadata})
    return outputs


def run(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells give now."""
    main = sys.modules["__main__"]  # the shell puts its own there, and empties it in the end
    shell = quiet_shell()
    cells = []
    try:
        for cell in notebook["cells"]:
            if cell["cell_type"] == "code":
                outputs = run_cell(shell, "".join(cell["source"]))
                cell = {**cell, "outputs": outputs, "execution_count": shell.execution_count - 1}
            cells.append(cell)
    finally:
        shell.history_manager.end_session()
        shell.reset()
        sys.modules["__main__"] = main
    return {**notebook, "cells": cells}


def main(arguments: list[str]) -> int:
    """Run and write notebooks."""
    for path in map(Path, arguments) if arguments else sorted(FOLDER.glob("*.ipynb")):
        began = time.perf_counter()
        made = run(json.loads(path.read_text()))
        path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")
        print(f"{path.name}: {time.perf_counter() - began:.1f} s")
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main(sys.argv[1:]))
