"""What a function can reach besides its arguments: tensors, modules and settings it closes over."""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

_LIMIT = 50_000
_CONTAINER_LIMIT = 10_000
_MODULE_DICTIONARIES = ("_modules", "_parameters", "_buffers")
_SCALARS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)
# Methods that set a module up or describe it; what only they read doesn't change its forward.
_NOT_RUN = {"__init__", "__repr__", "extra_repr", "reset_parameters", "_reset_parameters"}
_NOT_SCANNED = {"torch", "funcaot", "numpy", *sys.stdlib_module_names} - {"__main__"}


@dataclass(frozen=True)
class Place:
    """How an object is reached from another one: ``access`` is source text on ``{parent}``."""

    parent: int
    access: str


@dataclass
class Environment:
    """Objects reachable from a function: its closure, globals, ``self``, modules, containers.

    Attributes:
        places: For each object, by ``id``, the ways in which it was reached.
        objects: The objects; alive as long as this record, so that ids stay theirs.
        settings: Numbers, strings and the like that some code reached can read: where, and value.
    """

    places: dict[int, list[Place]] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)
    settings: list[tuple[Place, Any]] = field(default_factory=list)


def scan(root: Any) -> Environment:
    """Walk what a function can reach, breadth first."""
    found = Environment()
    found.objects[id(root)] = root
    found.places[id(root)] = []
    pending = deque([root])
    scalars: list[tuple[Place, str, Any]] = []
    code = _Code()
    while pending and len(found.objects) < _LIMIT:
        holder = pending.popleft()
        code.add(holder)
        for access, key, child in _children(holder):
            if is_setting(child):
                scalars.append((Place(id(holder), access), key, child))
                continue
            if not _is_interesting(child):
                continue
            known = id(child) in found.objects
            if not known:
                found.objects[id(child)] = child
                if not isinstance(child, torch.Tensor):
                    pending.append(child)
            found.places.setdefault(id(child), []).append(Place(id(holder), access))
    names = code.names()
    found.settings = [(place, value) for place, key, value in scalars if not key or key in names]
    return found


class _Code:
    """The names that code reached so far may use: functions', and methods' that these name."""

    def __init__(self) -> None:
        self._names: set[str] = {"forward"}
        self._methods: dict[str, list[types.CodeType]] = {}
        self._kinds: set[type] = {object, torch.nn.Module}

    def add(self, holder: Any) -> None:
        if isinstance(holder, types.FunctionType):
            self._names |= _names_in(holder.__code__)
        for kind in type(holder).__mro__:
            if kind not in self._kinds and kind.__module__ != "builtins":
                self._kinds.add(kind)
                self._add_methods(kind)

    def _add_methods(self, kind: type) -> None:
        for name, member in list(vars(kind).items()):
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)
            code = getattr(function, "__code__", None)
            if name not in _NOT_RUN and isinstance(code, types.CodeType):
                self._methods.setdefault(name, []).append(code)

    def names(self) -> set[str]:
        """Start from functions, ``forward`` and operators; add what the methods named there use."""
        names = set(self._names)
        methods = dict(self._methods)
        while True:
            named = [name for name in methods if name in names or name.startswith("__")]
            if not named:
                return names
            for name in named:
                for code in methods.pop(name):
                    names |= _names_in(code)


def is_setting(value: Any) -> bool:
    """Whether a value is a plain constant, or a small container of nothing else."""
    if isinstance(value, _SCALARS):
        return True
    if type(value) in (tuple, list) and 0 < len(value) <= 64:
        return all(isinstance(item, _SCALARS) for item in value)
    if type(value) is dict and 0 < len(value) <= 64:
        return all(isinstance(item, _SCALARS) for pair in value.items() for item in pair)
    return False


def _is_interesting(value: Any) -> bool:
    if isinstance(value, torch.Tensor | torch.nn.Module | functools.partial | types.MethodType):
        return True
    if isinstance(value, types.FunctionType):
        return not _is_machinery(value.__module__ or "")
    if isinstance(value, list | tuple | dict | set):
        return 0 < len(value) <= _CONTAINER_LIMIT
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] not in _NOT_SCANNED
    if isinstance(value, type):
        return False
    return hasattr(value, "__dict__") and not callable(getattr(value, "__torch_function__", None))


def _is_machinery(module: str) -> bool:
    """Whether functions of a module reach no tensors of the user's, whatever they close over.

    Those of ``funcaot.testing`` do: they call the user's, and its database is written as users
    write.
    """
    if module.startswith("funcaot.testing."):
        return False
    return module == "torch" or module.startswith(("torch.", "funcaot."))


def _children(holder: Any) -> Iterator[tuple[str, str, Any]]:
    """Access, name that code would use (empty if always read), and value."""
    if isinstance(holder, torch.nn.Module):
        yield from _children_of_module(holder)
    elif isinstance(holder, types.FunctionType):
        yield from _children_of_function(holder)
    elif isinstance(holder, types.MethodType):
        yield "{parent}.__self__", "", holder.__self__
        yield "{parent}.__func__", "", holder.__func__
    elif isinstance(holder, functools.partial):
        yield "{parent}.func", "", holder.func
        yield from ((f"{{parent}}.args[{i}]", "", value) for i, value in enumerate(holder.args))
        yield from _entries(holder.keywords, "{parent}.keywords")
    elif isinstance(holder, list | tuple):
        yield from ((f"{{parent}}[{i}]", "", value) for i, value in enumerate(holder))
    elif isinstance(holder, dict):
        yield from _entries(holder, "{parent}")
    elif hasattr(holder, "__dict__"):
        yield from _entries(vars(holder), "{parent}.__dict__", named=True)


def _entries(
    mapping: dict[Any, Any], access: str, *, named: bool = False
) -> Iterator[tuple[str, str, Any]]:
    for key, value in list(mapping.items()):
        if isinstance(key, str | int | bool):
            name = str(key) if named else ""
            yield f"{access}[{_quoted(key)}]", name, value


def _quoted(key: Any) -> str:
    return repr(key).replace("{", "{{").replace("}", "}}")


def _children_of_module(module: torch.nn.Module) -> Iterator[tuple[str, str, Any]]:
    for name, value in list(vars(module).items()):
        if name in _MODULE_DICTIONARIES:
            for key, child in list(value.items()):
                yield f"{{parent}}.{name}[{_quoted(key)}]", key, child
        elif not name.startswith("_") or _is_users(name, value):
            yield f"{{parent}}.__dict__[{_quoted(name)}]", name, value


def _is_users(name: str, value: Any) -> bool:
    """Whether an attribute that starts with an underscore isn't one of ``nn.Module``'s own."""
    if isinstance(value, torch.nn.Module | torch.Tensor):
        return True
    return is_setting(value) and not hasattr(torch.nn.Module, name)


def _children_of_function(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    for index, cell in enumerate(function.__closure__ or ()):
        try:
            yield f"{{parent}}.__closure__[{index}].cell_contents", "", cell.cell_contents
        except ValueError:  # a cell that isn't filled yet
            continue
    for name in sorted(_names_in(function.__code__)):
        if name in function.__globals__:
            yield f"{{parent}}.__globals__[{name!r}]", "", function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"{{parent}}.__defaults__[{index}]", "", value
    yield from _entries(function.__kwdefaults__ or {}, "{parent}.__kwdefaults__")


@functools.lru_cache(maxsize=4096)
def _names_in(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _names_in(constant)
    return names
