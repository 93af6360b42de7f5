"""State that a function keeps: attributes, items and variables that it assigns tensors to.

A capture runs on tensors without values, so what it stores is taken out again, becomes an extra
output of the captured function, and is stored at every call. What doesn't hold tensors is
treated so only if the function's code also reads it; what it only counts in or adds to changes
when the function is captured, once per compilation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_map
from funcaot.aot.state import arguments, state
from funcaot.aot.state.state import MISSING
from funcaot.errors import UnsupportedError

Call = tuple[tuple[Any, ...], dict[str, Any]]
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
        in_arguments: The same for containers among the arguments, by their paths.
    """

    function: Callable[..., Any]
    changes: tuple[Change, ...]
    reach: Reach
    positions: tuple[int, ...]
    in_arguments: tuple[tuple[arguments.Path, Change], ...] = ()

    def apply(self, leaves: Sequence[Any], call: Call, values: Sequence[Any]) -> None:
        """Store what a call computed.

        Args:
            leaves: Leaves of the arguments.
            call: The arguments, ``(args, kwargs)``.
            values: What the captured function returned besides its result.
        """
        things = self.reach((self.function, *[leaves[index] for index in self.positions]))
        if things is None:
            raise RuntimeError("what a compiled function stores in was replaced while it ran")
        made = [value if isinstance(value, torch.Tensor) else _unpacked(value) for value in values]
        given = self._given(call) if self.in_arguments else []
        for change, thing in zip(self.changes, things, strict=True):
            change.apply(thing, made)
        for (_, change), thing in zip(self.in_arguments, given, strict=True):
            change.apply(thing, made)

    def _given(self, call: Call) -> list[Any]:
        found = [arguments.find(call, path) for path, _ in self.in_arguments]
        every = [id(thing) for _, thing in arguments.containers(call)]
        for thing, (_, change) in zip(found, self.in_arguments, strict=True):
            if every.count(id(thing)) > 1:
                raise UnsupportedError(
                    f"{change.path} is changed, and among the arguments in two places.",
                    remedy="pass it once.",
                )
        return found

    def __str__(self) -> str:
        """One line per thing."""
        return "\n".join(map(str, [*self.changes, *(change for _, change in self.in_arguments)]))


def _unpacked(value: Any) -> Any:
    return tree_map(lambda leaf: leaf.thing if isinstance(leaf, Held) else leaf, value)
