"""Processes for the tests of this folder."""

from collections.abc import Iterator

import pytest

from tests.distributed.ranks import Ranks


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two ranks, for the tests of one file."""
    made = Ranks(2)
    yield made
    made.stop()
