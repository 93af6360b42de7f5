"""Comparing what a function reaches with what was there before it ran."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tensors.sizes import shapes
from funcaot._torch.tensors.sizes.number_tensors import kind_of
from funcaot._torch.tensors.sizes.written_numbers import holds_written, is_written
from funcaot._torch.tracing import tracing
from funcaot.aot.closure.constants import is_immutable, is_setting
from funcaot.aot.closure.environment import Environment
from funcaot.aot.closure.lazy import holds_traced
from funcaot.aot.closure.walk import scan
from funcaot.aot.state import state
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.aot.state.state import MISSING, Bag
from funcaot.aot.state.state_effects import Change
from funcaot.classes.addresses import Address
from funcaot.errors import UnsupportedError


class Changes:
    """Finds what changed, and collects the new values, each once.

    Attributes:
        computed: Names of numbers that Python computes in each call, in the log of open ones.
    """

    def __init__(self, name: str, environment: Environment) -> None:
        """Start without values.

        Args:
            name: The user's function, for messages.
            environment: What it reaches, from before it ran.
        """
        self._name = name
        self._environment = environment
        self._values: list[Any] = []
        self._positions: dict[int, int] = {}
        self.computed: list[str] = []

    def has_changed(self, bag: Bag) -> bool:
        """Whether a thing holds other objects than before, or in another order."""
        now = bag.now()
        if isinstance(bag.before, dict) and isinstance(now, dict):
            return bool(state.changed_keys(bag)) or self._is_moved(bag)
        return len(now) != len(bag.before) or not all(map(_same, now, bag.before))

    def of(self, bag: Bag, path: str, *, read: bool) -> Change | None:
        """What a call has to do to a thing that changed.

        Args:
            bag: The thing and what was in it.
            path: Where it is, for messages.
            read: Whether the function's code also reads it.

        Returns:
            The change; None if there is none after all.

        Raises:
            FirstStepError: If a module has other hooks now.
        """
        if bag.is_of_hooks:
            raise FirstStepError("registers or removes a hook of a module")
        if isinstance(bag.before, dict):
            return self._of_entries(bag, path, read=read)
        before, items = tuple(bag.before), tuple(bag.now())
        if isinstance(bag.thing, set):
            if any(isinstance(item, torch.Tensor) for item in items):
                raise self.unsupported(f"changes {path}, a set with tensors", "keep a list")
            new = tuple(item for item in items if item not in set(before))
            items = (*before, *new) if len(items) == len(before) + len(new) else items
        pushed = _pushed(bag.thing, items, before)
        if pushed is not None:
            return self._of_added(path, pushed, read=read)
        grown = len(items) > len(before) and all(map(_same, items, before))
        if not grown and (computed := self._computed_items(bag, items, before)):
            return Change(path, computed=computed, left_open=frozenset(dict(computed)))
        if not grown:
            counted = () if read else self._counted_items(bag, items, before)
            return Change(path, counted=counted) if counted else self._of_contents(bag, path, items)
        return self._of_added(path, items[len(before) :], read=read)

    def _of_added(self, path: str, new: Sequence[Any], *, read: bool) -> Change:
        return Change(path, added=tuple(map(self._position, new)), compared=read)

    def _of_contents(self, bag: Bag, path: str, items: Sequence[Any]) -> Change:
        old = {id(value): index for index, value in reversed(list(enumerate(bag.before)))}
        contents = tuple(
            (True, old[id(value)]) if id(value) in old else (False, self._position(value))
            for value in items
        )
        return Change(path, contents=contents, compared=True)

    def _of_entries(self, bag: Bag, path: str, *, read: bool) -> Change | None:
        before, now = _entries(bag.before), _entries(bag.now())
        assigned: list[tuple[Any, int | None]] = []
        counted: list[tuple[Any, int]] = []
        computed: list[tuple[Any, int]] = []
        made_of_old = set[Any]()
        compared = False
        for key in state.changed_keys(bag):
            if tracing.is_symbolic(key):
                raise self.unsupported(f"uses a tensor as a key of {path}", "use its name")
            old, new = before.get(key, MISSING), now.get(key, MISSING)
            if is_written(new):
                computed.append((key, self.number(new)))
                continue
            if is_immutable(old) and is_immutable(new) and type(old) is type(new) and old == new:
                continue
            name = state.name_of(bag, key, self._environment)
            matters = read and self._environment.names.reads(name) and not holds_written(old)
            if self._is_a_librarys(name) and not (matters or _holds(old, new)):
                continue
            if not matters and self._counts(bag, key):
                if is_count(old) and is_count(new):
                    counted.append((key, new - old))
                    continue
                made_of_old.add(key)
            # Looking a key up makes its entry where there is none: kept["a"].append(x).
            made = old is MISSING and hasattr(type(bag.thing), "__missing__")
            compared |= matters or new is MISSING or made
            assigned.append((key, None if new is MISSING else self._position(new)))
        if self._is_moved(bag) and (assigned or read):
            return self._of_pairs(path, before, now)
        if not assigned and not counted and not computed:
            return None
        return Change(
            path,
            tuple(assigned),
            compared=compared,
            counted=tuple(counted),
            made_of_old=frozenset(made_of_old),
            computed=tuple(computed),
            left_open=frozenset(key for key, value in before.items() if _is_open(value)),
        )

    def plain_part(self, bag: Bag) -> Bag | None:
        """The part of a change that neither holds tensors nor is read.

        Returns:
            The thing as if nothing else had changed in it; None if there is no such part.
        """
        read = bag.holder not in self._environment.unread
        before, now = bag.before, bag.now()
        if not (isinstance(before, dict) and isinstance(now, dict)):
            return None if read or any(map(holds_tensor, [*before, *now])) else bag
        kept = dict(now)
        for key in state.changed_keys(bag):
            old, new = before.get(key, MISSING), now.get(key, MISSING)
            name = state.name_of(bag, key, self._environment)
            if _holds(old, new) or (read and self._environment.names.reads(name)):
                continue
            kept[key] = old
            if old is MISSING:
                del kept[key]
        same = len(kept) == len(now) and all(kept[key] is now[key] for key in now)
        return None if same else replace(bag, before=kept)

    def number(self, number: Any) -> int:
        """Which of the numbers that Python computes one is."""
        if number.name not in self.computed:
            self.computed.append(number.name)
        return self.computed.index(number.name)

    def _computed_items(
        self, bag: Bag, items: Sequence[Any], before: Sequence[Any]
    ) -> tuple[tuple[int, int], ...]:
        """The new numbers in a list, if Python computes all that is new in it."""
        if len(items) != len(before) or not isinstance(bag.thing, list):
            return ()
        new = [(i, item) for i, item in enumerate(items) if item is not before[i]]
        if not all(is_written(item) for _, item in new):
            return ()
        return tuple((index, self.number(item)) for index, item in new)

    def _is_a_librarys(self, name: str) -> bool:
        """Whether no code of the user's says the name of an attribute."""
        names = self._environment.names
        return bool(name) and not (names.sets_any or names.mentions(name))

    def _counted_items(
        self, bag: Bag, items: Sequence[Any], before: Sequence[Any]
    ) -> tuple[tuple[int, int], ...]:
        """What is added to numbers in a list, if that is all that happens to it."""
        if len(items) != len(before) or not isinstance(bag.thing, list):
            return ()
        pairs = [
            (i, new, old)
            for i, (new, old) in enumerate(zip(items, before, strict=True))
            if new is not old
        ]
        if not all(is_count(new) and is_count(old) for _, new, old in pairs):
            return ()
        if not self._counts(bag, 0):
            return ()
        return tuple((index, new - old) for index, new, old in pairs)

    def _counts(self, bag: Bag, key: Any) -> bool:
        """Whether code makes an entry of what was there."""
        environment = self._environment
        if bag.named:
            return environment.names.counts(state.name_of(bag, key, environment))
        return environment.counts_items(bag.holder)

    def _of_pairs(self, path: str, before: dict[Any, Any], now: dict[Any, Any]) -> Change:
        keys = [*before]
        contents = tuple(
            (True, keys.index(key))
            if key in before and before[key] is value
            else (False, self._position((key, value)))
            for key, value in now.items()
        )
        return Change(path, contents=contents, compared=True)

    def _is_moved(self, bag: Bag) -> bool:
        """Whether the keys of a user's dictionary changed their order."""
        if not bag.is_users_dictionary:
            return False
        return state.is_reordered(_entries(bag.before), _entries(bag.now()))

    def _position(self, value: Any) -> int:
        position = self._positions.setdefault(id(value), len(self._values))
        if position == len(self._values):
            self._values.append(value)
        return position

    def numbers(self) -> tuple[tuple[int, type], ...]:
        """Positions of new values that stand for numbers, with the classes of these."""
        kinds = [(position, kind_of(value)) for position, value in enumerate(self._values)]
        return tuple((position, kind) for position, kind in kinds if kind is not None)

    def packed(self) -> tuple[Any, ...]:
        """The new values, as outputs of the captured function.

        Raises:
            FirstStepError: If one is a parameter or a module that the function made.
        """
        for value in self._values:
            for leaf in tree_flatten(value)[0]:
                if isinstance(leaf, torch.nn.Parameter) and tracing.is_symbolic(leaf):
                    raise FirstStepError("makes a parameter and keeps it")
                if isinstance(leaf, torch.nn.Module) and hides_tensor(leaf):
                    raise FirstStepError(f"makes a module ({type(leaf).__name__}) and keeps it")
        values, self._values = tuple(self._values), []
        return values

    def unsupported(self, what: str, remedy: str) -> UnsupportedError:
        """An error about the captured function."""
        return UnsupportedError(f"{self._name} {what}.", remedy=f"{remedy}.")


