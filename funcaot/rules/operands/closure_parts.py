"""What a function or an object holds, one step deep; ``closures`` goes on from there."""

from __future__ import annotations

import dis
import functools
import gc
import types
from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Any

import torch

from funcaot._torch.levels.functorch import (
    FunctionalTensor,
    is_functorch_wrapped_tensor,
    is_pullback,
    unwrap_if_dead,
)
from funcaot.base.python_modules import is_pythons
from funcaot.classes.differentiation import is_perturbed
from funcaot.classes.opaque import current_captor
from funcaot.rules.operands.reached import held_in_slots, is_filled, reached_from

__all__ = ["data_of", "may_hold", "parts_of", "seal_of"]

_FIXED = (
    *(type(None), bool, int, float, complex, str, bytes, type, Enum),
    *(types.ModuleType, types.BuiltinFunctionType, types.CodeType, types.FrameType),
    *(torch.dtype, torch.device, torch.Size, torch.Generator, range),
)
# Of the standard library only these hold what users put in.
_HOLDERS = frozenset(
    ("argparse", "builtins", "collections", "dataclasses", "functools", "itertools", "types")
)
_LOOK_UP = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS"))
_NOT_USERS = frozenset(("torch", "numpy", "funcaot", "optree"))


def may_hold(value: Any) -> bool:
    """Whether there may be tensors inside of a value."""
    if isinstance(value, _FIXED):
        return _is_of_tensor(value)
    package = type(value).__module__.partition(".")[0]
    return package in _HOLDERS or not is_pythons(package)


def _is_of_tensor(value: Any) -> bool:
    """Whether a value is a method of a tensor."""
    method = isinstance(value, types.BuiltinMethodType)
    return method and isinstance(value.__self__, torch.Tensor)


class _Namespace:
    """Attributes of a class or a module that code mentions: everybody's, so there is no copy."""

    def __init__(self, attributes: dict[str, Any]) -> None:
        self.attributes = attributes


def seal_of(value: Any) -> str | None:
    """What a value is, if nothing can be taken out of it."""
    if isinstance(value, _Namespace):
        return "an attribute of a class or a module"
    if isinstance(value, types.FunctionType) and is_pullback(value):
        return "a function that torch.func.vjp returned"
    if isinstance(value, types.MappingProxyType):
        return "a view of a dictionary"
    return "an iterator" if _is_iterator(value) else None


def _is_iterator(value: Any) -> bool:
    return isinstance(value, Iterator) and not hasattr(value, "__dict__")


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value holds, with the name of the variable or attribute; empty for an item."""
    if isinstance(value, _Namespace):
        yield from value.attributes.items()
    elif isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield "self", value.__self__
        yield "", value.__func__
    elif isinstance(value, functools.partial):
        yield "", value.func
        yield from (("", item) for item in value.args)
        yield from tuple(value.keywords.items())
    elif _is_of_tensor(value):
        yield "", value.__self__
    elif _is_iterator(value) or isinstance(value, types.MappingProxyType):
        yield from (("", item) for item in gc.get_referents(value))
    else:
        yield from _of_object(value)


def data_of(value: Any) -> Iterator[tuple[str, Any]]:
    """The same of what a Function keeps on its ctx, but for what is everybody's.

    Records of ours have taken tensors out of what they hold already. Outside of a capture, what
    can't be copied stays as it is: nothing is refused that runs.
    """
    if _is_ours(value):
        return
    sealed = seal_of(value)
    if sealed is not None and (current_captor() is None or isinstance(value, types.FunctionType)):
        return
    if isinstance(value, types.FunctionType):
        yield from (("", part) for part in reached_from(value))
    else:
        yield from parts_of(value)


def _is_ours(value: Any) -> bool:
    of = value if isinstance(value, types.FunctionType) else type(value)
    return str(of.__module__).partition(".")[0] == "funcaot"


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    inner = getattr(function, "_torchdynamo_orig_callable", None)
    if inner is not None:
        yield "", inner
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from (("a default argument", value) for value in function.__defaults__ or ())
    yield from tuple((function.__kwdefaults__ or {}).items())
    variables = function.__globals__
    package = str(variables.get("__name__", "")).partition(".")[0]
    if package in _NOT_USERS or is_pythons(package):
        return
    names, looked_up = _names(function.__code__)
    for name in looked_up:
        if name in variables:
            yield name, variables[name]
    cells = (cell.cell_contents for cell in function.__closure__ or () if is_filled(cell))
    for value in (*cells, *[variables[name] for name in looked_up if name in variables]):
        if isinstance(value, (type, types.ModuleType)):
            yield from _of_namespace(value, names)


def _of_namespace(value: Any, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
    """Attributes of a user's class or module, if a transform looks at what is in them."""
    where = value.__name__ if isinstance(value, types.ModuleType) else value.__module__
    package = where.partition(".")[0]
    if package in _NOT_USERS or is_pythons(package):
        return
    found = {
        f"{value.__name__}.{name}": held
        for name in names
        if (held := vars(value).get(name)) is not None
        and (_is_looked_at(held) if isinstance(held, torch.Tensor) else _is_a_holder(held))
    }
    if found:
        yield ", ".join(found), _Namespace(found)


def _is_a_holder(value: Any) -> bool:
    """Whether to look into it; a capture may use what it holds, as it does in any Function."""
    functions = (types.FunctionType, property, staticmethod, classmethod)
    return current_captor() is None and may_hold(value) and not isinstance(value, functions)


def _is_looked_at(tensor: torch.Tensor) -> bool:
    if isinstance(tensor, FunctionalTensor):
        return True
    alive = is_functorch_wrapped_tensor(tensor) and unwrap_if_dead(tensor) is tensor
    return alive or is_perturbed(tensor)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names that code and the functions that it makes mention, and those that are globals."""
    mentioned = dict.fromkeys(code.co_names)
    looked_up = dict.fromkeys(
        step.argval for step in dis.get_instructions(code) if step.opname in _LOOK_UP
    )
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            for names, inside in zip((mentioned, looked_up), _names(constant), strict=True):
                names.update(dict.fromkeys(inside))
    return tuple(mentioned), tuple(looked_up)


def _of_object(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((str(key), item) for key, item in tuple(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from (("", item) for item in tuple(value))
    kind = type(value)
    if kind.__module__.startswith("funcaot.aot"):
        yield "", getattr(value, "__wrapped__", None)
        return
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict):
        yield from tuple(fields.items())
        for base in kind.__mro__:
            held = [name for name, item in vars(base).items() if isinstance(item, torch.Tensor)]
            yield from _of_namespace(base, held) if held else ()
    yield from held_in_slots(value)
