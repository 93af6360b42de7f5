"""funcaot's pytest plugin.

It is a package of its own because an entry point is imported in every pytest run of the
environment: importing ``funcaot`` would import torch. This imports it only when a test that
``funcaot.testing`` generated is there.
"""

from __future__ import annotations

import fnmatch
import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

SEED_VARIABLE = "FUNCAOT_TEST_SEED"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("funcaot", "generated tests of Functions")
    group.addoption(
        "--funcaot-transforms",
        metavar="NAMES",
        help="run only generated tests of these transforms, comma-separated patterns: "
        "grad,vmap_of_*",
    )
    group.addoption(
        "--funcaot-seed", metavar="N", type=int, help="seed of the samples of generated tests"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker and hands the seed to the sample generators."""
    config.addinivalue_line("markers", "funcaot: a test that funcaot.testing generated")
    seed = config.getoption("--funcaot-seed")
    if seed is not None:
        # Read when funcaot.testing is imported, in this process or in a worker.
        os.environ[SEED_VARIABLE] = str(seed)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Says which seed and which transforms were asked for."""
    parts = []
    for option in ("seed", "transforms"):
        value = config.getoption(f"--funcaot-{option}")
        if value is not None:
            parts.append(f"{option} {value}")
    return f"funcaot: {', '.join(parts)}" if parts else None


def case_of(item: pytest.Item) -> Any:
    """The generated case that a test runs, or None."""
    generator = sys.modules.get("funcaot.testing.generator")
    if generator is None:
        return None
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    found = (value for value in parameters.values() if isinstance(value, generator.Generated))
    return next(found, None)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks generated tests and leaves out those of transforms that were not asked for."""
    wanted = config.getoption("--funcaot-transforms")
    patterns = [word.strip() for word in wanted.split(",")] if wanted else ["*"]
    kept, left_out = [], []
    for item in items:
        case = case_of(item)
        if case is not None:
            item.add_marker("funcaot")
        chosen = case is None or any(
            fnmatch.fnmatchcase(case.name, pattern) for pattern in patterns
        )
        (kept if chosen else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Adds to a failure: the smallest sample that fails, the graph, how to run it again."""
    report = yield
    case = case_of(item)
    if case is not None and report.when == "call" and report.failed:
        from funcaot.testing.failure import explain

        report.sections.append(("funcaot", case.explain() or explain(case)))
    return report
