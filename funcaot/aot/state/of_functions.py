"""What Functions change in Python, apart from what their caller changes.

A forward that runs on real values in each call (NumPy) changes its counters and lists there, so
these aren't the caller's to repeat: ``StateTracker`` tells them apart. Rules that run again are
looked at by themselves.
"""

from __future__ import annotations

import contextlib
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from funcaot._torch.tracing.recorded_ops import WritesTakenBack, write_back
from funcaot.aot.closure.environment import Environment
from funcaot.aot.closure.named.code_names import names_of
from funcaot.aot.closure.outside.watching import Outside
from funcaot.aot.closure.ran import Recorder
from funcaot.aot.closure.walk import Walk, scan
from funcaot.aot.closure.where import path_of
from funcaot.aot.state import state
from funcaot.aot.state.follower import Follower
from funcaot.aot.state.state import MISSING, Bag, Snapshots, is_kept
from funcaot.aot.state.state_changes import Changes, is_count
from funcaot.aot.state.torch_random import known_generators
from funcaot.base.scopes import tracing_here, untraced
from funcaot.classes.shared_views import is_plain
from funcaot.errors import UnsupportedError
from funcaot.rules.stores import register_watches

__all__ = ["Everything", "OfFunctions", "OtherStateError", "watch_of"]

Contents = dict[Any, Any] | tuple[Any, ...]


class Acts:
    """What forwards did that ran on real values in a capture.

    Attributes:
        reached: The names of their Functions, and the tensors that each reaches by itself.
        writes: Tensors that they wrote to, and what these held before.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self.reached: list[tuple[str, tuple[torch.Tensor, ...]]] = []
        self.writes: list[list[tuple[torch.Tensor, torch.Tensor]]] = []
        self.left: dict[int, Contents] = {}

    def take_back(self) -> None:
        """Undo what they wrote to tensors, as the call isn't made this way."""
        while self.writes:
            write_back(self.writes.pop())

    def refuse_written(self, tensors: Sequence[torch.Tensor]) -> None:
        """Refuse a forward that reaches what the function writes to, when all of it has run.

        Args:
            tensors: What it writes to.

        Raises:
            OtherStateError: If there is one.
        """
        written = {tensor.untyped_storage().data_ptr() for tensor in tensors if is_plain(tensor)}
        for name, reached in self.reached:
            memory = {each.untyped_storage().data_ptr() for each in reached if is_plain(each)}
            if not written.isdisjoint(memory):
                raise OtherStateError(
                    f"{name} runs on real values, and reaches a tensor by itself that the function "
                    "writes to.",
                    remedy="pass the tensor to apply.",
                )


class OtherStateError(UnsupportedError):
    """A node's forward would see other state than it saw; called as in eager, it runs once."""


class OfFunctions:
    """What Functions that are called inside change.

    Attributes:
        bags: Everything mutable that the captured function reaches, each as it was before, but for
            what Functions changed since that run for this call.
        acts: What those did that ran on real values.
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
        self._traced: list[tuple[str, OfRule]] = []
        self.acts = Acts()
        self._other: list[tuple[str, str, str]] = []
        self._by_backwards: list[tuple[str, Bag, set[types.CodeType]]] = []

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
            for _, since in self._since(looked):
                if self._changes.has_changed(since):
                    self.acts.left[id(since.thing)] = since.now()

    def ran(self) -> set[types.CodeType]:
        """The user's code that has run in the capture so far."""
        recorder = tracing_here()
        return {*recorder.ran.users} if isinstance(recorder, Recorder) else set()

    def leave_of_backward(
        self, name: str, looked: list[Contents], ran: set[types.CodeType]
    ) -> None:
        """The same for a backward that ran for this call, where the graph's other calls run it.

        Args:
            name: The Function's name, for messages.
            looked: What everything held before it ran.
            ran: The code that had run before it was tried.
        """
        tried = self.ran() - ran
        with untraced():
            for _, since in self._since(looked):
                if self._changes.has_changed(since):
                    self._by_backwards.append((name, since, tried))
        self.leave(looked)

    def _refuse_uses_of_changes(self, ran: Iterable[types.CodeType]) -> None:
        """Refuse a backward that runs in the graph if the function uses what it changes."""
        for name, bag, tried in self._by_backwards:
            path = path_of(self._environment, bag.holder)
            keys = state.changed_keys(bag) if isinstance(bag.before, dict) else []
            names = {state.name_of(bag, key, self._environment) for key in keys} - {""}
            names |= set() if names else {_last_name(path)}
            is_read = any(not names.isdisjoint(names_of(code).read) for code in {*ran} - tried)
            if is_read or self._is_changed_again(bag):
                which = f"{', '.join(sorted(names))} of {path}" if keys else path
                raise OtherStateError(
                    f"The backward of {name} runs on real values, and changes {which}, which the "
                    "function uses, too.",
                    remedy="let one of the two change and read it; or call backward() outside of "
                    "the compiled function.",
                )

    def _is_changed_again(self, bag: Bag) -> bool:
        """Whether items of a list aren't those that a rule has left there."""
        left, now = self.acts.left[id(bag.thing)], bag.now()
        if isinstance(left, dict) or isinstance(now, dict):
            return False
        return len(left) != len(now) or any(map(_differ, left, now))

    def generators(self) -> set[int]:
        """The generators of random numbers that are reached, by where they are in memory."""
        return known_generators(self._environment)

    def before(self) -> list[Bag]:
        """Everything as it was before."""
        return [self._first.get(index, bag) for index, bag in enumerate(self.bags)]

    def put_back(self) -> None:
        """Undo everything: the call isn't going to be made this way."""
        state.put_back(self.before())
        self.acts.take_back()

    def noting_writes(self) -> contextlib.AbstractContextManager[Any]:
        """While a forward runs on real tensors: what it writes to can be what it was."""
        writes = WritesTakenBack(self.tensors)
        self.acts.writes.append(writes.kept)
        return writes

    def take_back_writes(self) -> None:
        """Undo what forwards wrote to tensors."""
        self.acts.take_back()

    def tensors(self) -> Iterator[torch.Tensor]:
        """All tensors that are reached."""
        for thing in self._environment.objects.values():
            if isinstance(thing, torch.Tensor):
                yield thing

    def note_run(self, name: str, rule: OfRule, *, is_traced: bool) -> None:
        """A Function's forward ran, for which a node runs it again.

        Args:
            name: The Function's name, for messages.
            rule: What looked at it.
            is_traced: Whether it runs again for a compiler, where everything is what it was before
                the call. Else it runs on real values, where other such ones have run.
        """
        if is_traced:
            self._traced.append((name, rule))
            return
        with untraced():
            self.acts.reached.append((name, tuple(rule.tensors())))
            self._note_other(name, rule, _Before(self.bags, has_all=True))

    def note_backward(self, name: str, rule: OfRule | None) -> None:
        """A backward is going to run on real values, where other rules of the call have run.

        Args:
            name: The Function's name, for messages.
            rule: What looks at it; None if that isn't known.
        """
        if rule is not None:
            with untraced():
                before = _Before(self.bags, has_all=True, left=self.acts.left)
                self._note_other(name, rule, before, "backward")

    def refuse_other_state(self, ran: Iterable[types.CodeType]) -> None:
        """Refuse a node whose forward would see other state than what it saw in the capture.

        Args:
            ran: The user's code that ran in the capture.

        Raises:
            OtherStateError: If there is one.
        """
        if self._traced:
            with untraced():
                before = _Before(self.before())
                for name, rule in self._traced:
                    self._note_other(name, rule, before)
        self._refuse_uses_of_changes(ran)
        for name, kind, seen in self._other:
            raise OtherStateError(
                f"{name} is one node of the graph, and its {kind} reads {seen}, which isn't what "
                f"it was before the call: the function or {name} itself changed it.",
                remedy="pass what it reads to apply, as a tensor or a number; or leave out its "
                "jvp, its vmap and transforms around it: then it is called as eager calls it.",
            )

    def _note_other(self, name: str, rule: OfRule, before: _Before, kind: str = "forward") -> None:
        seen = before.other_than(rule)
        if seen is not None:
            self._other.append((name, kind, seen))

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


