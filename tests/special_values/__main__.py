"""Measure what Inductor does to special values, and write the page of the docs.

    python -m tests.special_values measure [--groups PATTERN ...] [--compilers PATTERN ...]
    python -m tests.special_values page

The first writes ``tests/special_values/measured/<version>-<processor>.json``, the second
``docs/special-values.md`` from all of these files.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
from collections.abc import Iterable, Sequence

from tests.special_values.measured import COMPILERS, load, update
from tests.special_values.page import PAGE, page
from tests.special_values.table import GROUPS


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.special_values")
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="what differs, with this version of torch")
    measuring.add_argument("--groups", nargs="+", default=["*"])
    measuring.add_argument("--compilers", nargs="+", default=["*"])
    commands.add_parser("page", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    if options.command == "measure":
        titles = _matching((group.title for group in GROUPS), options.groups)
        update(_matching(COMPILERS, options.compilers), titles)
    else:
        PAGE.write_text(page(load()))
    return 0


def _matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


if __name__ == "__main__":
    sys.exit(main())
