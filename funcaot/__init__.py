"""funcaot: any ``torch.autograd.Function``, compiled or not, under any transform, to any order.

The public names are those of ``funcaot.public``, which is imported when one of them is first used.
Those of Functions don't need it, nor does ``load``: who compiles nothing imports no pipeline, and a
process that only runs artifacts no Functions either.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from funcaot import config
    from funcaot.exported.export import export
    from funcaot.exported.load import load
    from funcaot.public import (
        CustomVJPPrimal,
        Function,
        SymbolicZero,
        aot_function,
        aot_module,
        checkpoint,
        clear,
        closure_convert,
        compile,
        custom_function_call,
        custom_gradient,
        custom_jvp,
        custom_vjp,
        custom_vjp_primal_tree_values,
        custom_vmap,
        inline_functions,
        install,
        linear_call,
        mark_dynamic,
        mark_static,
        register_derivative,
        register_wrapper,
        report,
        second_order,
        sequential_vmap,
        uninstall,
        zero_from_primal,
    )
    from funcaot.staged.lower import lower

__version__ = "0.1.0.dev0"

# Where to find the functions that aren't imported with the others.
_APART = {
    "load": "funcaot.exported.load",
    "export": "funcaot.exported.export",
    "lower": "funcaot.staged.lower",
}

# What Functions are written with: the operator and its rules, without the compiler.
_FUNCTIONS = "funcaot.functions.function"
_OF_FUNCTIONS = {
    "CustomVJPPrimal": "funcaot.rules.symbolic_zeros",
    "Function": _FUNCTIONS,
    "SymbolicZero": "funcaot.rules.symbolic_zeros",
    "checkpoint": "funcaot.functions.checkpoint",
    "closure_convert": "funcaot.functions.closure_convert",
    "custom_function_call": "funcaot.operator.operator",
    "custom_gradient": "funcaot.functions.custom_gradient",
    "custom_jvp": "funcaot.functions.custom_jvp",
    "custom_vjp": "funcaot.functions.custom_vjp",
    "custom_vjp_primal_tree_values": "funcaot.rules.symbolic_zeros",
    "custom_vmap": "funcaot.functions.custom_vmap",
    "linear_call": "funcaot.functions.linear_call",
    "sequential_vmap": "funcaot.functions.custom_vmap",
    "zero_from_primal": "funcaot.rules.symbolic_zeros",
}

# What compiles needs none of the ways to write a Function, nor the report.
_API = "funcaot.api"
_OF_THE_COMPILER = ("aot_function", "aot_module", "compile")

# Modules that need no other; the package's own ask for ``config`` while others are imported.
_MODULES = ("config", "errors")

# A function has the name of its room.
_ROOMS = ("report",)

__all__ = [
    "CustomVJPPrimal",
    "Function",
    "SymbolicZero",
    "aot_function",
    "aot_module",
    "checkpoint",
    "clear",
    "closure_convert",
    "compile",
    "config",
    "custom_function_call",
    "custom_gradient",
    "custom_jvp",
    "custom_vjp",
    "custom_vjp_primal_tree_values",
    "custom_vmap",
    "export",
    "inline_functions",
    "install",
    "linear_call",
    "load",
    "lower",
    "mark_dynamic",
    "mark_static",
    "register_derivative",
    "register_wrapper",
    "report",
    "second_order",
    "sequential_vmap",
    "uninstall",
    "zero_from_primal",
]


class _Package(ModuleType):
    """The package, where importing a room doesn't hide the function of the same name."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _ROOMS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    """Import a public name, and those that are imported with it."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        return importlib.import_module(f"funcaot.{name}")
    with _without_collections():
        _import(name)
    if name not in globals():
        # With the module beside it, Python looks for a name that was meant.
        text = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])
    return globals()[name]


@contextlib.contextmanager
def _without_collections() -> Iterator[None]:
    """No garbage collection: among hundreds of imports it takes a third of their time.

    It would visit all that torch has made, and find nothing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _import(name: str) -> None:
    """Put a public name among the globals, with those that are imported with it."""
    if name in _OF_FUNCTIONS:
        importlib.import_module(_FUNCTIONS)
        globals()[name] = getattr(importlib.import_module(_OF_FUNCTIONS[name]), name)
    elif name in _OF_THE_COMPILER:
        globals()[name] = getattr(importlib.import_module(_API), name)
    elif name != "load":
        public = importlib.import_module("funcaot.public")
        globals().update({each: getattr(public, each) for each in __all__ if each not in _APART})
    if name in _APART:
        globals()[name] = getattr(importlib.import_module(_APART[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
