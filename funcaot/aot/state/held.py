"""What arrays and the like hold, around a capture; ``state_tracker`` asks, and undoes or refuses.

What a function writes to a NumPy array or a stream in memory, it writes while it is captured and
never again. No program writes there, so it is refused.
"""

from __future__ import annotations

import itertools
from contextvars import ContextVar
from threading import Event
from typing import Any

from funcaot.aot.closure.children import CONTAINERS, is_exact, slots_of
from funcaot.aot.closure.contents import array_contents, compared, put_contents, whole_contents
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.look import in_slot, module_of
from funcaot.aot.closure.outside.files import position_of
from funcaot.aot.closure.process import Settings
from funcaot.aot.closure.where import path_of, text_of
from funcaot.aot.state.state import Bag, changed_keys
from funcaot.errors import UnsupportedError

# A larger one isn't copied, so it can't be given back what it held.
_COPIED = 1 << 26


class Held:
    """What every array and the like in an environment held when it was first reached."""

    def __init__(self, environment: Environment) -> None:
        """Look at what was reached so far."""
        self._environment = environment
        self._objects = self._arrays = self._identities = 0
        self._before: dict[int, tuple[Place | None, Any, Any]] = {}
        self._files: dict[int, tuple[Any, int]] = {}
        self._slots: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._settings = Settings()
        self.update()

    def update(self) -> None:
        """Look at what was reached since."""
        objects, arrays = self._environment.objects, self._environment.arrays
        for thing in itertools.islice(objects.values(), self._objects, None):
            if isinstance(thing, ContextVar):
                self._before[id(thing)] = (None, thing, _contents(thing))
            if isinstance(thing, CONTAINERS) and not is_exact(thing) and slots_of(thing):
                self._slots[id(thing)] = thing, _in_slots(thing)
        for place, thing in arrays[self._arrays :]:
            # Its own code sets it, which is replayed.
            if id(thing) not in self._before and not isinstance(thing, Event):
                self._before[id(thing)] = (place, thing, _contents(thing))
        identities = self._environment.identities
        new = [thing for _, thing in identities[self._identities :]]
        for thing in (*itertools.islice(objects.values(), self._objects, None), *new):
            position = position_of(thing)
            if position is not None:
                self._files.setdefault(id(thing), (thing, position))
        self._objects, self._arrays = len(objects), len(arrays)
        self._identities = len(identities)

    def refuse_changed(self, name: str) -> None:
        """Raise if one of them holds something else now.

        Args:
            name: The user's function.

        Raises:
            UnsupportedError: If one does.
        """
        for place, thing, before in self._before.values():
            if not _is_same(thing, before):
                what = f"a {type(thing).__name__}"
                if place is not None:
                    what = f"{text_of(self._environment, place)}, {what},"
                raise UnsupportedError(
                    f"{name} changes what {what} holds, which would happen once, when it is "
                    "captured, and not at every call.",
                    remedy="keep it in a tensor or a list, or change it outside of the function.",
                )
        for thing, slots in self._slots.values():
            if not _are_same(_in_slots(thing), slots):
                raise UnsupportedError(
                    f"{name} changes a slot of {path_of(self._environment, id(thing))}, a "
                    f"{type(thing).__name__}, which no program does for containers.",
                    remedy="leave __slots__ out of the class, so that it has attributes.",
                )
        for file, position in self._files.values():
            if position_of(file) != position:
                raise UnsupportedError(
                    f"{name} reads or writes a file that is open ({file.name}), which would happen "
                    "once, when it is captured, and not at every call.",
                    remedy="read and write files outside of the function.",
                )
        self._settings.refuse_changed(name)

    def put_back(self) -> None:
        """Give each what it held, where that can be written back."""
        self._settings.put_back()
        for thing, slots in self._slots.values():
            for slot in slots_of(thing):
                if slot in slots:
                    setattr(thing, slot, slots[slot])
                elif in_slot(thing, slot):
                    delattr(thing, slot)
        for _, thing, before in self._before.values():
            if not _is_same(thing, before):
                if isinstance(thing, ContextVar):
                    thing.set(before[0])
                elif before[1] is not None:
                    put_contents(thing, before[1])


def refuse_counted(environment: Environment, bag: Bag, name: str) -> None:
    """Refuse a change of a queue, which counts in attributes that only its own code reads.

    Raises:
        UnsupportedError: If that is what a bag is of, and a number in it changed.
    """
    kind = type(environment.objects[bag.holder])
    if module_of(kind) != "queue" or not isinstance(bag.before, dict):
        return
    if any(type(bag.before.get(key)) is int for key in changed_keys(bag)):
        raise UnsupportedError(
            f"{name} changes {path_of(environment, bag.holder)}, a {kind.__name__}, which would "
            "happen once, when it is captured, and not at every call.",
            remedy="change it outside of the function.",
        )


def _in_slots(thing: Any) -> dict[str, Any]:
    return {slot: value for slot in slots_of(thing) for value in in_slot(thing, slot)}


def _are_same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return a.keys() == b.keys() and all(a[slot] is b[slot] for slot in a)


def _contents(thing: Any) -> tuple[Any, Any]:
    """What is compared, and what can be put back."""
    if isinstance(thing, ContextVar):
        return (_value(thing), None)
    whole = whole_contents(thing)
    size = len(whole[-1]) if isinstance(whole[-1], bytes) else 0
    return (compared(whole), whole if size <= _COPIED else None)


def _value(variable: ContextVar[Any]) -> Any:
    """What a variable is, also by default; nobody can take a value from it again."""
    try:
        return variable.get()
    except LookupError:
        return None


def _is_same(thing: Any, before: tuple[Any, Any]) -> bool:
    if isinstance(thing, ContextVar):
        return _value(thing) is before[0]
    return bool(array_contents(thing) == before[0])
