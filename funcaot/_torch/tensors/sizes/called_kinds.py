"""``int(x)`` and ``float(x)`` of a tensor or size in captured code, where the number may stay open.

Python makes a plain number of what ``x.__int__()`` returns, so code that calls ``int`` has to find
something else by that name. So has code that calls ``min`` or ``max``, which would compare numbers.
It finds it for the one instruction that looks up what is called: what ``int`` is to
``isinstance``, to ``is`` and to whoever keeps it, it is everywhere else.
"""

from __future__ import annotations

import dis
import functools
import sys
import threading
import types
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from funcaot._torch.tensors.sizes import functions_of_math
from funcaot._torch.tensors.sizes.number_tensors import extreme_of, stepping
from funcaot.base.scopes import holding

__all__ = [
    "has_whole_numbers",
    "is_one_float",
    "is_whole_number",
    "kinds_called",
    "note_caller",
    "trace_of",
]

# ``map(int, x)`` only calls it.
_MAP = "map"
_WHOLE = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
# Code that has been seen to call one with a tensor, by ``id``, since a hash of code takes long; and
# where in it which name is looked up to be called.
_calling: dict[int, tuple[weakref.ref[types.CodeType], dict[int, str]]] = {}
# Code that all of this was looked up in.
_looked_at: dict[int, weakref.ref[types.CodeType]] = {}


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


class _Kind:
    """What is called in place of a kind of number.

    Another thread that runs code of the same module may find it there, for that one instruction.
    To it, it is the kind.
    """

    __slots__ = ()
    kind: Any

    def __instancecheck__(self, thing: Any) -> bool:
        return isinstance(thing, self.kind)

    def __subclasscheck__(self, kind: type) -> bool:
        return issubclass(kind, self.kind)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.kind

    def __hash__(self) -> int:
        return hash(self.kind)

    def __or__(self, other: Any) -> Any:
        return self.kind | other

    def __ror__(self, other: Any) -> Any:
        return other | self.kind

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kind, name)


class _Int(_Kind):
    """What is called in place of ``int``; for all but open numbers it is ``int``."""

    __slots__ = ()
    kind = int

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if len(args) != 1 or keywords:
            return int(*args, **keywords)
        (thing,) = args
        if isinstance(thing, torch.SymInt):
            return thing
        if type(thing) is torch.SymFloat:
            return torch.sym_int(thing)
        if hasattr(type(thing), "converted"):
            return thing.converted(int)
        return thing.item() if is_whole_number(thing) else int(thing)


class _Float(_Kind):
    """What is called in place of ``float``; for all but open numbers it is ``float``."""

    __slots__ = ()
    kind = float

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if len(args) != 1 or keywords:
            return float(*args, **keywords)
        (thing,) = args
        if issubclass(type(thing), torch.SymFloat):
            return thing
        if hasattr(type(thing), "converted"):
            return thing.converted(float)
        if type(thing) is torch.SymInt:
            return torch.sym_float(thing)
        if is_whole_number(thing):
            return thing.to(torch.float64).item()
        return thing.item() if is_one_float(thing) else float(thing)


def is_one_float(thing: Any) -> bool:
    """Whether something is a tensor of one float."""
    if not isinstance(thing, torch.Tensor) or not thing.is_floating_point():
        return False
    return thing.layout is torch.strided and all(type(n) is int and n == 1 for n in thing.shape)


class _Extreme(_Kind):
    """What is called in place of ``min`` or ``max``, which would compare open numbers."""

    __slots__ = ("kind",)

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __call__(self, *things: Any, **keywords: Any) -> Any:
        numbers = things[0] if len(things) == 1 and type(things[0]) in (list, tuple) else things
        if keywords:
            return self.kind(*things, **keywords)
        open_one = next((each for each in numbers if hasattr(type(each), "extreme")), None)
        if open_one is None:
            found = extreme_of(self.kind, numbers)
        else:
            found = open_one.extreme(self.kind, numbers)
        return self.kind(*things) if found is NotImplemented else found


_EXTREMES: dict[str, Any] = {"min": _Extreme(min), "max": _Extreme(max)}
_STAND_INS: dict[str, Any] = {"int": _Int(), "float": _Float(), **_EXTREMES}


