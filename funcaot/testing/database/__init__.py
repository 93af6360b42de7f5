"""The database: Functions of every kind, each with samples and an independent reference."""

from __future__ import annotations

from funcaot.testing.database import (
    control,
    custom_rules,
    elementwise,
    forward_only,
    implicit,
    in_place,
    indexing,
    numpy_backed,
    odd_rules,
    old_style,
    reductions,
    several_outputs,
)
from funcaot.testing.records import FunctionInfo

FUNCTIONS: tuple[FunctionInfo, ...] = (
    *elementwise.INFOS,
    *numpy_backed.INFOS,
    *reductions.INFOS,
    *several_outputs.INFOS,
    *in_place.INFOS,
    *odd_rules.INFOS,
    *implicit.INFOS,
    *indexing.INFOS,
    *forward_only.INFOS,
    *old_style.INFOS,
    *control.INFOS,
    *custom_rules.INFOS,
)


def by_name(name: str) -> FunctionInfo:
    """The record of this name.

    Args:
        name: The name in test ids, for example ``"NumpySort"``.

    Raises:
        KeyError: There is none; the message lists the names.
    """
    for info in FUNCTIONS:
        if info.name == name:
            return info
    raise KeyError(f"{name}: not among {', '.join(info.name for info in FUNCTIONS)}")
