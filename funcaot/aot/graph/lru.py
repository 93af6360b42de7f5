"""Programs derived from a program, kept under their parent: as many as the configuration says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from funcaot import config

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Derived(OrderedDict[Key, Value], Generic[Key, Value]):
    """A dictionary that drops what was used least recently.

    Lookups happen without a lock, additions under the lock of the compiled function. A program
    that is dropped while it runs is held by who runs it.
    """

    def get(self, key: Key, default: Value | None = None) -> Value | None:  # type: ignore[override]
        """Look up and mark as used."""
        found = super().get(key, default)
        if found is not None:
            try:
                self.move_to_end(key)
            except KeyError:  # dropped by another thread meanwhile
                return found
        return found

    def __setitem__(self, key: Key, value: Value) -> None:
        super().__setitem__(key, value)
        while len(self) > config.get().derived_programs:
            self.popitem(last=False)
