"""What ops do besides computing: draws, and writes to what was there; the tracing mode tells of it.

Whoever runs code that is to do nothing else than compute listens meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from funcaot._torch.tensors.ops import written_arguments

__all__ = ["Deeds", "listen", "tell"]


class Deeds:
    """What the ops of a piece of code did.

    Attributes:
        what: The first thing that isn't computing, in words; empty if there was none.
    """

    what = ""

    def __init__(self) -> None:
        """Nothing yet."""
        self._made: set[int] = set()
        self._others: set[int] = set()

    def note(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """Note an op that ran."""
        if torch.Tag.nondeterministic_seeded in op.tags:
            self.what = self.what or "draws random numbers"
        self._others |= _memory_of((args, kwargs)) - self._made
        if op._schema.is_mutable:
            written = _memory_of([*written_arguments(op, args, kwargs)])
            if written - self._made:
                self.what = self.what or "writes to a tensor"
        self._made |= _memory_of(result) - self._others

    def add(self, part: Deeds) -> None:
        """Count what a part of the code made as made here."""
        self._made |= part._made


class _Here(threading.local):
    listener: Deeds | None = None


_here = _Here()


def listen(listener: Deeds | None) -> None:
    """From now on, tell the ops of this thread to a listener, or to nobody."""
    _here.listener = listener


def tell(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
    """Tell of an op that ran, if somebody listens."""
    if _here.listener is not None:
        _here.listener.note(op, args, kwargs, result)


def _memory_of(values: Any) -> set[int]:
    leaves = tree_leaves(values)
    tensors = [x for x in leaves if isinstance(x, torch.Tensor) and x.layout is torch.strided]
    return {x.untyped_storage()._cdata for x in tensors}
