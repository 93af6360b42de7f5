"""State that a function keeps: attributes, items and variables that it assigns tensors to.

A capture runs on tensors without values, so what it stores is taken out again, becomes an extra
output of the captured function, and is stored at every call. What doesn't hold tensors is
treated so only if the function's code also reads it; what it only counts in or adds to changes
when the function is captured, once per compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch import tracing
from funcaot._torch.pytree import tree_flatten, tree_map
from funcaot.aot import state
from funcaot.aot.environment import Environment, is_setting, scan
from funcaot.aot.paths import path_of
from funcaot.aot.state import MISSING, Bag
from funcaot.errors import UnsupportedError

Reach = Callable[[tuple[Any, ...]], tuple[Any, ...] | None]


@dataclass(frozen=True, eq=False)
class Held:
    """An object that was there before, as a leaf of an output."""

    thing: Any


@dataclass(frozen=True, eq=False)
class Change:
    """What happens to one dictionary, cell, list, deque or set.

    Attributes:
        path: Where it is, for messages.
        assigned: Keys and the positions of their new values; None to remove the key.
        added: Positions of values that are appended.
        contents: Everything in it, if it can't be said otherwise: positions of values that were
            there, and of new ones.
        compared: Whether a call must find in it what the capture found.
    """

    path: str
    assigned: tuple[tuple[Any, int | None], ...] = ()
    added: tuple[int, ...] = ()
    contents: tuple[tuple[bool, int], ...] | None = None
    compared: bool = False

    def apply(self, thing: Any, values: Sequence[Any]) -> None:
        """Make the change to the thing of a call."""
        for key, position in self.assigned:
            state.put(thing, key, MISSING if position is None else values[position])
        if self.added:
            thing.extend([values[position] for position in self.added])
        if self.contents is not None:
            old = list(thing.items() if isinstance(thing, dict) else thing)
            state.fill(thing, [old[i] if kept else values[i] for kept, i in self.contents])

    def __str__(self) -> str:
        """``self.hidden`` style, with what happens."""
        parts = [f"{key} " + ("removed" if at is None else "assigned") for key, at in self.assigned]
        parts += [f"{len(self.added)} added"] if self.added else []
        parts += ["rearranged"] if self.contents is not None else []
        return f"{self.path}: {', '.join(parts)}"


@dataclass(frozen=True, eq=False)
class StateEffects:
    """What a function stores.

    Attributes:
        function: The function, from which everything is reached.
        changes: One per thing that is changed.
        reach: Finds these things at a call; made with the reader of the environment.
        positions: Leaves that ``reach`` needs.
    """

    function: Callable[..., Any]
    changes: tuple[Change, ...]
    reach: Reach
    positions: tuple[int, ...]

    def apply(self, leaves: Sequence[Any], values: Sequence[Any]) -> None:
        """Store what a call computed."""
        things = self.reach((self.function, *[leaves[index] for index in self.positions]))
        if things is None:
            raise RuntimeError("what a compiled function stores in was replaced while it ran")
        made = [value if isinstance(value, torch.Tensor) else _unpacked(value) for value in values]
        for change, thing in zip(self.changes, things, strict=True):
            change.apply(thing, made)

    def __str__(self) -> str:
        """One line per thing."""
        return "\n".join(map(str, self.changes))


def _unpacked(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.thing if isinstance(leaf, Held) else leaf, value)


@dataclass(eq=False)
class StateTracker:
    """Runs a function that is being captured and takes out what it stores.

    Attributes:
        function: The user's function.
        leaves: Flat leaves of the call.
        name: The user's function, for messages.
        found: What it changed; then it returns ``(result, values)``.
    """

    function: Callable[..., Any]
    leaves: Sequence[Any]
    name: str
    found: tuple[tuple[Bag, Change], ...] = ()
    _values: list[Any] = field(default_factory=list)
    _places: dict[int, int] = field(default_factory=dict)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the function on the tape's tensors."""
        self.found, self._values, self._places = (), [], {}
        constants = [
            leaf
            for leaf in self.leaves
            if not isinstance(leaf, torch.Tensor) and not is_setting(leaf)
        ]
        environment = scan((self.function, *constants))
        bags = state.bags_of(environment)
        try:
            result = self.function(*args, **kwargs)
        finally:
            found = [(bag, self._change(bag, environment)) for bag in bags]
            self.found = tuple((bag, change) for bag, change in found if change is not None)
            for bag, change in self.found:
                _put_back(bag, change)
        if not self.found:
            return result
        return result, tuple(self._packed(value, environment) for value in self._values)

    def _change(self, bag: Bag, environment: Environment) -> Change | None:
        if isinstance(bag.before, dict):
            return self._change_of_entries(bag, environment)
        now = bag.now()
        if len(now) == len(bag.before) and all(map(_same, now, bag.before)):
            return None
        read = bag.holder not in environment.unread
        path = path_of(environment, bag.holder)
        if isinstance(bag.thing, set):
            new = [item for item in now if item not in set(bag.before)]
            if any(isinstance(item, torch.Tensor) for item in new):
                raise self._unsupported(f"puts a tensor into the set {path}", "a list or a dict")
            return self._change_of_contents(bag, path, now) if read else None
        count = len(bag.before)
        grown = len(now) >= count and all(map(_same, now, bag.before))
        if not read and not any(map(_holds_tensor, now[count:] if grown else now)):
            return None
        if not grown:
            return self._change_of_contents(bag, path, now)
        added = tuple(self._value(value) for value in now[count:])
        return Change(path, added=added, compared=read)

    def _change_of_contents(self, bag: Bag, path: str, now: Sequence[Any]) -> Change:
        old = {id(value): index for index, value in reversed(list(enumerate(bag.before)))}
        contents = tuple(
            (True, old[id(value)]) if id(value) in old else (False, self._value(value))
            for value in now
        )
        return Change(path, contents=contents, compared=True)

    def _change_of_entries(self, bag: Bag, environment: Environment) -> Change | None:
        keys = state.changed_keys(bag)
        before, now = bag.before, bag.now()
        if not isinstance(before, dict) or not isinstance(now, dict):
            raise TypeError("entries of something that has none")
        in_order = not isinstance(bag.thing, dict) or bag.named or bag.names is not None
        moved = not in_order and state.is_reordered(before, now)
        if not keys and not moved:
            return None
        assigned: list[tuple[Any, int | None]] = []
        read = False
        for key in keys:
            if isinstance(key, tracing.FunctionalTensor):
                raise self._unsupported("uses a tensor as a key of a dictionary", "its name")
            old, new = before.get(key, MISSING), now.get(key, MISSING)
            if is_setting(old) and is_setting(new) and type(old) is type(new) and old == new:
                continue
            name = state.name_of(bag, key, environment)
            matters = environment.names.reads(name) and bag.holder not in environment.unread
            if matters or _holds_tensor(new) or (new is MISSING and _holds_tensor(old)):
                read |= matters
                assigned.append((key, None if new is MISSING else self._value(new)))
        path = path_of(environment, bag.holder)
        if moved and (assigned or bag.holder not in environment.unread):
            old_keys = [*before]
            raise_if = [key for key in now if key in before and now[key] is not before[key]]
            pairs = [
                (True, old_keys.index(key))
                if key in before and key not in raise_if
                else (False, self._value((key, value)))
                for key, value in now.items()
            ]
            return Change(path, contents=tuple(pairs), compared=True)
        if not assigned:
            return None
        return Change(path, tuple(assigned), compared=read)

    def _value(self, value: Any) -> int:
        position = self._places.setdefault(id(value), len(self._values))
        if position == len(self._values):
            self._values.append(value)
        return position

    def _packed(self, value: Any, environment: Environment) -> Any:
        """A value as an output: what was there before, and other objects, as they are."""

        def is_old(item: Any) -> bool:
            return id(item) in environment.objects and not isinstance(item, torch.Tensor)

        def pack(leaf: Any) -> Any:
            if isinstance(leaf, torch.nn.Parameter) and isinstance(leaf, tracing.FunctionalTensor):
                raise self._unsupported("makes a parameter and keeps it", "a tensor or a buffer")
            if isinstance(leaf, torch.Tensor) or (is_setting(leaf) and not is_old(leaf)):
                return leaf
            if not is_old(leaf) and hides_tensor(leaf):
                raise self._unsupported(
                    f"keeps an object of class {type(leaf).__name__} with tensors in it",
                    "the tensors themselves, or tuples, lists and dictionaries of them",
                )
            return Held(leaf)

        return tree_map(pack, value, is_leaf=is_old)

    def _unsupported(self, what: str, remedy: str) -> UnsupportedError:
        return UnsupportedError(f"{self.name} {what}.", remedy=f"keep {remedy}.")


def _put_back(bag: Bag, change: Change) -> None:
    if not isinstance(bag.before, dict):
        state.fill(bag.thing, bag.before)
    elif change.contents is not None:
        state.fill(bag.thing, [*bag.before.items()])
    else:
        for key, _ in change.assigned:
            state.put(bag.thing, key, bag.before.get(key, MISSING))


def _same(first: Any, second: Any) -> bool:
    return first is second


def _holds_tensor(value: Any) -> bool:
    if value is MISSING or is_setting(value):
        return False
    return any(isinstance(leaf, torch.Tensor) or hides_tensor(leaf) for leaf in tree_flatten(value)[0])


def hides_tensor(value: Any) -> bool:
    """Whether an object that isn't a container has tensors of a capture in it."""
    if isinstance(value, torch.Tensor) or is_setting(value):
        return False
    found = scan(value).objects.values()
    return any(isinstance(item, tracing.FunctionalTensor | tracing.FakeTensor) for item in found)
