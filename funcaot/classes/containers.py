"""Lists, dictionaries, sets and deques that a Function is given, and what they held.

Eager's Function is given the caller's own, so that a change is the caller's to see. A node of a
graph isn't: it runs more than once, and on copies.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from funcaot.base.scopes import holding
from funcaot.errors import UnsupportedError

__all__ = [
    "ChangesGivenError",
    "Contents",
    "Given",
    "holds_container",
    "keeping",
    "leaving",
    "note_kept",
    "refuse_changed",
]

_KINDS = (dict, list, set, deque)


class ChangesGivenError(UnsupportedError):
    """A Function changes a list, dictionary or set that it is given: no node can stand for that."""

    @classmethod
    def of(cls, name: str, rule: str = "") -> ChangesGivenError:
        """Say which Function does.

        Args:
            name: The Function.
            rule: Which of its rules, if it isn't forward.
        """
        who = f"{rule} of {name}" if rule else name
        return cls(
            f"{who} changes a list or dictionary that it was given, inside a capture.",
            remedy="return what it adds, or change a copy.",
        )


class Contents:
    """What containers held when this was made, and those that lay in them."""

    def __init__(self, values: Iterable[Any]) -> None:
        """Look at everything in some values that can be changed in place."""
        self._held: dict[int, tuple[Any, list[Any]]] = {}
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, _KINDS):
                if id(value) in self._held:
                    continue
                self._held[id(value)] = (value, _items(value))
            if isinstance(value, dict):
                waiting.extend(dict.values(value))
            elif isinstance(value, (list, tuple, deque)):
                waiting.extend(value)

    def __contains__(self, value: Any) -> bool:
        """Whether an object is one of these containers."""
        return id(value) in self._held

    def __iter__(self) -> Any:
        """The containers."""
        return iter([value for value, _ in self._held.values()])

    def changed(self) -> bool:
        """Whether one holds something else now, or the same in another order."""
        for value, held in self._held.values():
            now = _items(value)
            if len(now) != len(held) or any(a is not b for a, b in zip(now, held, strict=True)):
                return True
        return False

    def put_back(self) -> None:
        """Let all hold again what they held."""
        for value, held in self._held.values():
            _fill(value, held)


def _items(value: Any) -> list[Any]:
    """What a container holds, without running code of its class: keys and values in turns."""
    if isinstance(value, dict):
        return [part for item in dict.items(value) for part in item]
    kind: Any = next(kind for kind in _KINDS if isinstance(value, kind))
    return list(kind.__iter__(value))


def _fill(value: Any, held: list[Any]) -> None:
    if isinstance(value, dict):
        kind: Any = OrderedDict if isinstance(value, OrderedDict) else dict
        kind.clear(value)
        for key, entry in zip(held[::2], held[1::2], strict=True):
            kind.__setitem__(value, key, entry)
    elif isinstance(value, set):
        set.clear(value)
        set.update(value, held)
    elif isinstance(value, list):
        list.__setitem__(value, slice(None), held)
    else:
        deque.clear(value)
        deque.extend(value, held)


def holds_container(values: Iterable[Any]) -> bool:
    """Whether some operands are, or hold, something that can be changed in place."""
    return any(
        isinstance(value, _KINDS) or (isinstance(value, tuple) and holds_container(value))
        for value in values
    )


class Given:
    """The containers that a call of a Function is given.

    Attributes:
        contents: What they hold.
        kept: Whether the Function keeps one for its backward.
    """

    def __init__(self, operands: tuple[Any, ...]) -> None:
        """Look at operands."""
        self.contents = Contents(operands)
        self.kept = False


class _ThisThread(threading.local):
    given: Given | None = None


_this_thread = _ThisThread()


def keeping(given: Given) -> Any:
    """While a Function is called that is given containers."""
    return holding(_this_thread, given=given)


@contextlib.contextmanager
def leaving(name: str, containers: Iterable[Any]) -> Iterator[None]:
    """While a backward runs, which has to leave what its Function was given as it is.

    Args:
        name: The Function.
        containers: What its ctx keeps of that.

    Raises:
        UnsupportedError: It changes one, which others may see.
    """
    held = Contents(containers)
    yield
    if held.changed():
        held.put_back()
        raise UnsupportedError(
            f"backward of {name} changes a list, dictionary or set that its forward was given and "
            "that is kept on ctx, inside a compiled function.",
            remedy="let backward change a copy, or let forward keep one.",
        )


def refuse_changed(kept: Iterable[tuple[str, Contents]], name: str) -> None:
    """Refuse that a function changes what a Function keeps for its backward.

    Args:
        kept: For each such Function its name, and what containers held when it was called.
        name: The user's function.

    Raises:
        UnsupportedError: Something of it changed.
    """
    for keeper, contents in kept:
        if contents.changed():
            raise UnsupportedError(
                f"{name} changes a list, dictionary or set after it gave it to {keeper}, which "
                "keeps it on ctx for its backward.",
                remedy="give it a copy, or let its forward keep one.",
            )


def note_kept(attributes: Mapping[str, Any], operands: Iterable[Any]) -> tuple[str, ...]:
    """Names of attributes of a ctx that hold a container that the Function was given."""
    given = Contents(operands)
    names = tuple(
        name
        for name, value in attributes.items()
        if any(each in given for each in Contents((value,)))
    )
    if names and _this_thread.given is not None:
        _this_thread.given.kept = True
    return names
