"""Attributes that a context manager sets where it is entered, before it reads them.

``environment`` asks. Torch's ``autocast`` keeps there what it puts back where it is left. What an
earlier call left in them says nothing of this one.
"""

from __future__ import annotations

import dis
import functools
import inspect
import types
from collections.abc import Collection, Iterable, Sequence

from funcaot.aot.closure.named.changing import read_in
from funcaot.aot.closure.named.code_names import names_of

__all__ = ["set_on_entering"]

_ENDS = ("RETURN_VALUE", "RETURN_CONST")
# What may reach its target without what lies between.
_JUMPS = {*dis.hasjrel, *dis.hasjabs}


def set_on_entering(kind: type, others: Iterable[types.CodeType]) -> frozenset[str]:
    """The attributes that ``__enter__`` gives values, and that nothing but this class reads.

    Args:
        kind: The class of an object that may be entered.
        others: The users' code that ran, the class's own among it.
    """
    codes = _methods(kind)
    names = _set_first(codes) if codes else frozenset()
    if not names:
        return names
    read = (names_of(code) for code in others if code not in codes)
    return names.difference(*((each.read | each.fragments) & names for each in read))


def _methods(kind: type) -> tuple[types.CodeType, ...]:
    """The code of ``__enter__`` and ``__exit__``; nothing if the class isn't a context manager."""
    found = [inspect.getattr_static(kind, name, None) for name in ("__enter__", "__exit__")]
    codes = [each.__code__ for each in found if isinstance(each, types.FunctionType)]
    return tuple(codes) if len(codes) == len(found) else ()


@functools.lru_cache(maxsize=1024)
def _set_first(codes: tuple[types.CodeType, ...]) -> frozenset[str]:
    enter, leave = codes
    if enter.co_exceptiontable:
        return frozenset()  # an error may leave a block before it sets anything
    steps = list(dis.get_instructions(enter))
    found = set[str]()
    for at, step in enumerate(steps):
        name = step.argval
        if step.opname != "STORE_ATTR" or name in found or not _is_of_itself(enter, steps, at):
            continue
        before = steps[:at]
        if name in read_in(before, {name}) or _may_be_skipped(before, step.offset):
            continue
        # Entered in a way that sets nothing, it is to be left in such a way too.
        if not any(each.opname in _ENDS for each in before) or _reads_under_condition(leave, name):
            found.add(name)
    return frozenset(found)


def _is_of_itself(code: types.CodeType, steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether an attribute is that of the method's first argument."""
    holder = steps[at - 1]
    return holder.opname.startswith("LOAD_FAST") and holder.argval == code.co_varnames[0]


def _may_be_skipped(before: Collection[dis.Instruction], offset: int) -> bool:
    """Whether a step lies behind a jump over it."""
    return any(
        each.opcode in _JUMPS and isinstance(each.argval, int) and each.argval > offset
        for each in before
    )


def _reads_under_condition(code: types.CodeType, name: str) -> bool:
    steps = list(dis.get_instructions(code))
    reads = (at for at, step in enumerate(steps) if step.argval == name)
    first = next(reads, len(steps))
    return first == len(steps) or any(each.opcode in _JUMPS for each in steps[:first])
