"""The page that compares: its table is what was measured, and funcaot's column is so today."""

import importlib
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def choosing(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("choosing")


@pytest.fixture
def measured():
    return json.loads((ROOT / "docs" / "benchmarks" / "choosing.json").read_text())


def test_the_page_has_the_measured_table(choosing, measured):
    page = (ROOT / "docs" / "choosing.md").read_text()
    table = page.partition(choosing.BEGIN)[2].partition(choosing.END)[0].strip()
    assert table == "\n".join(choosing.table_of(measured))


def test_every_program_was_measured(choosing, measured):
    assert list(measured["programs"]) == list(choosing.PROGRAMS)


def test_what_is_told_of_funcaot_is_so(choosing, measured):
    for title, program in choosing.PROGRAMS.items():
        compiler = choosing.Counting("funcaot")
        expected = choosing.EXPECTED.get(title)
        if expected is None:
            expected = program(choosing.Eagerly("eager"))
        verdict = choosing.verdict(
            lambda p=program, c=compiler: p(c), expected, lambda c=compiler: c.programs
        )
        assert verdict == measured["programs"][title]["funcaot"], title


def test_a_wrong_result_is_told(choosing):
    import torch

    expected = torch.ones(2)
    assert choosing.verdict(lambda: torch.zeros(2), expected, lambda: 1) == "**wrong**"
    assert choosing.verdict(lambda: expected, expected, lambda: 0) == "right, not compiled"

    def raising():
        raise KeyError("x") from TypeError("y")

    assert choosing.verdict(raising, expected, lambda: 1) == "raises TypeError"
