"""The generated function that reads a function's environment again at each call.

It fetches the tensors that the function closes over from where they were found, and returns None
when something that decides what the function does has changed: a module was replaced, switched
between training and evaluation or got a hook, a setting has another value, a tensor is shared
where it wasn't. Nothing found in the environment is kept alive: objects are compared through weak
references.
"""

from __future__ import annotations

import types
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.shapes import SizeError
from funcaot.aot.environment import (
    MODULE_DICTIONARIES,
    MODULE_HOOKS,
    Environment,
    Place,
    is_setting,
    scan,
)
from funcaot.aot.leaks import warn_of_leaks
from funcaot.aot.source import Source
from funcaot.aot.state import MISSING, Bag
from funcaot.aot.state_effects import Change, StateEffects
from funcaot.aot.state_tracker import StateTracker
from funcaot.errors import UnsupportedError


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads a function's environment.

    Attributes:
        read: Takes ``(function, *leaves)``, the leaves being those at ``positions``, and returns
            the closed-over tensors, or None if the environment isn't as it was.
        positions: Leaves of the arguments that belong to the environment: objects that hold
            tensors or settings, and tensors that are also reached otherwise.
    """

    read: Callable[[tuple[Any, ...]], tuple[torch.Tensor, ...] | None]
    positions: tuple[int, ...]

    def __call__(
        self, function: Callable[..., Any], leaves: Sequence[Any]
    ) -> tuple[torch.Tensor, ...] | None:
        """Read, for a call with these flat leaves."""
        return self.read((function, *[leaves[index] for index in self.positions]))


def make_reader(
    tracker: StateTracker, tensors: Sequence[torch.Tensor]
) -> tuple[Reader | None, StateEffects | None]:
    """Generate the reader of a function that was just captured.

    Args:
        tracker: The function, the flat leaves of the call, and what the function stores.
        tensors: Closed-over tensors to read.

    Returns:
        The reader, or None if there is nothing to read or to compare; and what a call stores.

    Raises:
        UnsupportedError: If a tensor can't be found.
    """
    function, leaves, name = tracker.function, tracker.leaves, tracker.name
    holders = tracker.holders()
    root = (function, *[leaves[index] for index in holders])
    environment = scan(root)
    if environment.escaped:
        raise SizeError(
            f"{name} keeps a size of its arguments for itself.",
            remedy="compile with dynamic=False.",
        )
    warn_of_leaks(environment, name)
    reached = {
        id(leaf): index
        for index, leaf in reversed(list(enumerate(leaves)))
        if isinstance(leaf, torch.Tensor) and environment.places.get(id(leaf))
    }
    positions = (*holders, *reached.values())
    writer = _Writer(environment, root)
    writer.write_settings()
    writer.write_modules()
    writer.write_functions()
    for offset, identity in enumerate(reached):
        for place in environment.places[identity]:
            writer.require(f"{writer.at(place)} is root[{len(root) + offset}]")
    values = [writer.write_tensor(tensor, name) for tensor in tensors]
    writer.write_unread_tensors(tensors)
    writer.write_absent()
    for bag, change in tracker.found:
        if change.compared:
            writer.write_changed(bag, change)
    stored = None
    if tracker.found or tracker.in_arguments:
        finder = _Writer(environment, root)
        things = [finder.thing(bag) for bag, _ in tracker.found]
        changes = tuple(change for _, change in tracker.found)
        reach = finder.build(things)
        stored = StateEffects(function, changes, reach, positions, tracker.in_arguments)
    if not values and not writer.compares:
        return None, stored
    return Reader(writer.build(values), positions), stored


class _Writer:
    """Writes the reader: each object that is needed becomes a variable, fetched once."""

    def __init__(self, environment: Environment, root: Any) -> None:
        self.environment = environment
        self.source = Source()
        self.variables = {id(root): "root", id(root[0]): "f"}
        self.compares = False
        self.source.line("try:")
        self.source.line("f = root[0]", 2)

    def require(self, condition: str) -> None:
        self.compares = True
        self.source.line(f"if not ({condition}): return None", 2)

    def at(self, place: Place) -> str:
        """The expression that reads a place."""
        return place.access.format(parent=self.variable(place.parent))

    def variable(self, identity: int) -> str:
        """The variable of an object, checked to be what it was."""
        known = self.variables.get(identity)
        if known is not None:
            return known
        place = self.environment.places[identity][0]
        expression = self.at(place)
        name = self.source.name("o")
        self.variables[identity] = name
        self.source.line(f"{name} = {expression}", 2)
        self._check(name, self.environment.objects[identity])
        return name

    def _check(self, name: str, target: Any) -> None:
        if isinstance(target, list | tuple | dict | set | deque):
            kind = self.source.constant(type(target), "T")
            self.require(f"type({name}) is {kind} and len({name}) == {len(target)}")
            return
        if isinstance(target, types.MethodType):  # made anew at each access
            return
        try:
            reference = self.source.constant(weakref.ref(target), "ref")
            self.require(f"{reference}() is {name}")
        except TypeError:
            self.require(f"type({name}) is {self.source.constant(type(target), 'T')}")

    def thing(self, bag: Bag) -> str:
        """The expression of something to store in, whatever is in it now."""
        parent = self.variables.get(bag.holder)
        if parent is None and bag.access == "{parent}":
            return self.at(self.environment.places[bag.holder][0])
        return bag.access.format(parent=parent or self.variable(bag.holder))

    def write_settings(self) -> None:
        for place, value in self.environment.settings:
            self._require_setting(self.at(place), value)

    def _require_setting(self, expression: str, value: Any) -> None:
        if value is None or value is True or value is False:
            self.require(f"{expression} is {value}")
            return
        name = self.source.name("s")
        self.source.line(f"{name} = {expression}", 2)
        kept = value.copy() if isinstance(value, list | dict | set | deque) else value
        constant = self.source.constant(kept)
        kind = self.source.constant(type(value), "T")
        if kept is value:
            self.require(f"{name} is {constant} or type({name}) is {kind} and {name} == {constant}")
        else:
            self.require(f"type({name}) is {kind} and {name} == {constant}")

    def write_unread_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Code may look whether a tensor is there without an op on it."""
        read = {id(tensor) for tensor in tensors}
        kind = self.source.constant(torch.Tensor, "T")
        for identity, thing in self.environment.objects.items():
            if isinstance(thing, torch.Tensor) and identity not in read:
                for place in self.environment.places[identity]:
                    if self.environment.is_read(place):
                        self.require(f"isinstance({self.at(place)}, {kind})")

    def write_absent(self) -> None:
        """Attributes that code looks for by their name, and that aren't there."""
        asked = self.environment.names.asked_for
        if not asked:
            return
        for identity, holder in list(self.environment.objects.items()):
            own = getattr(holder, "__dict__", None)
            if not isinstance(own, dict) or not self.environment.names.asks(holder):
                continue
            module = isinstance(holder, torch.nn.Module)
            parts = ("__dict__", *(MODULE_DICTIONARIES if module else ()))
            for name in sorted(asked):
                if not any(name in getattr(holder, part) for part in parts):
                    at = self.variable(identity)
                    self.require(" and ".join(f"{name!r} not in {at}.{part}" for part in parts))

    def write_changed(self, bag: Bag, change: Change) -> None:
        """What the function changes, and also reads, has to be what it was at the capture."""
        if not isinstance(bag.before, dict):
            self.variable(bag.holder)
            return
        thing = self.thing(bag)
        if not isinstance(bag.thing, dict):
            return  # compared as settings, or read as tensors
        if not bag.named:
            self.require(f"[*{thing}] == {self.source.constant([*bag.before], 'keys')}")
        for key, _ in change.assigned:
            text = self.source.constant(key)
            old = bag.before.get(key, MISSING)
            if old is MISSING:
                self.require(f"{text} not in {thing}")
            elif is_setting(old):
                self._require_setting(f"{thing}[{text}]", old)
            else:
                self.require(f"{text} in {thing}")

    def write_modules(self) -> None:
        for identity, module in self.environment.objects.items():
            if not isinstance(module, torch.nn.Module):
                continue
            name = self.variable(identity)
            conditions = [f"{name}.training is {module.training}"]
            conditions += [self._hooks_condition(name, module, hooks) for hooks in MODULE_HOOKS]
            if module._modules:
                conditions.append(f"len({name}._modules) == {len(module._modules)}")
            self.require(" and ".join(conditions))

    def _hooks_condition(self, name: str, module: torch.nn.Module, hooks: str) -> str:
        present = getattr(module, hooks)
        if not present:
            return f"not {name}.{hooks}"
        return f"[*{name}.{hooks}] == {list(present)}"

    def write_functions(self) -> None:
        """Functions called by name may be replaced by others of that name."""
        for identity, target in self.environment.objects.items():
            if isinstance(target, types.FunctionType):
                self.variable(identity)

    def write_tensor(self, tensor: torch.Tensor, name: str) -> str:
        places = self.environment.places.get(id(tensor))
        if not places:
            raise UnsupportedError(
                f"{name} uses a tensor ({list(tensor.shape)}, {tensor.dtype}) that isn't an "
                "argument and wasn't found in its closure, its globals or its modules.",
                remedy="pass it as an argument.",
            )
        variable = self.source.name("t")
        self.source.line(f"{variable} = {self.at(places[0])}", 2)
        for place in places[1:]:
            self.require(f"{self.at(place)} is {variable}")
        return variable

    def build(self, values: Sequence[str]) -> Callable[..., Any]:
        self.source.line(f"return ({''.join(f'{value}, ' for value in values)})", 2)
        self.source.line("except (AttributeError, KeyError, IndexError, ValueError, TypeError):")
        self.source.line("return None", 2)
        return self.source.build("read(root)")
