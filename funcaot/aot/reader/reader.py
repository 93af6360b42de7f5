"""The generated function that reads a function's environment again at each call.

It fetches the tensors that the function closes over from where they were found, and returns None
when something that decides what the function does has changed: a module was replaced, switched
between training and evaluation or got a hook, a setting has another value, a tensor is shared
where it wasn't. Nothing found in the environment is kept alive: objects are compared through weak
references.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tensors.shapes import SizeError
from funcaot.aot.closure.environment import scan_what_ran
from funcaot.aot.closure.ran import Ran
from funcaot.aot.reader.leaks import warn_of_leaks
from funcaot.aot.reader.reader_identity import write_identities
from funcaot.aot.reader.reader_source import EnvironmentWriter
from funcaot.aot.reader.reader_tensors import (
    require_argument,
    write_absent_of_tensors,
    write_tensor,
    write_unread_tensors,
)
from funcaot.aot.state.advancing import refuse_iterators
from funcaot.aot.state.state import Bag, name_of
from funcaot.aot.state.state_effects import StateEffects
from funcaot.aot.state.state_tracker import StateTracker


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads a function's environment.

    Attributes:
        read: Takes ``(function, *leaves)``, the leaves being those at ``positions``, and returns
            the closed-over tensors, or None if the environment isn't as it was.
        why: Takes the same and says what has changed; empty if nothing has.
        positions: Leaves of the arguments that belong to the environment: objects that hold
            tensors or settings, and tensors that are also reached otherwise.
        checks: What is compared, a line each.
    """

    read: Callable[[tuple[Any, ...]], tuple[torch.Tensor, ...] | None]
    why: Callable[[tuple[Any, ...]], str]
    positions: tuple[int, ...]
    checks: tuple[str, ...] = ()

    def __call__(
        self, function: Callable[..., Any], leaves: Sequence[Any]
    ) -> tuple[torch.Tensor, ...] | None:
        """Read, for a call with these flat leaves."""
        return self.read((function, *[leaves[index] for index in self.positions]))

    def explain(self, function: Callable[..., Any], leaves: Sequence[Any]) -> str:
        """What isn't as it was; empty if everything is."""
        return self.why((function, *[leaves[index] for index in self.positions]))


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
    root = tracker.root
    texts = [leaf for leaf in leaves if type(leaf) is str]
    changed = {
        (bag.holder, name_of(bag, key, tracker.environment))
        for bag, change in tracker.found
        for key, _ in (*change.assigned, *change.counted)
        if key not in change.made_of_old
    }
    environment = scan_what_ran(root, tracker.ran, texts, changed)
    if environment.escaped:
        raise SizeError(
            f"{name} keeps a size of its arguments for itself.",
            remedy="compile with dynamic=False.",
        )
    refuse_iterators(environment, name)
    warn_of_leaks(environment, name)
    reached = {
        id(leaf): index
        for index, leaf in reversed(list(enumerate(leaves)))
        if isinstance(leaf, torch.Tensor) and environment.places.get(id(leaf))
    }
    positions = (*holders, *reached.values())
    writer = EnvironmentWriter(environment, root)
    writer.write_checks()
    for offset, identity in enumerate(reached):
        require_argument(writer, identity, len(root) + offset)
    values = [write_tensor(writer, tensor, name) for tensor in tensors]
    write_unread_tensors(writer, tensors)
    write_absent_of_tensors(writer)
    if tracker.ran.users:
        write_identities(writer)
    for bag, change in tracker.found:
        if change.compared:
            writer.write_changed(bag, change)
    stored = None
    if tracker.found or tracker.in_arguments or tracker.kept:
        finder = EnvironmentWriter(tracker.environment, root)
        things = [finder.thing(bag) for bag, _ in tracker.found]
        things += [finder.thing(place) for place in tracker.kept if isinstance(place, Bag)]
        changes = tuple(change for _, change in tracker.found)
        reach = finder.build(things)
        kept = tuple(None if isinstance(place, Bag) else place for place in tracker.kept)
        stored = StateEffects(function, changes, reach, positions, tracker.in_arguments, kept)
    if not values and not writer.checks:
        return None, stored
    reader = Reader(writer.build(values), writer.explanation(), positions, tuple(writer.checks))
    return reader, stored


def make_check(ran: Ran) -> Callable[[], bool] | None:
    """Whether what some code reads is as it is now: of derivatives, whose rules ran when traced.

    Args:
        ran: The code.

    Returns:
        None if no code of the user's ran, or it reads nothing.
    """
    if not ran.users:
        return None
    root = (object(),)
    writer = EnvironmentWriter(scan_what_ran(root, ran), root)
    writer.write_checks()
    write_identities(writer)
    if not writer.checks:
        return None
    read = writer.build(())
    return lambda: read(root) is not None
