"""The tests of this folder need a GPU and are skipped elsewhere.

``FUNCAOT_TEST_DEVICE=cpu`` runs them on another device, to try the tests themselves.
"""

import os

import pytest
import torch

NAME = os.environ.get("FUNCAOT_TEST_DEVICE", "cuda")


def pytest_collection_modifyitems(items):
    if NAME == "cuda" and not torch.cuda.is_available():
        skipped = pytest.mark.skip(reason="needs a GPU")
        for item in items:
            if "cuda" in item.path.parts:
                item.add_marker(skipped)


@pytest.fixture
def device():
    return NAME


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
