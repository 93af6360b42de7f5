"""What an imported module has under a qualified name; pickles and saved programs ask."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["named"]


def named(module: str | None, name: str) -> Any:
    """What a module has under a qualified name; None if nothing, or if it isn't imported."""
    found: Any = sys.modules.get(module or "")
    for part in name.split("."):
        found = getattr(found, part, None)
    return found
