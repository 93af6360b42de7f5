"""State that a function keeps: attributes, items and variables that it assigns tensors to.

A capture runs on tensors without values, so what it stores is taken out again, becomes an extra
output of the captured function, and is stored at every call. A number that it only counts in is
counted on from what a call finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from funcaot._torch.tensors.sizes.number_tensors import plain
from funcaot.aot.closure.children import base_of
from funcaot.aot.state import arguments, state
from funcaot.aot.state.results.plans import Unmade
from funcaot.aot.state.results.returned_floats import Written, with_computed, with_floats
from funcaot.aot.state.state import MISSING
from funcaot.errors import UnsupportedError

Call = tuple[tuple[Any, ...], dict[str, Any]]
Reach = Callable[[tuple[Any, ...]], tuple[Any, ...] | None]


@dataclass(frozen=True, eq=False)
class Change:
    """What happens to one dictionary, cell, list, deque or set.

    Attributes:
        path: Where it is, for messages.
        assigned: Keys and the positions of their new values; None to remove the key.
        added: Positions of values that are appended, or put into a set.
        contents: Everything in it, if it can't be said otherwise: positions of values that were
            there, and of new ones.
        compared: Whether a call must find in it what the capture found.
        counted: Keys of numbers, and what is added to them.
        made_of_old: Keys whose new values were made of the old ones in another way.
        computed: Keys of numbers that Python computes in each call, and which of them they are.
        left_open: Keys of numbers that may be others in each call.
    """

    path: str
    assigned: tuple[tuple[Any, int | None], ...] = ()
    added: tuple[int, ...] = ()
    contents: tuple[tuple[bool, int], ...] | None = None
    compared: bool = False
    counted: tuple[tuple[Any, int], ...] = ()
    made_of_old: frozenset[Any] = frozenset()
    computed: tuple[tuple[Any, int], ...] = ()
    left_open: frozenset[Any] = frozenset()

    @property
    def makes_items(self) -> bool:
        """Whether some values are others now, and not by counting."""
        return bool(self.assigned or self.computed) or self.contents is not None

    def apply(self, thing: Any, values: Sequence[Any], numbers: Sequence[Any] = ()) -> None:
        """Make the change to the thing of a call."""
        for key, position in self.computed:
            state.put(thing, key, numbers[position])
        for key, position in self.assigned:
            state.put(thing, key, MISSING if position is None else values[position])
        for key, step in self.counted:
            state.put(thing, key, state.get(thing, key) + step)
        if self.added:
            new = [values[position] for position in self.added]
            own = base_of(thing)
            (own.update if isinstance(thing, set) else own.extend)(thing, new)
        if self.contents is not None:
            found = state.contents_of(thing)
            old = list(found.items() if isinstance(found, dict) else found)
            state.fill(thing, [old[i] if kept else values[i] for kept, i in self.contents])

    def __str__(self) -> str:
        """``self.hidden`` style, with what happens."""
        parts = [f"{key} " + ("removed" if at is None else "assigned") for key, at in self.assigned]
        parts += [f"{key} counted" for key, _ in self.counted]
        parts += [f"{key} computed" for key, _ in self.computed]
        parts += [f"{len(self.added)} added"] if self.added else []
        parts += ["rearranged"] if self.contents is not None else []
        return f"{self.path}: {', '.join(parts)}"


@dataclass(frozen=True)
class Site:
    """Where a thing is that is changed, in a form that means the same in another process.

    Attributes:
        key: How its holder is reached, step by step; None if the code that ran doesn't lead there.
        access: Source text that gets it from the holder.
        names: The keys that count, if not all do.
        named: Whether its keys are names that code uses.
    """

    key: tuple[str, ...] | None
    access: str
    names: frozenset[str] | None
    named: bool


@dataclass(frozen=True, eq=False)
class Stored:
    """What a call of another process stored, without what finds the things here.

    Attributes:
        changes: One per thing.
        sites: Where they are.
        in_arguments: The same for containers among the arguments.
        read_off: Which of the new values are numbers that are read off tensors, of which classes.
        returned: Where in the result and the new values tensors stand for floats.
        written: Where in the result and the new values numbers are that Python computes.
    """

    changes: tuple[Change, ...]
    sites: tuple[Site, ...]
    in_arguments: tuple[tuple[arguments.Path, Change], ...]
    read_off: tuple[tuple[int, type], ...] = ()
    returned: tuple[tuple[Any, ...], ...] = ()
    written: tuple[Written, ...] = ()


@dataclass(frozen=True, eq=False)
class StateEffects:
    """What a function stores.

    Attributes:
        function: The function, from which everything is reached.
        changes: One per thing that is changed.
        reach: Finds these things at a call; made with the reader of the environment.
        positions: Leaves that ``reach`` needs.
        in_arguments: The same for containers among the arguments, by their paths.
        kept: Containers that were there before and that it returns or stores: their paths among
            the arguments, or None for those that ``reach`` finds after the changed ones.
        around: How many containers ``reach`` finds then which code reads, and which a container
            among the arguments that is changed mustn't be.
        computed: How many numbers ``reach`` computes, which it finds last.
        sites: Where each thing is that is changed.
        read_off: Which of the new values are numbers that are read off tensors, of which classes.
        returned: Where in the result and the new values tensors stand for floats.
        written: Where in the result and the new values numbers are that Python computes.
    """

    function: Callable[..., Any]
    changes: tuple[Change, ...]
    reach: Reach
    positions: tuple[int, ...]
    in_arguments: tuple[tuple[arguments.Path, Change], ...] = ()
    kept: tuple[arguments.Path | None, ...] = ()
    around: int = 0
    computed: int = 0
    sites: tuple[Site, ...] = ()
    read_off: tuple[tuple[int, type], ...] = ()
    returned: tuple[tuple[Any, ...], ...] = ()
    written: tuple[Written, ...] = ()

    def apply(self, leaves: Sequence[Any], call: Call, outcome: Any) -> Any:
        """Store what a call computed.

        Args:
            leaves: Leaves of the arguments.
            call: The arguments, ``(args, kwargs)``.
            outcome: What the captured function returned: its result and the new values, maybe
                still to be made of what was there before.

        Returns:
            The function's result.
        """
        things = self.reach((self.function, *[leaves[index] for index in self.positions]))
        if things is None:
            raise RuntimeError("what a compiled function stores in was replaced while it ran")
        reached = iter(things[len(self.changes) :])
        if isinstance(outcome, Unmade):
            outcome = outcome.make([self._kept_at(path, reached, call) for path in self.kept])
        numbers = things[len(things) - self.computed :]
        outcome = with_floats(outcome, self.returned)
        outcome = with_computed(outcome, self.written, numbers)
        result, values = outcome
        if self.read_off:
            values = list(values)
            for position, kind in self.read_off:
                values[position] = plain(values[position], kind)
        given = self._given(call) if self.in_arguments else []
        around = things[len(things) - self.computed - self.around : len(things) - self.computed]
        self._refuse_reached((*things[: len(self.changes)], *around), given, call)
        for change, thing in zip(self.changes, things, strict=False):
            change.apply(thing, values, numbers)
        for (_, change), thing in zip(self.in_arguments, given, strict=True):
            change.apply(thing, values, numbers)
        return result

    def _kept_at(self, path: arguments.Path | None, reached: Iterator[Any], call: Call) -> Any:
        return next(reached) if path is None else arguments.find(call, path)

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

    def _refuse_reached(self, around: Sequence[Any], given: Sequence[Any], call: Call) -> None:
        """Refuse a container that is changed, and both an argument and reached in another way."""
        reached = {*map(id, around)}
        for thing, (_, change) in zip(given, self.in_arguments, strict=True):
            if id(thing) in reached:
                raise _changed_twice(change)
        every = {id(thing) for _, thing in arguments.containers(call)}
        for thing, change in zip(around, self.changes, strict=False):
            if id(thing) in every:
                raise _changed_twice(change)

    def __str__(self) -> str:
        """One line per thing."""
        return "\n".join(map(str, [*self.changes, *(change for _, change in self.in_arguments)]))


def _changed_twice(change: Change) -> UnsupportedError:
    return UnsupportedError(
        f"{change.path} is changed, and is both an argument and reached in another way.",
        remedy="pass it as an argument only.",
    )
