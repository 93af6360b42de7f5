"""Processes for the tests of this folder, most of which are slow: starting two takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.distributed.ranks import Ranks

# One of each file, which the fast group runs.
FAST = (
    "test_as_in_eager",
    "test_as_in_one_process[compile(DDP)]",
    "test_as_in_one_process[compile(fully_shard)]",
    "test_compiled",
    "test_processes_serve_several_calls_and_end",
    "test_without_a_group",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the others to the slow group."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.name not in FAST:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two ranks, for the tests of one file."""
    made = Ranks(2)
    yield made
    made.stop()
