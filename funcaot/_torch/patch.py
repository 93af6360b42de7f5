"""One change to torch, as ``patch_table`` lists it: its targets, and whether they are there."""

from __future__ import annotations

import importlib
import inspect
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

__all__ = ["Patch", "Target"]


class _Seen(NamedTuple):
    """What was found at a place, and how it differed; a capture asks dozens of times."""

    owner: Any
    name: str
    found: Any
    code: Any
    difference: str | None

    def is_there_still(self) -> bool:
        """Whether the same function, with the same code, is there."""
        found = getattr(self.owner, self.name, None)
        # A function of a class is another object at each look, but has the same code.
        same = found is self.found or (self.code is not None and type(found) is type(self.found))
        return same and _code_of(found) is self.code


def _code_of(found: Any) -> Any:
    return getattr(found, "__code__", None)


_looked_at: dict[Target, _Seen] = {}


# By identity, as hashing what they say took most of the time of a look.
@dataclass(frozen=True, eq=False)
class Target:
    """A place in torch that a patch changes or counts on.

    Attributes:
        place: ``"module:attribute.attribute"``.
        takes: Its parameters, if it is a function; the patch calls it with these.
        has: Attributes that it has.
    """

    place: str
    takes: tuple[str, ...] | None = None
    has: tuple[str, ...] = ()

    def difference(self) -> str | None:
        """How it looks different in this torch; None if it doesn't."""
        seen = _looked_at.get(self)
        if seen is not None and seen.is_there_still():
            return seen.difference
        module, _, path = self.place.partition(":")
        owner: Any = None
        try:
            found: Any = importlib.import_module(module)
            for name in path.split("."):
                owner, found = found, getattr(found, name)
        except (ImportError, AttributeError) as error:
            return f"{self.place} isn't there ({error})"
        difference = self._difference_of(found)
        _looked_at[self] = _Seen(owner, name, found, _code_of(found), difference)
        return difference

    def _difference_of(self, found: Any) -> str | None:
        missing = [name for name in self.has if not hasattr(found, name)]
        if missing:
            return f"{self.place} has no {', '.join(missing)}"
        if self.takes is None:
            return None
        try:
            parameters = tuple(inspect.signature(found, follow_wrapped=False).parameters)
        except (TypeError, ValueError):
            return f"{self.place} isn't a function"
        # A replaced one passes everything on (see ``compile_lock.replaced_here``).
        if parameters not in (self.takes, ("args", "kwargs")):
            return f"{self.place} takes {', '.join(parameters)}"
        return None


@dataclass(frozen=True)
class Patch:
    """One change to torch.

    Attributes:
        name: What ``config.without_patches`` calls it.
        where: The file that makes it.
        targets: What it changes or counts on.
        why: What is wrong or missing without it.
        without: What happens where it isn't used.
        for_time: Whether it only saves time.
        test: The test that fails when torch needs it no more, or has it broken.
        versions: Where it was tried: from this version up to the other.
        since: The first version that it concerns.
        before: The first version that it doesn't concern any more.
    """

    name: str
    where: str
    targets: tuple[Target, ...]
    why: str
    without: str
    test: str
    for_time: bool = False
    versions: tuple[str, str] = ("2.13", "2.15")
    since: str = ""
    before: str = ""

    @property
    def concerns_this_torch(self) -> bool:
        """Whether this version of torch is one that it is for."""
        now = _numbers(torch.__version__)
        return (not self.since or now >= _numbers(self.since)) and (
            not self.before or now < _numbers(self.before)
        )

    def difference(self) -> str | None:
        """Why it can't be used with this torch; None if it can."""
        found = (target.difference() for target in self.targets)
        return next((text for text in found if text is not None), None)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("+")[0].split(".")[:2])
