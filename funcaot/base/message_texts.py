"""Whether a text that code is writing can only end in a message; ``_torch`` asks of open sizes.

``check(n == m, f"{n} rows, not {m}")`` writes its text in every call and uses it when it fails. A
program is for all sizes then: what it does doesn't depend on the text.
"""

from __future__ import annotations

import builtins
import dis
import functools
import inspect
import logging
import types
import warnings
from collections.abc import Sequence
from typing import Any

__all__ = ["only_for_a_message"]

_SKIPPED = {"CACHE", "EXTENDED_ARG", "KW_NAMES", "NOP", "PRECALL", "RESUME"}
_LOADS = {"LOAD_CLOSURE", "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_NAME"}
_ATTRIBUTES = {"LOAD_ATTR", "LOAD_METHOD"}
# How many values an instruction takes from the stack, where it puts one there.
_TAKEN = {
    "BINARY_OP": 2,
    "BINARY_SUBSCR": 2,
    "BINARY_SLICE": 3,
    "COMPARE_OP": 2,
    "CONTAINS_OP": 2,
    "CONVERT_VALUE": 1,
    "FORMAT_SIMPLE": 1,
    "FORMAT_WITH_SPEC": 2,
    "IS_OP": 2,
    "TO_BOOL": 1,
    "UNARY_INVERT": 1,
    "UNARY_NEGATIVE": 1,
    "UNARY_NOT": 1,
}
_BUILT = {"BUILD_LIST", "BUILD_SLICE", "BUILD_STRING", "BUILD_TUPLE"}
# What makes a longer text of a text.
_JOINING = {"BINARY_OP", "BUILD_STRING", "CONVERT_VALUE", "FORMAT_SIMPLE", "FORMAT_VALUE"}
_WRITERS = {"ascii", "format", "repr", "str"}
_LEVELS = {"critical", "debug", "error", "exception", "info", "log", "warning"}
_MISSING = object()


def only_for_a_message(frame: types.FrameType) -> bool:
    """Whether the text that is written now is an argument of what only tells or raises it.

    Args:
        frame: Code that writes it, at the instruction that does.
    """
    code = _instructions(frame.f_code)
    at = next((i for i, each in enumerate(code) if each.offset == frame.f_lasti), None)
    if at is None:
        return False
    if (call := _told_at(code, at, frame)) is None:
        return False
    at, place = call
    function = _called(code, at, frame)
    if _tells(function, place):
        return True
    return _only_raises(function, place) and not _is_caught(frame)


@functools.lru_cache(maxsize=16)
def _instructions(code: types.CodeType) -> tuple[dis.Instruction, ...]:
    """What code does, kept for code that writes many texts."""
    return tuple(dis.get_instructions(code))


def _told_at(
    code: Sequence[dis.Instruction], at: int, frame: types.FrameType
) -> tuple[int, int | str] | None:
    """The call that takes the text, and as which argument; None where it goes elsewhere."""
    writes = code[at].opname
    if writes in ("CALL", "CALL_KW"):
        function = _called(code, at, frame)
        if _tells(function, 0):
            return at, 0
        name = getattr(function, "__name__", "")
        if name not in _WRITERS or getattr(function, "__self__", builtins) is not builtins:
            if not _formats(code, at):
                return None
    elif writes not in _JOINING and writes != "FORMAT_WITH_SPEC":
        return None
    above = 0
    for i in range(at + 1, len(code)):
        effect = _effect(code[i])
        if effect is None:
            return None
        taken, put = effect
        if taken <= above:
            above += put - taken
        elif code[i].opname in ("CALL", "CALL_KW"):
            place = _place(code, i, above, frame.f_code.co_consts)
            return None if place is None else (i, place)
        elif code[i].opname in _JOINING:
            above = 0
        else:
            return None
    return None


def _formats(code: Sequence[dis.Instruction], at: int) -> bool:
    """Whether a call is that of a method ``format`` of a text that the code holds."""
    first = _first_of(code, at)
    if first is None or code[first].argval != "format" or code[first].opname not in _ATTRIBUTES:
        return False
    before = next(each for each in reversed(code[:first]) if each.opname not in _SKIPPED)
    return before.opname == "LOAD_CONST" and type(before.argval) is str


def _effect(each: dis.Instruction) -> tuple[int, int] | None:
    """How many values an instruction takes from the stack and puts there; None if it may jump."""
    name, number = each.opname, each.arg or 0
    if name in _SKIPPED:
        return 0, 0
    if name in _LOADS or name == "PUSH_NULL":
        return 0, 1
    if name == "LOAD_FAST_LOAD_FAST":
        return 0, 2
    if name == "LOAD_GLOBAL":
        return 0, 1 + (number & 1)
    if name in _ATTRIBUTES:
        # Also where a method and what it belongs to are put there one by one.
        return 1, 1 + dis.stack_effect(each.opcode, number)
    if name == "FORMAT_VALUE":
        return 1 + bool(number & 4), 1
    if name in _BUILT:
        return number, 1
    if name in ("CALL", "CALL_KW"):
        return number + 2 + (name == "CALL_KW"), 1
    taken = _TAKEN.get(name)
    return None if taken is None else (taken, 1)