def _pushed(thing: Any, items: Sequence[Any], before: Sequence[Any]) -> Sequence[Any] | None:
    """What was appended to a deque that has a longest length, if nothing else happened to it."""
    longest = thing.maxlen if isinstance(thing, deque) else None
    if longest is None or len(items) != longest:
        return None
    for count in range(1, longest):
        kept = items[: longest - count]
        if len(kept) <= len(before) and all(map(_same, kept, before[len(before) - len(kept) :])):
            return items[longest - count :]
    return None


def _entries(contents: Any) -> dict[Any, Any]:
    if not isinstance(contents, dict):
        raise TypeError("entries of something that has none")
    return contents


def _same(first: Any, second: Any) -> bool:
    return first is second


def is_count(value: Any) -> bool:
    """Whether a value is a number that only adding to makes another."""
    return type(value) is int


def _holds(old: Any, new: Any) -> bool:
    return holds_tensor(new) or (new is MISSING and holds_tensor(old))


def holds_tensor(value: Any) -> bool:
    """Whether a new value is a tensor or has one in it."""
    if value is MISSING or (is_setting(value) and not isinstance(value, slice)):
        return False
    return any(
        isinstance(leaf, torch.Tensor) or hides_tensor(leaf) for leaf in tree_flatten(value)[0]
    )


def hides_tensor(value: Any) -> bool:
    """Whether an object that isn't a container has tensors of a capture in it."""
    if isinstance(value, (torch.Tensor, types.ModuleType, type, *shapes.SYMBOLIC_NUMBERS)):
        return False
    if holds_traced(value):
        return True
    return not is_setting(value) and any(map(tracing.is_traced, scan(value).objects.values()))


def _is_open(value: Any) -> bool:
    """Whether a number that is left open is there, or in what is there."""
    if type(value) in (list, dict):
        return any(map(holds_written, value.values() if type(value) is dict else value))
    return holds_written(value)


def refuse_text(value: Any, name: str) -> None:
    """Refuse to return or keep the address of a tensor, or its text, which has no numbers yet."""
    if isinstance(value, Address):
        value.refuse()
    if isinstance(value, str) and tracing.CAPTURED in value:
        raise UnsupportedError(
            f"{name} returns or keeps the text of a tensor, {value!r}, whose numbers aren't known "
            "while it is captured.",
            remedy="return the tensor, and write it as text outside.",
        )
