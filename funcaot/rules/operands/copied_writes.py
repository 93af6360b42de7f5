"""What a custom rule writes to copies of what it closes over is written to what the user has.

A copy stands for an object, a function, a module's globals, a list or a dictionary in which a
tensor was taken out; ``closures`` makes them.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot.classes.traits import display_name
from funcaot.errors import UnsupportedError

__all__ = [
    "COPIED",
    "CopiedGlobals",
    "GradientOfCopy",
    "Original",
    "Writes",
    "original_of",
    "refuse_writes",
]

_NOTHING = object()
# Functions that stand for the user's where a tensor was taken out.
COPIED: weakref.WeakSet[types.FunctionType] = weakref.WeakSet()


class CopiedGlobals(dict[str, Any]):
    """Globals of a module in which a tensor was taken out.

    Attributes:
        original: The module's own.
    """

    original: dict[str, Any]


@dataclass(frozen=True, eq=False)
class Original:
    """What a copy was made of.

    Attributes:
        get: Gives it; None if it's gone.
        is_held: Whether it is kept alive by this, and by what a graph of autograd holds.
    """

    get: Callable[[], Any]
    is_held: bool = False


def original_of(value: Any) -> Original | None:
    """What gives something of the user's, without keeping it alive where that can be."""
    if isinstance(value, dict) and isinstance(dict.get(value, "__name__"), str):
        return Original(lambda: value)  # globals, which live as long as their functions
    try:
        return Original(weakref.ref(value))
    except TypeError:
        return Original(lambda: value, is_held=True) if isinstance(value, (list, dict)) else None


def refresh(hollow: Any, made: Any, original: Original) -> None:
    """Put into a new copy what is in the original now, but for what was taken out of it.

    Args:
        hollow: The first copy, from which tensors were taken out.
        made: The copy of that.
        original: What the first one was made of.
    """
    now = original.get()
    if now is None:
        return
    _refresh(_vars(hollow), _vars(made), _vars(now))
    if isinstance(made, dict):
        _refresh(hollow, made, now)


def _vars(value: Any) -> dict[str, Any]:
    return getattr(value, "__dict__", {})


def _refresh(hollow: dict[Any, Any], made: dict[Any, Any], now: dict[Any, Any]) -> None:
    for key, value in now.items():
        taken = key in hollow and made.get(key, _NOTHING) is not hollow[key]
        if not taken and made.get(key, _NOTHING) is not value:
            made[key] = value


@dataclass(frozen=True, eq=False)
class Writes:
    """A copy, and what was in it before a function ran.

    Attributes:
        original: What it was made of.
        copy: The copy.
        attributes: What it had as attributes.
        items: What was in it, if it is a list or a dictionary.
    """

    original: Original
    copy: Any
    attributes: dict[str, Any]
    items: Any

    @classmethod
    def to(cls, copy: Any, original: Original) -> Writes:
        """Look at a copy before a function runs."""
        items = None
        if isinstance(copy, dict):
            items = dict(copy.items())
        elif isinstance(copy, list):
            items = [*copy]
        return cls(original, copy, dict(_vars(copy)), items)

    def is_changed(self) -> bool:
        """Whether something was written to the copy."""
        now = Writes.to(self.copy, self.original)
        return not (_are_same(self.attributes, now.attributes) and _are_same(self.items, now.items))

    def repeat(self) -> None:
        """Write to the original what was written to its copy."""
        original = self.original.get()
        if original is None:
            return
        for name, value in _vars(self.copy).items():
            if self.attributes.get(name, _NOTHING) is not value:
                setattr(original, name, value)
        if isinstance(self.copy, dict):
            self._repeat_in_dictionary(original)
        elif isinstance(self.copy, list):
            self._repeat_in_list(original)

    def _repeat_in_dictionary(self, original: dict[Any, Any]) -> None:
        known = {id(value): original.get(key) for key, value in self.items.items()}
        for key in self.items.keys() - self.copy.keys():
            original.pop(key, None)
        for key, value in self.copy.items():
            if self.items.get(key, _NOTHING) is not value:
                original[key] = known.get(id(value), value)

    def _repeat_in_list(self, original: list[Any]) -> None:
        before, now = self.items, self.copy
        if _are_same(before, now):
            return
        known = {id(value): mine for value, mine in zip(before, original, strict=False)}
        original[:] = [known.get(id(value), value) for value in now]


def _are_same(before: Any, now: Any) -> bool:
    """Whether two lists or dictionaries hold the same objects."""
    if isinstance(before, dict):
        if before.keys() != now.keys():
            return False
        before, now = before.values(), [now[key] for key in before]
    return before is None or (len(before) == len(now) and all(map(operator.is_, before, now)))


@dataclass(frozen=True)
class GradientOfCopy:
    """Sees a gradient that a rule adds to the copy of a leaf."""

    copy: torch.Tensor

    def is_changed(self) -> bool:
        """Whether there is one."""
        return self.copy.grad is not None


def refuse_writes(function: type, writes: Sequence[Writes | GradientOfCopy]) -> None:
    """Refuse a rule that changes an object on ctx, of which it was given a copy."""
    for write in writes:
        if write.is_changed():
            is_leaf = isinstance(write, GradientOfCopy)
            what = "adds to the gradient of a tensor" if is_leaf else "changes a"
            kind = "" if is_leaf else f" {type(write.copy).__name__}"
            raise UnsupportedError(
                f"A rule of {display_name(function)} {what}{kind} that forward kept on ctx.",
                remedy="return what it computes, count in an attribute of ctx, or pass an operand.",
            )