def _place(
    code: Sequence[dis.Instruction], at: int, above: int, constants: Sequence[Any]
) -> int | str | None:
    """Which argument of a call lies below so many others on the stack."""
    number = code[at].arg or 0
    names: tuple[str, ...] = ()
    last = [each for each in code[max(0, at - 3) : at] if each.opname != "PRECALL"]
    if last and last[-1].opname == ("LOAD_CONST" if code[at].opname == "CALL_KW" else "KW_NAMES"):
        names = constants[last[-1].arg or 0]
    above -= code[at].opname == "CALL_KW"
    if not 0 <= above < number:
        return None
    return names[-1 - above] if above < len(names) else number - 1 - above


def _first_of(code: Sequence[dis.Instruction], at: int) -> int | None:
    """The instruction that put what is called on the stack."""
    taken = _effect(code[at])
    needed = 0 if taken is None else taken[0]
    for i in range(at - 1, -1, -1):
        effect = _effect(code[i])
        if effect is None:
            return None
        if needed <= effect[1]:
            return i + 1 if code[i].opname == "PUSH_NULL" else i
        needed += effect[0] - effect[1]
    return None


def _called(code: Sequence[dis.Instruction], at: int, frame: types.FrameType) -> Any:
    """What a call calls, where its names say so without running code of the user's."""
    first = _first_of(code, at)
    if first is None:
        return None
    names: list[str] = []
    end = first
    while code[end].opname in _ATTRIBUTES and end:
        names.append(code[end].argval)
        end -= 1
    if end == first and code[at].opname in ("CALL", "CALL_KW"):
        # Where nothing was put before it, its attributes follow.
        following = end + 1
        while code[following].opname == "LOAD_ATTR" and following < at:
            names.insert(0, code[following].argval)
            following += 1
    base = code[end]
    if base.opname == "LOAD_GLOBAL":
        owner = frame.f_globals.get(base.argval, _MISSING)
        if owner is _MISSING:
            owner = vars(builtins).get(base.argval)
    elif base.opname in ("LOAD_FAST", "LOAD_DEREF"):
        owner = frame.f_locals.get(base.argval)
    else:
        return None
    for name in reversed(names):
        owner = _attribute(owner, name)
    return owner


def _attribute(owner: Any, name: str) -> Any:
    """An attribute, found without running code; of a method its function."""
    found = inspect.getattr_static(owner, name, None)
    bound = isinstance(found, types.FunctionType) and not isinstance(owner, types.ModuleType)
    if isinstance(found, staticmethod | classmethod):
        return None
    return types.MethodType(found, owner) if bound and not isinstance(owner, type) else found


def _tells(function: Any, place: int | str) -> bool:
    """Whether a function writes its argument to where a capture doesn't look."""
    if function is builtins.print:
        return type(place) is int
    if function is warnings.warn:
        return place in (0, "message")
    if isinstance(function, types.MethodType) and isinstance(function.__self__, logging.Logger):
        return function.__name__ in _LEVELS and function.__module__ == "logging"
    return _is_from(function, "logging") and function.__name__ in _LEVELS


def _is_from(function: Any, module: str) -> bool:
    """Whether something is a function that a module defines."""
    return isinstance(function, types.FunctionType) and function.__module__ == module


def _only_raises(function: Any, place: int | str) -> bool:
    """Whether all that a function does with an argument is to raise an error with it."""
    if getattr(function, "__name__", "") == "_assert" and _is_from(function, "torch"):
        return place in (1, "message")  # Its code also gives it to classes of tensors.
    if isinstance(function, types.MethodType):
        function = function.__func__
        place = place + 1 if isinstance(place, int) else place
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if isinstance(place, int):
        if place >= code.co_argcount:
            return False
        place = names[place]
    if place not in names or place in code.co_cellvars or "locals" in code.co_names:
        return False
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE):
        return False
    steps = [each for each in _instructions(code) if each.opname not in _SKIPPED]
    used = [i for i, each in enumerate(steps) if _names(each, place)]
    return all(_raised(steps, i) for i in used)


def _names(each: dis.Instruction, place: str) -> bool:
    """Whether an instruction reads or sets a variable."""
    return place == each.argval or (type(each.argval) is tuple and place in each.argval)


def _raised(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether code that loads something raises next, and does nothing else with it."""
    if steps[at].opname not in ("LOAD_FAST", "LOAD_FAST_CHECK"):
        return False
    for each in steps[at + 1 :]:
        if each.opname == "RAISE_VARARGS":
            return True
        if _effect(each) is None or each.opname == "BINARY_SUBSCR":
            return False
    return False


def _is_caught(frame: types.FrameType | None) -> bool:
    """Whether code that runs would go on after an error."""
    while frame is not None:
        module = str(frame.f_globals.get("__name__")).partition(".")[0]
        if module == "funcaot":
            return False
        if module != "torch" and _catches(frame):
            return True
        frame = frame.f_back
    return False


def _catches(frame: types.FrameType) -> bool:
    """Whether a frame stands inside of a block that may catch an error."""
    entries = getattr(dis.Bytecode(frame.f_code), "exception_entries", ())
    targets = {each.target for each in entries if each.start <= frame.f_lasti < each.end}
    if not targets:
        return False
    steps = _instructions(frame.f_code)
    for i, each in enumerate(steps[:-1]):
        after = [step.opname for step in steps[i : i + 4]]
        if each.offset in targets and "WITH_EXCEPT_START" not in after and "COPY" not in after[:1]:
            return True
    return False
