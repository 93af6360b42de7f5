"""Which numbers of NumPy's a program can leave open: for ``signature``, and for ``capture``."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = [
    "NUMPY_KINDS",
    "double",
    "expression_of",
    "is_numpy_float",
    "is_numpy_kind",
    "name_of_kind",
    "with_text",
]

double = np.float64
_FLOATS = frozenset({np.float64, np.float32})
NUMPY_KINDS: frozenset[Any] = _FLOATS | {np.int64, np.int32}


def is_numpy_kind(kind: Any) -> bool:
    """Whether numbers of a class can be open."""
    return kind in NUMPY_KINDS


def is_numpy_float(kind: Any) -> bool:
    """Whether a class is one of such floats."""
    return kind in _FLOATS


def with_text(kind: Any, text: str) -> Any:
    """The number of a class that has a text.

    Args:
        kind: Its class.
        text: Its ``repr``, which names the class since NumPy 2.
    """
    return kind(text.partition("(")[2].removesuffix(")") or text)


def name_of_kind(kind: Any) -> str:
    """The name of a class of numbers in Python, where ``numpy`` is known."""
    return f"numpy.{kind.__name__}" if is_numpy_kind(kind) else kind.__name__


def expression_of(number: Any) -> str | None:
    """A number of NumPy's in Python; None for anything else."""
    kind = type(number)
    return f"{name_of_kind(kind)}({str(number)!r})" if is_numpy_kind(kind) else None
