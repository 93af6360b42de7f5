"""The command ``python -m funcaot``."""

from __future__ import annotations

import sys

from funcaot.testing.command import main

if __name__ == "__main__":
    sys.exit(main())
