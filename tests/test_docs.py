"""The documentation speaks of what there is."""

import re
from pathlib import Path

import pytest

import funcaot

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", sorted(set(funcaot.__all__)))
def test_every_public_name_is_in_the_reference(name):
    assert re.search(rf":: funcaot\.{name}\n", (DOCS / "api.md").read_text())


def test_every_page_is_in_the_index():
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    listed = set(re.findall(r"^[\w-]+$", (DOCS / "index.md").read_text(), re.MULTILINE))
    assert pages <= listed


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_to_files_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text())
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_the_make_targets_that_are_shown_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    shown = set()
    for page in ("README.md", "CONTRIBUTING.md"):
        shown |= set(re.findall(r"make ([a-z-]+)", (ROOT / page).read_text()))
    assert shown - {"and"} <= targets


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_that_are_named_are_there(page):
    """``aot/tape/tape`` is a file of the package; ``aot/tape`` a room."""
    for name in re.findall(r"`((?:aot|_torch)/[a-z0-9_/]+)`", (ROOT / page).read_text()):
        path = ROOT / "funcaot" / name
        assert path.is_dir() or path.with_suffix(".py").exists(), name
