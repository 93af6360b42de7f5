"""The text of an open number in a user's code is that of the number; ``tape`` uses it in captures.

Torch's own code sees the expression, as it does in names of nodes and in messages.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from funcaot._torch.patches import require
from funcaot.base.message_texts import only_for_a_message
from funcaot.base.scopes import SharedPatch

__all__ = ["told_as_numbers"]

_TOLD_EXPRESSIONS = ("funcaot", "sympy", "torch")
# Nobody computes with what these write.
_WRITING = ("logging", "traceback", "warnings")
_KINDS: dict[type, Callable[[Any], Any]] = {
    torch.SymInt: int,
    torch.SymFloat: float,
    torch.SymBool: bool,
}
_hashes: dict[type, Callable[[Any], int]] = {kind: kind.__hash__ for kind in _KINDS}
_originals: dict[type, Callable[[Any], str]] = {kind: kind.__repr__ for kind in _KINDS}


def _representing(kind: type, plain: Callable[[Any], Any]) -> Callable[[Any], str]:
    original = _originals[kind]

    def represent(number: Any) -> str:
        frame = sys._getframe(1)
        asks = str(frame.f_globals.get("__name__")).partition(".")[0]
        if asks in _TOLD_EXPRESSIONS:
            return original(number)
        if number.node.has_hint() and (asks in _WRITING or only_for_a_message(frame)):
            return repr(number.node.hint)
        # The program is for this number then.
        return repr(plain(number))

    return represent


def _formatting(plain: Callable[[Any], Any]) -> Callable[[Any, str], str]:
    def write(number: Any, spec: str) -> str:
        frame = sys._getframe(1)
        asks = str(frame.f_globals.get("__name__")).partition(".")[0]
        if not spec and asks in _TOLD_EXPRESSIONS:
            return str(number)
        if number.node.has_hint() and only_for_a_message(frame):
            return format(number.node.hint, spec)
        return format(plain(number), spec)

    return write


def _hashing(kind: type) -> Callable[[Any], int]:
    original = _hashes[kind]

    def hashed(number: Any) -> int:
        asks = str(sys._getframe(1).f_globals.get("__name__")).partition(".")[0]
        if asks in _TOLD_EXPRESSIONS:
            return original(number)
        # It would stay in a dictionary or a set; the call is captured without open sizes then.
        raise TypeError(f"unhashable type: {kind.__name__}")

    return hashed


def _as_array(plain: Callable[[Any], Any]) -> Callable[..., Any]:
    """NumPy would make an array of objects of it."""

    def array(number: Any, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy as np

        return np.asarray(plain(number), dtype)

    return array


def _replace() -> None:
    for kind, plain in _KINDS.items():
        own = {"__repr__": _representing(kind, plain), "__format__": _formatting(plain)}
        own |= {"__array__": _as_array(plain), "__hash__": _hashing(kind)}
        for name, function in own.items():
            setattr(kind, name, function)


def _restore() -> None:
    for kind, original in _originals.items():
        own = {"__repr__": original, "__format__": object.__format__, "__hash__": _hashes[kind]}
        for name, function in own.items():
            setattr(kind, name, function)
        if "__array__" in vars(kind):
            del kind.__array__  # pyright: ignore[reportAttributeAccessIssue]


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def told_as_numbers() -> Iterator[None]:
    """Let a user's code write open numbers as text: the program is for these numbers then."""
    require("texts")
    with _patch.used():
        yield
