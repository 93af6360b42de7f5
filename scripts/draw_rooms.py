"""Draws the package's rooms in their layers, as import-linter holds them: ``docs/rooms.svg``.

    python scripts/draw_rooms.py

An arrow isn't drawn: a room imports from those below it and from nothing else. Each box says how
many files a room has; its tooltip is the first line of the room's docstring.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PICTURE = Path("docs/rooms.svg")
WIDTH, ROW, GAP, PAD = 720, 30, 6, 12


def layers(root: Path) -> dict[str, list[list[str]]]:
    """The layers of each container, from top to bottom, as ``pyproject.toml`` has them."""
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    return {
        contract["containers"][0]: [
            [name.strip(" ()") for name in layer.split("|")] for layer in contract["layers"]
        ]
        for contract in settings["contracts"]
        if contract["type"] == "layers"
    }


def files(root: Path, name: str) -> int:
    """How many modules a dotted name holds."""
    path = root.joinpath(*name.split("."))
    return sum(1 for _ in path.rglob("*.py")) if path.is_dir() else 1


def purpose(root: Path, name: str) -> str:
    """The first line of a module's or folder's docstring."""
    path = root.joinpath(*name.split("."))
    source = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text())) or "").split("\n", 1)[0]


def draw(root: Path) -> str:
    """The picture."""
    found = layers(root)
    shapes, bottom = [], PAD
    for layer in found["funcaot"]:
        rows = [[f"funcaot.{name}" for name in layer]]
        rows += [
            [f"funcaot.{layer[0]}.{name}" for name in inner]
            for inner in found.get(f"funcaot.{layer[0]}", [])
        ]
        top = bottom
        for depth, row in enumerate(rows):
            inset = PAD * min(depth, 1)
            shapes += _row(root, row, bottom, PAD + inset, WIDTH - 2 * (PAD + inset))
            bottom += ROW + GAP
        if len(rows) > 1:
            shapes.append(_frame(top, bottom - top))
            bottom += GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom}" '
        'font-family="sans-serif" font-size="13" role="img">\n'
        "<title>The rooms of funcaot, in layers</title>\n"
    )
    return head + "\n".join(shapes) + "\n</svg>\n"


def _row(root: Path, names: list[str], top: int, left: int, width: int) -> Iterator[str]:
    share = (width - GAP * (len(names) - 1)) / len(names)
    for position, name in enumerate(names):
        x, count = left + position * (share + GAP), files(root, name)
        text = name.rpartition(".")[2] + (f" ({count})" if count > 1 else "")
        yield (
            f"<g><title>{escape(purpose(root, name))}</title>"
            f'<rect x="{x:g}" y="{top}" width="{share:g}" height="{ROW}" rx="4" fill="#4c78a8" '
            'fill-opacity="0.15" stroke="#4c78a8"/>'
            f'<text x="{x + share / 2:g}" y="{top + 20}" text-anchor="middle" fill="#7a8694">'
            f"{escape(text)}</text></g>"
        )


def _frame(top: int, height: int) -> str:
    return (
        f'<rect x="{PAD - 4}" y="{top - 3}" width="{WIDTH - 2 * PAD + 8}" height="{height}" rx="6" '
        'fill="none" stroke="#7a8694" stroke-dasharray="4 3"/>'
    )


def main() -> int:
    """Write the picture."""
    (ROOT / PICTURE).write_text(draw(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
