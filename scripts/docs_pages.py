"""Pages of the documentation that are made of other files; ``docs/conf.py`` calls it.

- Each row of ``docs/limits.md`` under a heading of its own (``docs/situations.toml``).
- The notebooks of ``docs/tutorials``, with what their cells gave when they were run last.
- What is changed in torch, version by version (``funcaot/_torch/patch_table.py``).

    python scripts/docs_pages.py    writes docs/generated, which git ignores
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "generated"
_CELLS = re.compile(r"(?<!\\)\|")
# Names with an underscore, and calls.
_CODE = re.compile(r"([\w.]*(?:\w\([\w.]*\)|_)[\w.()]*)")


@dataclass(frozen=True)
class Limit:
    """A row of the table: what, what happens, what to do; and the section that it stands in."""

    what: str
    happens: str
    remedy: str
    section: str


def limits(text: str) -> Iterator[Limit]:
    """The rows of ``limits.md``."""
    section = ""
    for line in text.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        cells = [cell.strip() for cell in _CELLS.split(line.strip())[1:-1]]
        if len(cells) == 3 and cells[0] != "What" and not set(cells[0]) <= {"-"}:
            yield Limit(*cells, section)


def situations(text: str, pages: list[dict[str, Any]]) -> dict[str, list[tuple[str, Limit]]]:
    """The rows with their headings, by page; each row once."""
    found: dict[str, list[tuple[str, Limit]]] = {page["name"]: [] for page in pages}
    for limit in limits(text):
        here = [page for page in pages if page["section"] == limit.section]
        named = [
            (page["name"], heading)
            for page in here
            for heading, begins in page["rows"]
            if limit.what.startswith(begins)
        ]
        if named:
            name, heading = named[0]
        else:
            name, heading = (here or pages)[-1]["name"], limit.what
        found[name].append((heading, limit))
    return found


def limit_page(page: dict[str, Any], rows: list[tuple[str, Limit]]) -> str:
    """A page of situations; links lead one folder up."""
    lines = [f"# {page['title']}", "", page.get("intro", "")]
    lines += ["The same as one table: [Limits](../limits.md).", ""]
    for heading, limit in rows:
        marked = heading if "`" in heading else _CODE.sub(r"`\1`", heading)
        lines += [f"## {marked}", ""]
        if limit.what != heading:
            lines += [f"{sentence(limit.what)}", ""]
        lines += [f"What happens: {sentence(limit.happens, capital=False)}", ""]
        lines += [f"Instead: {sentence(limit.remedy, capital=False)}", ""]
    return one_folder_up("\n".join(lines))


def sentence(text: str, *, capital: bool = True) -> str:
    """Text that ends in a full stop."""
    text = text if text.endswith((".", "?", "!")) else f"{text}."
    return text[0].upper() + text[1:] if capital and text[0].isalpha() else text


def one_folder_up(text: str) -> str:
    """Links to pages of ``docs``, from a folder in it."""
    return re.sub(r"\]\((?!\.\./|[a-z]+:|#)([^)]+)\)", r"](../\1)", text)


def notebook_page(notebook: dict[str, Any], name: str) -> str:
    """A notebook as a page: text, code, and what the code gave.

    Links stay: notebooks lie in a folder of ``docs``, as these pages do.
    """
    parts = [
        "".join(cell["source"]) if cell["cell_type"] == "markdown" else "\n".join(code_cell(cell))
        for cell in notebook["cells"]
    ]
    title, rest = parts[0].split("\n", 1) if "\n" in parts[0] else (parts[0], "")
    note = f"This page is the notebook `docs/tutorials/{name}.ipynb`; it is run as a test."
    return "\n\n".join([title, note, rest.strip(), *parts[1:]]) + "\n"


def code_cell(cell: dict[str, Any]) -> Iterator[str]:
    """A cell's code, and its outputs as HTML or text."""
    yield f"```python\n{''.join(cell['source'])}\n```"
    for output in cell["outputs"]:
        data = output.get("data", {})
        if "text/html" in data:
            yield f"\n```{{raw}} html\n{''.join(data['text/html'])}\n```"
        elif "image/svg+xml" in data:
            yield f"\n```{{raw}} html\n<div>{''.join(data['image/svg+xml'])}</div>\n```"
        else:
            text = "".join(data.get("text/plain", output.get("text", "")))
            yield f"\n```text\n{text.rstrip()}\n```"


def patches_page() -> str:
    """What is changed in torch while funcaot runs, by version."""
    sys.path.insert(0, str(ROOT))
    from funcaot._torch.patch_table import PATCHES

    lines = [
        "# What is mended in torch, by version",
        "",
        "What torch gets wrong or does slowly, and what funcaot changes in it meanwhile. "
        "[Known issues](../known-issues.md) has what isn't mended.",
        "",
        "| in torch, without the change | torch | where it can't be made | name |",
        "|---|---|---|---|",
    ]
    for patch in sorted(PATCHES, key=lambda each: (each.for_time, each.name)):
        versions = patch.versions[0]
        if patch.versions[1] != versions:
            versions = f"{versions} to {patch.versions[1]}"
        lines.append(f"| {patch.why} | {versions} | {patch.without} | `{patch.name}` |")
    return "\n".join(lines) + "\n"


def write(root: Path = ROOT) -> list[Path]:
    """Write all pages, and take away those that aren't made any more."""
    docs = root / "docs"
    pages = tomllib.loads((docs / "situations.toml").read_text())["page"]
    found = situations((docs / "limits.md").read_text(), pages)
    texts = {page["name"]: limit_page(page, found[page["name"]]) for page in pages}
    for path in sorted((docs / "tutorials").glob("*.ipynb")):
        texts[f"tutorial-{path.stem}"] = notebook_page(json.loads(path.read_text()), path.stem)
    texts["patches"] = patches_page()
    folder = docs / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text)
    return [folder / f"{name}.md" for name in texts]


if __name__ == "__main__":
    for written in write():
        print(written.relative_to(ROOT))
