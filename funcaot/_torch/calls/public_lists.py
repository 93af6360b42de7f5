"""Functions of ``torch.foreach``, Python's around those of C, which torch has since 2.15."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["behind"]


def behind(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """What a function of ``torch.foreach`` does once no mode has taken over; None for another.

    Args:
        function: A function of torch.
    """
    if getattr(function, "__module__", None) != "torch.foreach":
        return None
    return getattr(function, "__wrapped__", None)
