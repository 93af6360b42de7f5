"""What code that ran gave new values, and which values it may have given without showing it."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from funcaot.aot.closure.constants import is_immutable
from funcaot.aot.closure.named.changing import ANY_KEY
from funcaot.aot.closure.named.code_names import ReadNames

__all__ = ["Given", "told_key"]

_CHANGEABLE = (list, dict, set, deque, bytearray)
_OBJECT = object()


@dataclass(frozen=True)
class Given:
    """What code that ran gave new values.

    Attributes:
        changed: Attributes and globals, each with what it is of; those of classes with a zero.
        made_of_old: Names of those whose new values were made of old ones by more than counting.
        items_made_of_old: Containers, by ``id``, some of whose items were.
        items: Containers that changed, by ``id``, and the keys of their new items (`told_key`).
    """

    changed: frozenset[tuple[int, Any]] = frozenset()
    made_of_old: frozenset[Any] = frozenset()
    items_made_of_old: frozenset[int] = frozenset()
    items: Mapping[int, frozenset[Any]] = field(default_factory=dict)

    def may_hold(self, holder: int, name: str, value: Any, names: ReadNames) -> bool:
        """Whether code may have assigned the value that was there, which shows where it is another.

        A new list is another object, which shows; one that was there is looked at as an object.

        A whole number that code counts in and that didn't change was counted by zero, or by a
        Function that runs in each call.

        Args:
            holder: What the value is an attribute of, by ``id``.
            name: The attribute.
            value: The value.
            names: What the code does with names.
        """
        if not name or isinstance(value, _CHANGEABLE):
            return False
        if {(holder, name), (0, name)} & self.changed:
            return False
        if names.assigns(name):
            return True
        return names.counts(name) and (type(value) is not int or name in self.made_of_old)

    def may_hold_items(self, thing: Any, names: ReadNames) -> bool:
        """The same of what is in a container in which code assigns items by its name."""
        changed = self.items.get(id(thing))
        if isinstance(thing, set):
            return names.uses("add")
        full = isinstance(thing, deque) and len(thing) == thing.maxlen
        if full and changed is None and (names.uses("append") or names.uses("appendleft")):
            return True
        keys = dict.keys(thing) if isinstance(thing, dict) else range(-len(thing), len(thing))
        present = {*map(told_key, keys)} - (changed or frozenset())
        assigned = names.keys_assigned
        return bool(present) if ANY_KEY in assigned else not assigned.isdisjoint(present)


def told_key(key: Any) -> Any:
    """A key of a dictionary as it may be compared: an object of the user's by which it is."""
    return key if is_immutable(key) else (_OBJECT, id(key))
