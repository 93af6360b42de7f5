"""Measure the silent errors and write the page of the docs.

    python -m tests.silent_errors measure [--cases PATTERN ...] [--compilers PATTERN ...]
    python -m tests.silent_errors page

The first writes ``tests/silent_errors/measured/<version of torch>.json``, the second
``docs/silent-errors.md`` from all of these files.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from tests.silent_errors.measure import load, measure
from tests.silent_errors.page import PAGE, page


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, or write the page."""
    parser = argparse.ArgumentParser(prog="python -m tests.silent_errors")
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure", help="who is right, with this version of torch")
    measuring.add_argument("--cases", nargs="+", default=["*"])
    measuring.add_argument("--compilers", nargs="+", default=["*"])
    commands.add_parser("page", help="write the page from what was measured")
    options = parser.parse_args(arguments)
    if options.command == "measure":
        measure(options.cases, options.compilers)
    else:
        PAGE.write_text(page(load()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
