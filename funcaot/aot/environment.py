"""What a function can reach besides its arguments: tensors, modules and settings it closes over."""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.shapes import SYMBOLIC_NUMBERS
from funcaot.aot.code_names import ReadNames, names_of

_LIMIT = 50_000
_CONTAINER_LIMIT = 10_000
MODULE_DICTIONARIES = ("_modules", "_parameters", "_buffers")
MODULE_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
# What every module has besides its training mode: dictionaries and flags of nn.Module's own.
MODULE_OWN = frozenset(vars(torch.nn.Module())) - {"training"}
_SCALARS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device)
_CONTAINERS = (list, dict, set, deque)
_MACHINES = ("logging", "threading", "multiprocessing", "concurrent", "asyncio")
_NOT_SCANNED = {"torch", "funcaot", "numpy", *sys.stdlib_module_names} - {"__main__"}


@dataclass(frozen=True)
class Place:
    """How an object is reached from another one.

    Attributes:
        parent: The other one, by ``id``.
        access: Source text on ``{parent}``.
        name: The name that code would use; empty if it is always read.
    """

    parent: int
    access: str
    name: str = ""


@dataclass
class Environment:
    """Objects reachable from a function: its closure, globals, ``self``, modules, containers.

    Attributes:
        names: The names that code among them reads.
        places: For each object, by ``id``, the ways in which it was reached.
        objects: The objects; alive as long as this record, so that ids stay theirs.
        settings: Numbers, strings and the like that some code reached can read: where, and value.
        escaped: Symbolic numbers that a capture left behind.
    """

    names: ReadNames = field(default_factory=ReadNames)
    places: dict[int, list[Place]] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)
    settings: list[tuple[Place, Any]] = field(default_factory=list)
    escaped: list[Place] = field(default_factory=list)

    @functools.cached_property
    def unread(self) -> frozenset[int]:
        """Containers that code only adds to, by ``id``, and those within them."""
        unread = {id(thing) for thing in self.objects.values() if isinstance(thing, _CONTAINERS)}
        unread = {identity for identity in unread if self.places[identity]}
        while True:
            read = [i for i in unread if any(self._reads(p, unread) for p in self.places[i])]
            if not read:
                return frozenset(unread)
            unread = unread.difference(read)

    def is_read(self, place: Place) -> bool:
        """Whether code may depend on what is at a place."""
        return self._reads(place, self.unread)

    def _reads(self, place: Place, unread: Set[int]) -> bool:
        return place.parent not in unread and self.names.reads(place.name)


def scan(root: Any) -> Environment:
    """Walk what a function can reach, breadth first."""
    walk = _Walk(root)
    walk.go()
    found = walk.found
    found.settings = [(place, value) for place, value in walk.settings if found.is_read(place)]
    return found


class _Walk:
    """A walk from a function to what its code can reach.

    Of a module, only what some code reached so far names is looked at: the rest of a library
    is neither used nor small.
    """

    def __init__(self, root: Any) -> None:
        self.found = Environment()
        self.found.objects[id(root)] = root
        self.found.places[id(root)] = []
        self.settings: list[tuple[Place, Any]] = []
        self._pending = deque([root])
        self._modules: dict[int, types.ModuleType] = {}
        self._looked_at: set[tuple[int, str]] = set()

    def go(self) -> None:
        """Walk until nothing new is reached."""
        found = self.found
        while self._pending and len(found.objects) < _LIMIT:
            holder = self._pending.popleft()
            found.names.add(holder)
            if isinstance(holder, torch.nn.Module):
                found.names.close()
            if isinstance(holder, types.ModuleType):
                self._modules[id(holder)] = holder
            else:
                for access, name, child in _children(holder, found.names):
                    self._reach(Place(id(holder), access, name), child)
            if not self._pending:
                found.names.close()
                self._look_into_modules()

    def _look_into_modules(self) -> None:
        names = self.found.names
        for identity, module in list(self._modules.items()):
            for name, child in list(vars(module).items()):
                key = (identity, name)
                if key not in self._looked_at and names.mentions(name):
                    self._looked_at.add(key)
                    access = f"{{parent}}.__dict__[{_quoted(name)}]"
                    self._reach(Place(identity, access, name), child)

    def _reach(self, place: Place, child: Any) -> None:
        found = self.found
        plain = is_setting(child)
        if plain:
            self.settings.append((place, child))
        if plain and not isinstance(child, _CONTAINERS):
            return
        if isinstance(child, SYMBOLIC_NUMBERS):
            found.escaped.append(place)
            return
        if not plain and not _is_interesting(child):
            return
        if id(child) not in found.objects:
            found.objects[id(child)] = child
            if not plain and not isinstance(child, torch.Tensor):
                self._pending.append(child)
        found.places.setdefault(id(child), []).append(place)


def is_setting(value: Any) -> bool:
    """Whether a value is a plain constant, or a small container of nothing else."""
    if isinstance(value, _SCALARS) or _is_numpy_scalar(value):
        return True
    if type(value) in (tuple, list, set, deque) and len(value) <= 64:
        return all(isinstance(item, _SCALARS) for item in value)
    if type(value) is dict and len(value) <= 64:
        return all(isinstance(item, _SCALARS) for pair in value.items() for item in pair)
    return False


def _is_numpy_scalar(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and any(base.__name__ == "generic" for base in kind.__mro__)


def _is_interesting(value: Any) -> bool:
    if isinstance(value, torch.Tensor | torch.nn.Module | functools.partial | types.MethodType):
        return True
    if isinstance(value, types.FunctionType):
        return not _is_machinery(value.__module__ or "")
    if isinstance(value, tuple | list | dict | set | deque):
        return len(value) <= _CONTAINER_LIMIT
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] not in _NOT_SCANNED
    if isinstance(value, type):
        return False
    if type(value).__module__.partition(".")[0] in _MACHINES:
        return False
    if callable(getattr(value, "__torch_function__", None)):
        return False
    return hasattr(value, "__dict__") or bool(slots_of(value))


