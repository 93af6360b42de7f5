"""Complex numbers in graphs; code is generated in another way for some, or not by Inductor."""

from __future__ import annotations

import cmath
import math
from typing import Any

from torch import fx

__all__ = ["has_odd_constant", "has_odd_constants"]


def has_odd_constants(module: fx.GraphModule) -> bool:
    """Whether a graph has complex numbers whose ``repr`` isn't code for them."""
    return any(map(has_odd_constant, module.graph.nodes))


def has_odd_constant(node: fx.Node) -> bool:
    """Whether a node is given such a number."""
    return any(map(_is_odd, node.args)) or any(map(_is_odd, node.kwargs.values()))


def _is_odd(value: Any) -> bool:
    """Whether it is, or has in it, a number with ``infj`` or ``nanj``, or with a lost sign."""
    if type(value) is complex:
        parts = (value.real, value.imag)
        negative = any(part == 0.0 and math.copysign(1.0, part) < 0 for part in parts)
        return negative or not cmath.isfinite(value)
    return isinstance(value, tuple | list) and any(map(_is_odd, value))
