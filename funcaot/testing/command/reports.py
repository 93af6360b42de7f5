"""Results for other programs: JUnit's XML, and annotations of GitHub's workflows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

from funcaot.testing.check import CheckResult, Row
from funcaot.testing.check.rendering import notes_of
from funcaot.testing.check.result import ERROR, UNSUPPORTED, WARNS, WRONG
from funcaot.testing.command.modules import Skipped

LEVELS = {WRONG: "error", ERROR: "error", WARNS: "warning"}


def as_junit(results: Sequence[CheckResult], skipped: Sequence[Skipped] = ()) -> str:
    """A JUnit document: a suite for each Function, a case for each row.

    A missing rule and what couldn't be checked are skipped; a warning is in the case's output.
    """
    root = ElementTree.Element("testsuites")
    for result in results:
        suite = ElementTree.SubElement(root, "testsuite", name=result.name)
        for row in result.rows:
            suite.append(_case(result, row))
        counts = {
            "tests": len(result.rows),
            "failures": sum(row.status == WRONG for row in result.rows),
            "errors": sum(row.status == ERROR for row in result.rows),
            "skipped": sum(row.status == UNSUPPORTED for row in result.rows),
        }
        suite.attrib.update({name: str(count) for name, count in counts.items()})
        suite.set("time", f"{sum(row.seconds for row in result.rows):.3f}")
    for entry in skipped:
        suite = ElementTree.SubElement(
            root, "testsuite", name=entry.name, tests="1", failures="0", errors="0", skipped="1"
        )
        case = ElementTree.SubElement(suite, "testcase", classname=entry.name, name="check")
        ElementTree.SubElement(case, "skipped", message=entry.reason)
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(result: CheckResult, row: Row) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname=result.name, name=row.name, time=f"{row.seconds:.3f}"
    )
    if row.file:
        case.attrib.update({"file": row.file, "line": str(row.line)})
    kind = {WRONG: "failure", ERROR: "error", UNSUPPORTED: "skipped"}.get(row.status)
    if kind is not None:
        ElementTree.SubElement(case, kind, message=row.detail).text = notes_of(row)
    elif row.status == WARNS:
        ElementTree.SubElement(case, "system-out").text = f"warning: {notes_of(row)}"
    return case


def annotations(results: Sequence[CheckResult], skipped: Sequence[Skipped] = ()) -> Iterator[str]:
    """Workflow commands that GitHub shows beside the lines of a change."""
    for result in results:
        for row in result.rows:
            if row.status in LEVELS:
                place = f"file={_property(_near(row.file))},line={row.line}," if row.file else ""
                title = _property(f"{result.name}: {row.name}")
                yield f"::{LEVELS[row.status]} {place}title={title}::{_message(notes_of(row))}"
    for entry in skipped:
        yield f"::notice title={_property(entry.name)}::{_message(f'not checked: {entry.reason}')}"


def _near(file: str) -> str:
    """A path as the repository has it, if the command runs in the repository."""
    root = Path(os.environ.get("GITHUB_WORKSPACE", Path.cwd()))
    path = Path(file).absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else file


def _message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _message(text).replace(":", "%3A").replace(",", "%2C")