class _Before:
    """What everything held before a call, to be compared with what a rule found in it."""

    def __init__(
        self,
        bags: Sequence[Bag],
        *,
        has_all: bool = False,
        left: Mapping[int, Contents] | None = None,
    ) -> None:
        """Take it by what holds it; what isn't there was made in the call, or isn't known."""
        self._has_all = has_all
        self._left = left or {}
        self._held: dict[int, list[Bag]] = {}
        for bag in bags:
            self._held.setdefault(id(bag.thing), []).append(bag)

    def other_than(self, rule: OfRule) -> str | None:
        """What a rule found to be another thing, as text; None if there is nothing."""
        for found in rule.bags:
            known = self._held.get(id(found.thing))
            if (known is None and self._has_all) or rule.is_ours(found):
                continue
            # What was made in the call stays as the call leaves it.
            befores = [found.now()] if known is None else [bag.before for bag in known]
            left = self._left.get(id(found.thing))
            if left is not None and not self._differ(rule, found, left):
                continue
            if any(self._differ(rule, found, before) for before in befores):
                return rule.text_of(found)
        return None

    @staticmethod
    def _differ(rule: OfRule, found: Bag, before: Contents) -> bool:
        seen = found.before
        if not (isinstance(seen, dict) and isinstance(before, dict)):
            is_other = len(seen) != len(before) or any(map(_differ, seen, before))
            return is_other and rule.reads_items(found)
        by_name = found.names is not None  # A bag for each set of names
        keys = seen.keys() & before.keys() if by_name else seen.keys() | before.keys()
        others = [k for k in keys if not is_kept(seen.get(k, MISSING), before.get(k, MISSING))]
        return any(rule.reads(found, key) for key in others)


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

    def reads(self, bag: Bag, key: Any) -> bool:
        """Whether the rule's code may read an entry of a thing."""
        environment = self._environment
        return environment.names.reads(state.name_of(bag, key, environment))

    def reads_items(self, bag: Bag) -> bool:
        """Whether the rule's code may read what a list, deque or tuple holds."""
        return self._environment.names.reads(_last_name(path_of(self._environment, bag.holder)))

    def is_ours(self, bag: Bag) -> bool:
        """Whether a thing belongs to an object of this library, which notes what it knows."""
        environment, identity = self._environment, bag.holder
        while isinstance(environment.objects[identity], (dict, list, tuple)):
            places = environment.places.get(identity)
            if not places or places[0].parent not in environment.objects:
                return False
            identity = places[0].parent
        return type(environment.objects[identity]).__module__.startswith("funcaot.")

    def text_of(self, bag: Bag) -> str:
        """Where a thing is, as text."""
        path = path_of(self._environment, bag.holder)
        return "what it is given" if path == "the function" else path

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


def _last_name(path: str) -> str:
    """The attribute that leads to a thing, empty if that isn't what leads to it."""
    return path[re.search(r"\w*$", path).start() :]  # type: ignore[union-attr]


def _differ(one: Any, other: Any) -> bool:
    return one is not other
