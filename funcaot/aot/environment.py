"""Where closed-over tensors live, and a generated reader that fetches them again at each call."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot.errors import UnsupportedError

_LIMIT = 50_000
_CONTAINER_LIMIT = 10_000

Reader = Callable[[], "tuple[torch.Tensor, ...] | None"]


@dataclass(frozen=True)
class Place:
    """How an object is reached from another one: ``access`` is source text on ``{parent}``."""

    parent: int | None
    access: str


@dataclass
class Environment:
    """Objects reachable from a function: its closure, globals, ``self``, modules, containers.

    Attributes:
        places: For each object, by ``id``, how it was first reached.
        objects: The objects, kept alive so that ids stay theirs.
        modules: Every ``nn.Module`` among them.
    """

    places: dict[int, Place] = field(default_factory=dict)
    objects: dict[int, Any] = field(default_factory=dict)
    modules: list[torch.nn.Module] = field(default_factory=list)


def scan(root: Any) -> Environment:
    """Walk what a function can reach, breadth first."""
    found = Environment()
    found.places[id(root)] = Place(None, "root")
    found.objects[id(root)] = root
    pending = deque([root])
    while pending and len(found.objects) < _LIMIT:
        holder = pending.popleft()
        if isinstance(holder, torch.nn.Module):
            found.modules.append(holder)
        for access, child in _children(holder):
            if id(child) in found.places or not _is_interesting(child):
                continue
            found.places[id(child)] = Place(id(holder), access)
            found.objects[id(child)] = child
            if not isinstance(child, torch.Tensor):
                pending.append(child)
    return found


def make_reader(
    environment: Environment, root: Any, tensors: Sequence[torch.Tensor], name: str
) -> Reader:
    """Generate the function that reads tensors where they were found.

    It returns None when something on the way was replaced, or a module switched between
    training and evaluation, so that the caller captures anew.

    Args:
        environment: Result of ``scan``.
        root: The function that was scanned.
        tensors: Tensors to read.
        name: The user's function, for messages.

    Raises:
        UnsupportedError: If a tensor can't be found.
    """
    writer = _Writer(environment, root)
    for module in environment.modules:
        variable = writer.variable(module)
        writer.require(f"{variable}.training is {module.training}")
    values = []
    for tensor in tensors:
        place = environment.places.get(id(tensor))
        if place is None or place.parent is None:
            raise UnsupportedError(
                f"{name} uses a tensor ({list(tensor.shape)}, {tensor.dtype}) that isn't an "
                "argument and wasn't found in its closure, its globals or its modules.",
                remedy="pass it as an argument.",
            )
        holder = writer.variable(environment.objects[place.parent])
        values.append(place.access.format(parent=holder))
    return writer.build(values)


class _Writer:
    """Collects checks of the form ``parent.access is child`` and the namespace they need."""

    def __init__(self, environment: Environment, root: Any) -> None:
        self.environment = environment
        self.names: dict[int, str] = {id(root): "root"}
        self.namespace: dict[str, Any] = {"root": root}
        self.checks: list[str] = []

    def require(self, condition: str) -> None:
        self.checks.append(condition)

    def variable(self, target: Any) -> str:
        """The name of an object in the generated code, checked to be still where it was."""
        known = self.names.get(id(target))
        if known is not None:
            return known
        place = self.environment.places[id(target)]
        if place.parent is None:
            return "root"
        parent = self.variable(self.environment.objects[place.parent])
        name = f"o{len(self.names)}"
        self.names[id(target)] = name
        self.namespace[name] = target
        self.require(f"{place.access.format(parent=parent)} is {name}")
        return name

    def build(self, values: Iterable[str]) -> Reader:
        listed = "".join(f"{value}, " for value in values)
        lines = ["def read():", "    try:"]
        for check in self.checks:
            lines += [f"        if not ({check}): return None"]
        lines += [
            f"        return ({listed})",
            "    except (AttributeError, KeyError, IndexError, ValueError):",
            "        return None",
        ]
        exec(compile("\n".join(lines), "<funcaot environment>", "exec"), self.namespace)
        return self.namespace["read"]


def _is_interesting(value: Any) -> bool:
    if isinstance(value, torch.Tensor | torch.nn.Module | functools.partial | types.MethodType):
        return True
    if isinstance(value, types.FunctionType):
        module = value.__module__ or ""
        return not (module == "torch" or module.startswith(("torch.", "funcaot")))
    if isinstance(value, list | tuple | dict | set):
        return 0 < len(value) <= _CONTAINER_LIMIT
    if isinstance(value, type | types.ModuleType | str | bytes | int | float | complex):
        return False
    return hasattr(value, "__dict__") and not callable(getattr(value, "__torch_function__", None))


def _children(holder: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(holder, torch.nn.Module):
        yield from _entries(holder.__dict__, "{parent}.__dict__")
    elif isinstance(holder, types.FunctionType):
        yield from _children_of_function(holder)
    elif isinstance(holder, types.MethodType):
        yield "{parent}.__self__", holder.__self__
        yield "{parent}.__func__", holder.__func__
    elif isinstance(holder, functools.partial):
        yield "{parent}.func", holder.func
        yield from ((f"{{parent}}.args[{i}]", value) for i, value in enumerate(holder.args))
        yield from _entries(holder.keywords, "{parent}.keywords")
    elif isinstance(holder, list | tuple):
        yield from ((f"{{parent}}[{i}]", value) for i, value in enumerate(holder))
    elif isinstance(holder, dict):
        yield from _entries(holder, "{parent}")
    elif hasattr(holder, "__dict__"):
        yield from _entries(vars(holder), "{parent}.__dict__")


def _entries(mapping: dict[Any, Any], access: str) -> Iterator[tuple[str, Any]]:
    for key, value in list(mapping.items()):
        if isinstance(key, str | int | bool):
            quoted = repr(key).replace("{", "{{").replace("}", "}}")
            yield f"{access}[{quoted}]", value


def _children_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for index, cell in enumerate(function.__closure__ or ()):
        try:
            yield f"{{parent}}.__closure__[{index}].cell_contents", cell.cell_contents
        except ValueError:  # a cell that isn't filled yet
            continue
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield f"{{parent}}.__globals__[{name!r}]", function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"{{parent}}.__defaults__[{index}]", value
    yield from _entries(function.__kwdefaults__ or {}, "{parent}.__kwdefaults__")


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names
