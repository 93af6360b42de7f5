"""What stands for functions of ``math`` while a capture runs: `written_numbers` says what they do.

Code that calls ``math.log(x)`` finds one of them. Code that reads ``math.log`` without a call may
keep it after the capture, or ask whether another function is it: it finds Python's own.
"""

from __future__ import annotations

import dis
import math
import sys
import types
import weakref
from typing import Any

from funcaot.base.scopes import SharedPatch

__all__ = ["QUESTIONS", "StandIn", "complete", "kept_in", "replaced_by", "show"]

# Those that tell what kind of number they are given.
QUESTIONS = ("isfinite", "isnan", "isinf")
# Those that make a number of numbers, and these.
_NAMES = frozenset({
    "sqrt", "exp", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "tanh", "atan",
    "asin", "acos", "sinh", "cosh", "pow", "fabs", "floor", "ceil", *QUESTIONS,
    "atan2", "copysign", "degrees", "erf", "erfc", "fmod", "gcd", "hypot", "isclose", "radians",
})  # fmt: skip
# Instructions that do nothing.
_SILENT = ("CACHE", "EXTENDED_ARG", "RESUME", "NOP", "PRECALL")
_patches: list[SharedPatch] = []
# Where code keeps which function; by ``id``, since a hash of code takes long.
_known: dict[int, tuple[weakref.ref[types.CodeType], dict[int, str]]] = {}


class StandIn:
    """It stands for a function of ``math``, which it is to whoever compares or pickles it."""

    def __init__(self, name: str, original: Any) -> None:
        """Stand for a function.

        Args:
            name: What ``math`` calls it.
            original: The function.
        """
        self.name, self.original = name, original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.original

    def __hash__(self) -> int:
        return hash(self.original)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _function_of_math, (self.name,)


def _function_of_math(name: str) -> Any:
    found = getattr(math, name)
    return found.original if issubclass(type(found), StandIn) else found


def replaced_by(kind: type[StandIn]) -> SharedPatch:
    """What puts stand-ins of a kind into ``math``."""

    def install() -> None:
        for name in _NAMES:
            if type(present := getattr(math, name)) is not kind:
                setattr(math, name, kind(name, present))

    def undo() -> None:
        for name in _NAMES:
            if type(present := getattr(math, name)) is kind:
                setattr(math, name, present.original)

    patch = SharedPatch(install, undo)
    _patches.append(patch)
    return patch


def show(name: str) -> None:
    """Put the function itself into ``math``, until `complete`."""
    setattr(math, name, _function_of_math(name))


def complete() -> None:
    """Put stand-ins there again, if somebody uses them."""
    for patch in _patches:
        patch.complete()


def kept_in(frame: types.FrameType) -> dict[int, str]:
    """Where the code of a frame reads which function without calling it there."""
    code = frame.f_code
    known = _known.get(id(code))
    if known is None or known[0]() is not code:
        _known[id(code)] = known = weakref.ref(code), _places_in(code, frame.f_globals)
    return known[1]


def _places_in(code: types.CodeType, namespace: dict[str, Any]) -> dict[int, str]:
    """Where code reads a function of ``math`` and doesn't call it, or has ``map`` call it."""
    places: dict[int, str] = {}
    if _NAMES.isdisjoint(code.co_names):
        return places
    steps = [each for each in dis.get_instructions(code) if each.opname not in _SILENT]
    for at, each in enumerate(steps):
        if each.opname != "LOAD_ATTR" or each.argval not in _NAMES:
            continue
        before, loaded = steps[at - 2 : at] if at > 1 else (None, steps[at - 1])
        after = steps[at + 1]
        is_math = loaded.opname != "LOAD_GLOBAL" or namespace.get(loaded.argval, math) is math
        if is_math and not _is_called(before, loaded, each, after):
            places[each.offset] = each.argval
    return places


def _is_called(
    before: dis.Instruction | None,
    loaded: dis.Instruction,
    read: dis.Instruction,
    after: dis.Instruction,
) -> bool:
    """Whether a function that is read is called, or mapped, as it stands.

    Args:
        before: The instruction before the function's module is loaded.
        loaded: What loads the module.
        read: What reads the function.
        after: The next one.
    """
    if loaded.opname == "LOAD_GLOBAL" and _has_null(loaded):
        return True
    if before is not None and before.argval == "map":
        return True
    if sys.version_info >= (3, 13):
        return after.opname == "PUSH_NULL" or _has_null(read)
    if before is not None and before.opname == "PUSH_NULL":
        return True
    return sys.version_info >= (3, 12) and _has_null(read)


def _has_null(instruction: dis.Instruction) -> bool:
    """Whether an instruction also puts there what a call looks for."""
    return bool((instruction.arg or 0) & 1)
