"""Code blocks of the documentation, for the tests that run them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
# A fence may be indented, inside of a list.
_BLOCK = re.compile(r"^( *)```(\w+|\{[\w-]+\})?[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, its text without indentation, and its first line."""

    language: str
    text: str
    line: int


def pages() -> list[Path]:
    """The README and every page."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]


def blocks(path: Path, *languages: str) -> Iterator[Block]:
    """The blocks of a page in these languages, in order."""
    text = path.read_text()
    for found in _BLOCK.finditer(text):
        language = found[2] or ""
        if not languages or language in languages:
            lines = found[3].splitlines(keepends=True)
            body = "".join(line.removeprefix(found[1]) for line in lines)
            yield Block(language, body, text.count("\n", 0, found.start(3)) + 1)


def run(path: Path, block: Block, namespace: dict) -> None:
    """Run a block of Python; a traceback has the page's line numbers."""
    source = "\n" * (block.line - 1) + block.text
    exec(compile(source, str(path), "exec"), namespace)


@contextlib.contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, whose modules can be imported."""
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        os.chdir(before)
        sys.path[:] = path
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
                del sys.modules[name]
