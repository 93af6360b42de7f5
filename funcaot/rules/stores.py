"""Whether a Function's forward may change Python state: a capture asks, which runs it often.

A forward runs when it is captured, when it is inlined into what a compiler gets, and in each call
of a backend that interprets. So what it changes isn't stored by the call as well.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

from funcaot.rules.operands.reached import is_filled

__all__ = ["may_store"]

_STORES = {"STORE_GLOBAL", "STORE_DEREF", "STORE_SUBSCR", "DELETE_SUBSCR", "DELETE_ATTR"}
_CHANGING = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popitem",
    "remove",
    "setattr",
    "setdefault",
    "sort",
    "update",
}
_DEEPEST = 4


def may_store(function: type) -> bool:
    """Whether code of a Function's forward, or what that calls by name, may change Python state.

    Args:
        function: The Function.
    """
    forward: Any = getattr(function, "forward", None)
    forward = getattr(forward, "__func__", forward)
    if not isinstance(forward, types.FunctionType):
        return True
    # What custom_vjp and the like make calls functions that nothing here finds.
    return str(forward.__module__).startswith("funcaot.functions") or _stores(forward, 0)


def _stores(function: types.FunctionType, depth: int) -> bool:
    if _code_stores(function.__code__):
        return True
    if depth == _DEEPEST:
        return True
    called = [function.__globals__.get(name) for name in function.__code__.co_names]
    called += [cell.cell_contents for cell in function.__closure__ or () if is_filled(cell)]
    return any(
        isinstance(each, types.FunctionType)
        and not str(each.__module__).startswith(("torch.", "funcaot."))
        and _stores(each, depth + 1)
        for each in called
    )


@functools.lru_cache(maxsize=1024)
def _code_stores(code: types.CodeType) -> bool:
    before = None
    for item in dis.get_instructions(code):
        if item.opname in _STORES:
            return True
        # What is set on the context belongs to the call.
        if item.opname == "STORE_ATTR" and (before is None or before.argval != "ctx"):
            return True
        if item.opname not in ("CACHE", "NOP"):
            before = item
    if not _CHANGING.isdisjoint(code.co_names):
        return True
    return any(isinstance(c, types.CodeType) and _code_stores(c) for c in code.co_consts)
