"""Sizes that depend on open dims, as JSON: a number, a name, or ``[op, left, right]``.

Arguments of views may also be dtypes, ``{"dtype": "int64"}``.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch

_OPS = {
    "+": operator.add,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "max": max,
    "min": min,
}


def value(expression: Any, sizes: Mapping[str, int]) -> Any:
    """The number that an expression stands for; lists of arguments keep their structure."""
    if isinstance(expression, dict):
        if "dtype" in expression:
            return getattr(torch, expression["dtype"])
        return _value(expression["size"], sizes)
    if isinstance(expression, list):
        return [value(item, sizes) for item in expression]
    return expression


def _value(expression: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(expression, str):
        return sizes[expression]
    if isinstance(expression, int):
        return expression
    name, left, right = expression
    return _OPS[name](_value(left, sizes), _value(right, sizes))
