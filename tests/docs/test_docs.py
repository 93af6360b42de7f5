"""The documentation speaks of what there is."""

import contextlib
import importlib
import inspect
import re
from pathlib import Path

import pytest

import funcaot
import funcaot.testing
from funcaot.testing import strategies

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


@pytest.mark.parametrize("name", sorted(set(funcaot.__all__)))
def test_every_public_name_is_in_the_reference(name):
    assert re.search(rf":: funcaot\.{name}\n", (DOCS / "api.md").read_text())


NAMES_OF_TESTING = [f"testing.{name}" for name in funcaot.testing.__all__]
NAMES_OF_TESTING += [f"testing.strategies.{name}" for name in strategies.__all__]


@pytest.mark.parametrize("name", NAMES_OF_TESTING)
def test_every_public_name_for_tests_is_in_the_reference(name):
    assert re.search(rf":: funcaot\.{name}\n", (DOCS / "testing.md").read_text())


DOCUMENTED = sorted(
    {
        name
        for page in ("api.md", "testing.md")
        for name in re.findall(r"auto(?:class|function):: (\S+)", (DOCS / page).read_text())
    }
)
# What they are shown by is compiled for a file, which takes its time: the example of ``export``.
SHOWN_BY_EXPORT = {
    "funcaot.exported.load.Loaded",
    "funcaot.exported.signature.ArtifactSignature",
}


def named(name):
    """What a name stands for: a function where a room is called alike."""
    room, _, attribute = name.rpartition(".")
    with contextlib.suppress(ImportError):
        return getattr(importlib.import_module(room), attribute)
    return getattr(named(room), attribute)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_what_is_documented_has_an_example(name):
    text = inspect.getdoc(named(name)) or ""
    assert text.splitlines()[0].endswith((".", "?", ":"))
    assert ">>> " in text or name in SHOWN_BY_EXPORT


def test_the_operator_is_documented_for_who_calls_it():
    text = funcaot.custom_function_call.__doc__
    assert "py_impl" not in text
    assert "Raises:" in text


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
