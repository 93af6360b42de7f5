"""What the README and the quick start show runs, block after block, as a reader would type it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_the_code_blocks_run(page):
    text = (ROOT / page).read_text()
    blocks = list(BLOCK.finditer(text))
    assert blocks, f"{page} has no Python block"
    namespace = {"__name__": "quickstart"}
    for block in blocks:
        # Blank lines in front, so that a traceback has the page's line numbers.
        source = "\n" * text.count("\n", 0, block.start(1)) + block[1]
        exec(compile(source, str(ROOT / page), "exec"), namespace)
