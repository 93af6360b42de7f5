"""The guides' code runs, block after block."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize(
    "page",
    [
        "guide-functions",
        "guide-training-step",
        "from-jax",
        pytest.param("deploy", marks=pytest.mark.slow),
    ],
)
def test_page(page):
    text = (DOCS / f"{page}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert blocks
    namespace = {"__name__": f"docs.{page}"}
    for block in blocks:
        exec(block, namespace)
