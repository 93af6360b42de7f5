"""Texts that names may be made of, in code that gets attributes by name; ``code_names`` asks them.

A walk asks about each global of each module it has reached, again whenever more code is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["Fragments"]


class Fragments:
    """Parts of names; of each name it is remembered which parts it was compared with."""

    def __init__(self) -> None:
        """No parts yet."""
        self._parts: dict[str, None] = {}
        self._named: list[str] = []
        self._blank: list[str] = []
        self._compared: dict[str, int] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, parts: Iterable[str]) -> None:
        """Know some more."""
        for part in parts:
            if part not in self._parts:
                self._parts[part] = None
                (self._named if part.strip("_") else self._blank).append(part)

    def are_in(self, name: str) -> bool:
        """Whether one of them is in a name."""
        return self.name(name) or any(part in name for part in self._blank)

    def name(self, name: str) -> bool:
        """Whether one of them that isn't made of underscores alone is in a name."""
        compared = self._compared.get(name, 0)
        if 0 <= compared < len(self._named):
            found = any(part in name for part in self._named[compared:])
            compared = self._compared[name] = -1 if found else len(self._named)
        return compared < 0
