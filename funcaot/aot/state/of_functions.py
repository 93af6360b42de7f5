"""What Functions change in Python, apart from what their caller changes.

A forward that runs on real values in each call (NumPy) changes its counters and lists there, so
these aren't the caller's to repeat: ``StateTracker`` tells them apart. Rules that run again are
looked at by themselves.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from funcaot.aot.closure.environment import Environment
from funcaot.aot.closure.outside.watching import Outside
from funcaot.aot.closure.walk import Walk, scan
from funcaot.aot.closure.where import path_of
from funcaot.aot.state import state
from funcaot.aot.state.follower import Follower
from funcaot.aot.state.state import MISSING, Bag, Snapshots
from funcaot.aot.state.state_changes import Changes, is_count
from funcaot.aot.state.torch_random import known_generators
from funcaot.base.scopes import tracing_here, untraced
from funcaot.rules.stores import register_watches

__all__ = ["Everything", "OfFunctions", "watch_of"]

Contents = dict[Any, Any] | tuple[Any, ...]


class OfFunctions:
    """What Functions that are called inside change.

    Attributes:
        bags: Everything mutable that the captured function reaches, each as it was before, but for
            what Functions changed since that run for this call.
        called: For each Function its forward, and what it was given besides tensors.
    """

    def __init__(self, bags: list[Bag], environment: Environment, changes: Changes) -> None:
        """Look on.

        Args:
            bags: Everything mutable; grows as more is reached.
            environment: What is reached.
            changes: Tells what a change is.
        """
        self.bags = bags
        self._environment = environment
        self._changes = changes
        self.called: list[tuple[Any, ...]] = []
        self._first: dict[int, Bag] = {}

    def following(self, *, traced: bool = False) -> contextlib.AbstractContextManager[Any]:
        """While a Function's rule runs: what the capture follows is what reaches more."""
        recorder = tracing_here()
        return contextlib.nullcontext() if recorder is None else recorder.trying()

    def look(self) -> list[Contents]:
        """What everything holds now."""
        with untraced():
            return [bag.now() for bag in self.bags]

    def take_back(self, looked: list[Contents]) -> bool:
        """Undo what a rule changed since a look; whether there was something."""
        with untraced():
            changed = [bag for _, bag in self._since(looked) if self._changes.has_changed(bag)]
            state.put_back(changed)
        return bool(changed)

    def leave(self, looked: list[Contents]) -> None:
        """What a forward counted or appended that ran for this call isn't the caller's."""
        with untraced():
            for index, part in self._changed(looked):
                bag = self.bags[index]
                self._first.setdefault(index, bag)
                self.bags[index] = replace(bag, before=self._moved(bag, part))

    def generators(self) -> set[int]:
        """The generators of random numbers that are reached, by where they are in memory."""
        return known_generators(self._environment)

    def before(self) -> list[Bag]:
        """Everything as it was before."""
        return [self._first.get(index, bag) for index, bag in enumerate(self.bags)]

    def put_back(self) -> None:
        """Undo everything: the call isn't going to be made this way."""
        state.put_back(self.before())

    def _since(self, looked: list[Contents]) -> Iterator[tuple[int, Bag]]:
        """Everything, as it was at a look, or when it was reached after that."""
        for index, bag in enumerate(self.bags):
            yield index, replace(bag, before=looked[index]) if index < len(looked) else bag

    def _changed(self, looked: list[Contents]) -> list[tuple[int, Bag]]:
        """What changed since without any tensors, as things of which nothing else did."""
        found = []
        for index, since in self._since(looked):
            if self._changes.has_changed(since):
                part = self._changes.plain_part(since)
                if part is not None:
                    found.append((index, part))
        return found

    def _moved(self, bag: Bag, part: Bag) -> Contents:
        """What a thing would have held before if a Function's change had been made by then."""
        before, now = part.before, part.now()
        if not (isinstance(before, dict) and isinstance(now, dict)):
            if len(bag.before) != len(before) or any(map(_differ, bag.before, before)):
                self._refuse(bag)
            return now
        moved = dict(bag.before)  # type: ignore[call-overload]
        for key in state.changed_keys(part):
            first, old, new = (
                moved.get(key, MISSING),
                before.get(key, MISSING),
                now.get(key, MISSING),
            )
            if first is old:
                moved[key] = new
            elif is_count(first) and is_count(old) and is_count(new):
                moved[key] = first + (new - old)
            else:
                self._refuse(bag)
            if moved[key] is MISSING:
                del moved[key]
        return moved

    def _refuse(self, bag: Bag) -> None:
        path = path_of(self._environment, bag.holder)
        raise self._changes.unsupported(
            f"changes {path}, which a Function that it calls changes, too",
            "let one of the two change it, or return what the Function changes",
        )


class Everything:
    """All that was there before a run: what the function reaches, and containers it is given."""

    def __init__(self, bags: list[Bag], given: Sequence[Bag], changes: Changes) -> None:
        """Look on.

        Args:
            bags: Everything mutable that is reached; grows as more is.
            given: Containers among the arguments.
            changes: Tells what a change is.
        """
        self._bags, self._given, self._changes = bags, given, changes

    def look(self) -> list[Contents]:
        """What everything holds now."""
        return [bag.now() for bag in (*self._given, *self._bags)]

    def has_changed(self, looked: list[Contents]) -> bool:
        """Whether something holds something else than at a look, or when it was reached after."""
        known = zip((*self._given, *self._bags), looked, strict=False)
        since = [replace(bag, before=before) for bag, before in known]
        since += self._bags[len(looked) - len(self._given) :]
        return any(map(self._changes.has_changed, since))

    def made(self, value: Any) -> Callable[[], bool]:
        """Look at what is made during the run.

        Returns:
            What says whether it was changed since, and undoes that.
        """
        bags = Snapshots(scan(value)).bags

        def was_changed() -> bool:
            changed = [bag for bag in bags if self._changes.has_changed(bag)]
            state.put_back(changed)
            return bool(changed)

        return was_changed


class OfRule(OfFunctions):
    """What a rule changes that runs by itself: a backward, when it is traced.

    Globals of functions are looked at before these run: one that calls a large library leads to
    all of that, and runs little of it.
    """

    def __init__(self, root: tuple[Any, ...], name: str) -> None:
        """Look at what the rule reaches without running anything.

        Args:
            root: Its code, and objects that it is given.
            name: The Function's name, for messages.
        """
        self._walk = walk = Walk(root, waits=True)
        with untraced():
            walk.go()
            self._snapshots = Snapshots(walk.found)
        super().__init__(self._snapshots.bags, walk.found, Changes(name, walk.found))

    def following(self, *, traced: bool = False) -> Follower:
        """While the rule runs."""
        return Follower(self._started, Outside(seeds=traced))

    def changed_beside(self, looked: list[Contents], environment: Environment) -> str | None:
        """What changed since a look that others don't reach, as text.

        Args:
            looked: What everything held.
            environment: What others reach.
        """
        with untraced():
            for _, bag in self._since(looked):
                if bag.holder not in environment.objects and self._changes.has_changed(bag):
                    return path_of(self._environment, bag.holder)
        return None

    def _started(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        self._walk.add_code(code, namespace)
        self._snapshots.update()


def watch_of(root: tuple[Any, ...], name: str) -> OfRule:
    """Look at what a rule reaches that runs by itself: a backward, when it is traced.

    Args:
        root: Its code, and objects that it is given.
        name: The Function's name, for messages.
    """
    return OfRule(root, name)


register_watches(watch_of)


def _differ(one: Any, other: Any) -> bool:
    return one is not other
