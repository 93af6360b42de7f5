"""``int(x)`` of a tensor in code that is captured, where the number may stay open.

Python makes a plain number of what ``x.__int__()`` returns, so code that calls ``int`` has to find
something else by that name. It finds it for the one instruction that looks up what is called: what
``int`` is to ``isinstance``, to ``is`` and to whoever keeps it, it is everywhere else.
"""

from __future__ import annotations

import dis
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["has_whole_numbers", "is_whole_number", "note_caller", "trace_of"]

_NAME = "int"
# ``map(int, x)`` only calls it.
_MAP = "map"
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Code that has been seen to call it with a tensor, by ``id``, since a hash of code takes long; and
# where in it that name is looked up to be called.
_calling: dict[int, tuple[weakref.ref[types.CodeType], frozenset[int]]] = {}


def has_whole_numbers(thing: Any) -> bool:
    """Whether something is a tensor of whole numbers."""
    if not isinstance(thing, torch.Tensor) or thing.dtype not in _WHOLE:
        return False
    return thing.layout is torch.strided


def is_whole_number(thing: Any) -> bool:
    """Whether something is a tensor of one whole number."""
    if not has_whole_numbers(thing):
        return False
    return all(type(size) is int and size == 1 for size in thing.shape)


class _Int:
    """What is called in place of ``int``; for all but such numbers it is ``int``."""

    __slots__ = ()

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if len(args) != 1 or keywords:
            return int(*args, **keywords)
        (thing,) = args
        if isinstance(thing, torch.SymInt):
            return thing
        return thing.item() if is_whole_number(thing) else int(thing)


_INT = _Int()


def note_caller() -> bool:
    """Note the code whose call of ``int`` asks a tensor now; whether there is such code."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_of_torch(frame):
        frame = frame.f_back
    if frame is not None and _note(frame):
        return True
    # A generator may go through ``map(int, x)`` of the code around it.
    outer = None if frame is None else frame.f_back
    return outer is not None and not _is_of_torch(outer) and _note(outer)


def _note(frame: types.FrameType) -> bool:
    """Note the code of a frame, if it calls ``int``."""
    if _NAME in frame.f_globals:
        return False
    code = frame.f_code
    if not _places_in(code):
        places = _called_at(code, maps=_MAP not in frame.f_globals)
        if not places:
            return False
        _calling[id(code)] = weakref.ref(code), places
        # Python 3.13 looks at this when the next frame of the code starts.
        frame.f_trace_opcodes = sys.version_info >= (3, 13)
    return True


def trace_of(frame: types.FrameType) -> Callable[..., Any] | None:
    """The trace function of a frame that starts, if its code calls ``int`` with tensors."""
    places = _places_in(frame.f_code)
    if not places or _NAME in frame.f_globals:
        return None
    namespace = frame.f_globals
    frame.f_trace_lines = False
    if not frame.f_trace_opcodes:
        frame.f_trace_opcodes = True
        sys.settrace(sys.gettrace())  # Python 3.12 looks at it here.

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        if event == "opcode" and frame.f_lasti in places:
            namespace[_NAME] = _INT
        elif namespace.get(_NAME) is _INT:
            del namespace[_NAME]
        return trace

    return trace


def _places_in(code: types.CodeType) -> frozenset[int]:
    """Where code that was noted calls it."""
    known = _calling.get(id(code))
    return known[1] if known is not None and known[0]() is code else frozenset()


def _called_at(code: types.CodeType, *, maps: bool) -> frozenset[int]:
    """Where code looks the name up among its globals in order to call it, or to have it mapped.

    Args:
        code: Code that called it.
        maps: Whether ``map`` is Python's.
    """
    if _NAME not in code.co_names:
        return frozenset()
    places, before = set(), ("", False)
    for each in dis.get_instructions(code):
        called = each.opname == "LOAD_GLOBAL" and bool((each.arg or 0) & 1)
        loaded = (each.argval, called) if each.opname == "LOAD_GLOBAL" else ("", False)
        if loaded == (_NAME, True) or (maps and (before, loaded) == ((_MAP, True), (_NAME, False))):
            places.add(each.offset)
        before = loaded
    return frozenset(places)


def _is_of_torch(frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module.partition(".")[0] in ("torch", "funcaot")
