"""What code that ran gave new values, and which values it may have given without showing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from funcaot.aot.closure.constants import is_scalar
from funcaot.aot.closure.named.code_names import ReadNames

__all__ = ["Given"]


@dataclass(frozen=True)
class Given:
    """What code that ran gave new values.

    Attributes:
        changed: Attributes and globals, each with what it is of; those of classes with a zero.
        made_of_old: Names of those whose new values were made of old ones by more than counting.
    """

    changed: frozenset[tuple[int, Any]] = frozenset()
    made_of_old: frozenset[Any] = frozenset()

    def may_hold(self, holder: int, name: str, value: Any, names: ReadNames) -> bool:
        """Whether code may have assigned the value that was there, which shows where it is another.

        A whole number that code counts in and that didn't change was counted by zero, or by a
        Function that runs in each call.

        Args:
            holder: What the value is an attribute of, by ``id``.
            name: The attribute.
            value: The value.
            names: What the code does with names.
        """
        if not (name and is_scalar(value)) or {(holder, name), (0, name)} & self.changed:
            return False
        if names.assigns(name):
            return True
        return names.counts(name) and (type(value) is not int or name in self.made_of_old)
