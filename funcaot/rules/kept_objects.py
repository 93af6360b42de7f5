"""Objects that Functions keep on ctx, whose attributes a backward reads when it is traced.

Others may change them until the next backward, for which the pipeline compares what it notes here.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from funcaot.base.scopes import holding
from funcaot.rules.operands.entered import is_of_a_call
from funcaot.rules.operands.reached import may_hold, tensors_reached

__all__ = ["note_kept_objects", "noting_kept"]


class _ThisThread(threading.local):
    kept: list[Any] | None = None


_this_thread = _ThisThread()


@contextlib.contextmanager
def noting_kept() -> Iterator[list[Any]]:
    """While a backward is traced.

    Yields:
        Takes the objects, each once.
    """
    kept: list[Any] = []
    with holding(_this_thread, kept=kept):
        yield kept


def note_kept_objects(values: Iterable[Any]) -> None:
    """Note those among values that others can change, and that hold nothing of a call.

    Args:
        values: What a Function keeps.
    """
    noted = _this_thread.kept
    if noted is None:
        return
    for value in values:
        if isinstance(value, torch.Tensor) or not may_hold(value) or not _may_change(value):
            continue
        known = any(value is each for each in noted)
        if not known and not any(map(is_of_a_call, tensors_reached([value]))):
            noted.append(value)


def _may_change(value: Any) -> bool:
    """Whether code of the user's may change what is in an object: in a process group is nothing."""
    if isinstance(value, (list, dict, set, deque)):
        return True
    kind = type(value)
    own = getattr(value, "__dict__", None) or any(
        "__slots__" in vars(each) for each in kind.__mro__
    )
    return bool(own) and not kind.__module__.startswith("funcaot.")
