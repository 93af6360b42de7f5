"""A dimension that an artifact leaves open: ``dims`` reads them, ``automatic`` narrows them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OpenDim:
    """A dimension that an artifact leaves open.

    Attributes:
        name: Equal names are equal sizes.
        low: The least size.
        high: The largest size.
        is_named: Whether the user named it, so that its bounds are what was asked for.
        may_be_closed: Whether it may turn out to be one number.
        example: The size in the example, of a dim without a name.
    """

    name: str
    low: int
    high: int
    is_named: bool = True
    may_be_closed: bool = False
    example: int = 0