def _is_machinery(module: str) -> bool:
    """Whether functions of a module reach no tensors of the user's, whatever they close over.

    Those of ``funcaot.testing`` do: they call the user's, and its database is written as users
    write.
    """
    if module.startswith("funcaot.testing."):
        return False
    return module == "torch" or module.startswith(("torch.", "funcaot."))


def _children(holder: Any, names: ReadNames) -> Iterator[tuple[str, str, Any]]:
    """Access, name that code would use (empty if always read), and value."""
    if isinstance(holder, torch.nn.Module):
        yield from _children_of_module(holder, names)
        yield from _children_of_class(holder)
    elif isinstance(holder, types.FunctionType):
        yield from _children_of_function(holder)
    elif isinstance(holder, types.MethodType):
        yield "{parent}.__self__", "", holder.__self__
        yield "{parent}.__func__", "", holder.__func__
    elif isinstance(holder, functools.partial):
        yield "{parent}.func", "", holder.func
        yield from ((f"{{parent}}.args[{i}]", "", value) for i, value in enumerate(holder.args))
        yield from _entries(holder.keywords, "{parent}.keywords")
    elif isinstance(holder, list | tuple | deque):
        yield from ((f"{{parent}}[{i}]", "", value) for i, value in enumerate(holder))
    elif isinstance(holder, dict):
        yield from _entries(holder, "{parent}")
    elif is_compiled(holder):
        # Not its cache.
        parts = {
            name: vars(holder)[name] for name in ("function", "module") if name in vars(holder)
        }
        yield from _entries(parts, "{parent}.__dict__")
    else:
        yield from _entries(getattr(holder, "__dict__", {}), "{parent}.__dict__", named=True)
        yield from _children_of_slots(holder)
        yield from _children_of_class(holder)


def is_compiled(holder: Any) -> bool:
    """Whether an object is a compiled function or a part of one."""
    return type(holder).__module__.startswith("funcaot.aot.")


def _entries(
    mapping: dict[Any, Any], access: str, *, named: bool = False
) -> Iterator[tuple[str, str, Any]]:
    for key, value in list(mapping.items()):
        if isinstance(key, str | int | bool):
            name = str(key) if named else ""
            yield f"{access}[{_quoted(key)}]", name, value


def _quoted(key: Any) -> str:
    return repr(key).replace("{", "{{").replace("}", "}}")


def _children_of_module(
    module: torch.nn.Module, names: ReadNames
) -> Iterator[tuple[str, str, Any]]:
    for name in MODULE_DICTIONARIES:
        yield from _entries(vars(module).get(name, {}), f"{{parent}}.{name}")
    for name in MODULE_HOOKS:
        yield from _entries(vars(module).get(name, {}), f"{{parent}}.{name}")
    for name, value in list(vars(module).items()):
        private = name.startswith("_") and not names.uses(name) and not _is_users(value)
        if name not in MODULE_OWN and not private:
            yield f"{{parent}}.__dict__[{_quoted(name)}]", name, value


def _is_users(value: Any) -> bool:
    """Whether a private attribute is looked into anyway: not somebody's trainer or logger."""
    kinds = (torch.nn.Module, torch.Tensor, types.FunctionType, tuple, *_CONTAINERS)
    return isinstance(value, kinds) or is_setting(value)


def users_classes(holder: Any) -> Iterator[tuple[int, type]]:
    """The classes of an object that a user wrote, with their positions in the order of lookup."""
    if isinstance(holder, types.FunctionType | types.ModuleType):
        return
    for index, kind in enumerate(type(holder).__mro__):
        if kind.__module__.partition(".")[0] not in _NOT_SCANNED | {"builtins"}:
            yield index, kind


def slots_of(holder: Any) -> list[str]:
    """The names of an object's slots."""
    return [
        name
        for _, kind in users_classes(holder)
        for name, member in vars(kind).items()
        if isinstance(member, types.MemberDescriptorType)
    ]


def _children_of_slots(holder: Any) -> Iterator[tuple[str, str, Any]]:
    for name in slots_of(holder):
        if hasattr(holder, name):
            yield f"{{parent}}.{name}", name, getattr(holder, name)


def _children_of_class(holder: Any) -> Iterator[tuple[str, str, Any]]:
    """Attributes of an object's class that it doesn't have itself."""
    own = getattr(holder, "__dict__", {})
    for _, kind in users_classes(holder):
        for name, value in list(vars(kind).items()):
            if name.startswith("__") or name in own:
                continue
            if isinstance(value, torch.Tensor | list | dict | set | deque) or is_setting(value):
                yield f"type({{parent}}).{name}", name, value


def _children_of_function(function: types.FunctionType) -> Iterator[tuple[str, str, Any]]:
    for index, cell in enumerate(function.__closure__ or ()):
        try:
            name = function.__code__.co_freevars[index]
            yield f"{{parent}}.__closure__[{index}].cell_contents", name, cell.cell_contents
        except ValueError:  # a cell that isn't filled yet
            continue
    for name in sorted(names_of(function.__code__).used):
        # What isn't an identifier was put there by a rewriter of assert statements.
        if name in function.__globals__ and name.isidentifier():
            yield f"{{parent}}.__globals__[{name!r}]", name, function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"{{parent}}.__defaults__[{index}]", "", value
    yield from _entries(function.__kwdefaults__ or {}, "{parent}.__kwdefaults__")
    own = {key: value for key, value in vars(function).items() if key != "__wrapped__"}
    yield from _entries(own, "{parent}.__dict__", named=True)
