"""A dimension that an artifact leaves open: ``dims`` reads them, ``automatic`` narrows them."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

UNBOUNDED = sys.maxsize


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
        root: The dim that it is computed from, if it is; else empty.
        scale: What that is multiplied by.
        shift: What is added to that.
    """

    name: str
    low: int
    high: int
    is_named: bool = True
    may_be_closed: bool = False
    example: int = 0
    root: str = ""
    scale: int = 1
    shift: int = 0

    def of(self, size: Any) -> Any:
        """What it is where its root has a size."""
        return size * self.scale + self.shift

    def within(self, root: OpenDim) -> OpenDim:
        """The same dim for what its root is now, which may be computed from another one itself."""
        scale, shift, name = self.scale, self.shift, root.name
        if root.root:
            name, shift, scale = root.root, self.of(root.shift), scale * root.scale
        high = UNBOUNDED if root.high >= UNBOUNDED else self.of(root.high)
        low = self.of(root.low)
        return replace(self, low=low, high=high, root=name, scale=scale, shift=shift)

    @property
    def expression(self) -> list[Any]:
        """The same as an artifact writes it, see ``expressions``."""
        return ["+", ["*", self.scale, self.root], self.shift]