def note_caller(name: str) -> bool:
    """Note the code whose call asks a tensor now; whether there is such code.

    Args:
        name: What it calls, such as ``int``.
    """
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and _is_of_torch(frame) and not _is_of_a_layer(frame):
        frame = frame.f_back
    if frame is not None and _note(frame, name):
        return True
    # A generator may go through ``map(int, x)`` of the code around it.
    outer = None if frame is None else frame.f_back
    return outer is not None and not _is_of_torch(outer) and _note(outer, name)


def _note(frame: types.FrameType, name: str) -> bool:
    """Note the code of a frame, if it calls a kind of number."""
    if name in frame.f_globals:
        return False
    code = frame.f_code
    known = _places_in(code)
    if name not in known.values():
        places = _called_at(code, name, maps=_MAP not in frame.f_globals)
        if not places:
            return False
        _calling[id(code)] = weakref.ref(code), {**known, **dict.fromkeys(places, name)}
        # Python 3.13 looks at this when the next frame of the code starts.
        frame.f_trace_opcodes = sys.version_info >= (3, 13)
    return True


class _ThisThread(threading.local):
    any_open = False


_this_thread = _ThisThread()


def kinds_called() -> AbstractContextManager[None]:
    """While sizes or numbers are open in this thread: code may call a kind with one."""
    return holding(_this_thread, any_open=True)


def _note_calls(frame: types.FrameType) -> None:
    """Note where the code of a frame calls a kind of number, whatever it calls it with."""
    code = frame.f_code
    known = _EXTREMES if _is_of_an_optimizer(frame) else _STAND_INS
    names = [name for name in known if name in code.co_names]
    if (
        not names
        or (known is _STAND_INS and _is_of_torch(frame) and not _is_of_a_layer(frame))
        or ((seen := _looked_at.get(id(code))) is not None and seen() is code)
    ):
        return
    for name in names:
        _note(frame, name)
    _looked_at[id(code)] = weakref.ref(code)


def trace_of(frame: types.FrameType) -> Callable[..., Any] | None:
    """The trace function of a frame that starts, if some of its instructions have to find others.

    It is one that calls a kind with tensors or sizes, or that keeps a function of ``math``.
    """
    if _this_thread.any_open or stepping.steps:
        _note_calls(frame)
    namespace = frame.f_globals
    places = {at: name for at, name in _places_in(frame.f_code).items() if name not in namespace}
    kept = functions_of_math.kept_in(frame)
    if kept and _is_of_torch(frame):
        kept = {}
    if not places and not kept:
        return None
    frame.f_trace_lines = False
    if not frame.f_trace_opcodes:
        frame.f_trace_opcodes = True
        sys.settrace(sys.gettrace())  # Python 3.12 looks at it here.
    after: list[Callable[[], Any]] = []

    def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
        while after:
            after.pop()()
        if event != "opcode":
            return trace
        if (name := places.get(frame.f_lasti)) is not None:
            namespace[name] = _STAND_INS[name]
            after.append(functools.partial(namespace.pop, name, None))
        elif (name := kept.get(frame.f_lasti)) is not None:
            functions_of_math.show(name)
            after.append(functions_of_math.complete)
        return trace

    return trace


def _places_in(code: types.CodeType) -> dict[int, str]:
    """Where code that was noted calls which kind of number."""
    known = _calling.get(id(code))
    return known[1] if known is not None and known[0]() is code else {}


def _called_at(code: types.CodeType, name: str, *, maps: bool) -> frozenset[int]:
    """Where code looks the name up among its globals in order to call it, or to have it mapped.

    Args:
        code: Code that called it.
        name: The kind of number.
        maps: Whether ``map`` is Python's.
    """
    if name not in code.co_names:
        return frozenset()
    places, before = set(), ("", False)
    for each in dis.get_instructions(code):
        called = each.opname == "LOAD_GLOBAL" and bool((each.arg or 0) & 1)
        loaded = (each.argval, called) if each.opname == "LOAD_GLOBAL" else ("", False)
        if loaded == (name, True) or (maps and (before, loaded) == ((_MAP, True), (name, False))):
            places.add(each.offset)
        before = loaded
    return frozenset(places)


def _is_of_a_layer(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith(("torch.nn.modules.", "torch.nn.utils."))


def _is_of_an_optimizer(frame: types.FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("torch.optim.")


def _is_of_torch(frame: types.FrameType) -> bool:
    module = str(frame.f_globals.get("__name__"))
    return module.partition(".")[0] in ("torch", "funcaot", "sympy")
