"""What libraries hold, as text that is equal in two processes if they hold the same."""

from __future__ import annotations

import functools
import types
from typing import Any

from funcaot.aot.closure.constants import fingerprint, is_setting
from funcaot.aot.closure.libraries.kept_as import KeptAs
from funcaot.aot.closure.look import dictionary_of, module_of
from funcaot.aot.closure.ran import is_library
from funcaot.aot.closure.ran_code import digest_of
from funcaot.rules.operands.reached import is_filled

__all__ = ["library_text"]

# Things that hold others, which are described too.
_DEEPEST = 6


def library_text(kept: KeptAs) -> str:
    """What a module or class of a library holds.

    A library's own functions are what their names and lines say: versions are compared besides.
    """
    parts = (f"{name}: {_told(value, 0)}" for name, value in sorted(kept.known.items()))
    return f"({', '.join(parts)})"


def _told(value: Any, depth: int) -> str:
    if is_setting(value):
        return repr(fingerprint(value))
    if depth > _DEEPEST:
        return "..."
    inner = functools.partial(_told, depth=depth + 1)
    if isinstance(value, types.FunctionType):
        return _function(value, inner)
    if isinstance(value, type):
        return f"class {module_of(value)}.{value.__qualname__}"
    if isinstance(value, types.MethodType | classmethod | staticmethod):
        return f"{type(value).__name__} of {inner(value.__func__)}"
    if isinstance(value, property):
        return f"property of {[inner(each) for each in (value.fget, value.fset, value.fdel)]}"
    if isinstance(value, functools.partial | functools.partialmethod):
        held = [value.func, *value.args, *value.keywords.items()]
        return f"{type(value).__name__} of {[inner(each) for each in held]}"
    if isinstance(value, tuple):
        return f"({', '.join(map(inner, value))})"
    kind = type(value)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "")
    wrapped = getattr(value, "__wrapped__", None)
    around = "" if wrapped is None else f" around {inner(wrapped)}"
    own = "" if is_library(module_of(kind)) else f" with {_of_user(value)}"
    return f"{module_of(kind)}.{kind.__qualname__} {name}{around}{own}"


def _function(function: types.FunctionType, inner: Any) -> str:
    home = str(function.__globals__.get("__name__", ""))
    code = function.__code__
    cells = [inner(cell.cell_contents) for cell in function.__closure__ or () if is_filled(cell)]
    closed = f" over {cells}" if cells else ""
    if is_library(home):
        return f"function {home}.{code.co_qualname}:{code.co_firstlineno}{closed}"
    defaults = [inner(each) for each in (function.__defaults__, function.__kwdefaults__)]
    return f"function {home}.{code.co_qualname} {digest_of(code)} {defaults}{closed}"


def _of_user(value: Any) -> str:
    """An object of the user's that was put into a library: its plain attributes."""
    own = dictionary_of(value) or {}
    return repr({key: fingerprint(each) for key, each in own.items() if is_setting(each)})
