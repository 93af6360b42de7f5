"""Functions that remember their results (``functools.cache``); the watch over a capture asks.

Such a function runs once for the same arguments, and what it does besides computing happens once.
A program that has run it would do that in every call. So a capture ends where such a function has
done something else: the call is made as it is, and the next one finds the result.
"""

from __future__ import annotations

import dis
import random
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import _lru_cache_wrapper
from typing import Any

from funcaot._torch.tracing.eager_rules.deeds import Deeds, listen
from funcaot.aot.closure.constants import is_immutable
from funcaot.aot.closure.hidden.kept_results import is_object_of_a_capture, remembering_by
from funcaot.aot.closure.ran import is_library

__all__ = ["RememberedError", "Remembering", "numpy_state", "same_state"]

_CHANGING = frozenset(
    {
        *("add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem"),
        *("remove", "setdefault", "update", "__setitem__", "__delitem__", "__setattr__"),
    }
)
_SETTING, _BINARY, _IN_PLACE = dis.opmap["STORE_SUBSCR"], dis.opmap["BINARY_OP"], 13
_STORING = frozenset(dis.opmap[name] for name in ("STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF"))


class RememberedError(Exception):
    """A function that remembers its results did what happens once; it says which, and what."""


@dataclass(eq=False)
class _Run:
    """A call of such a function, from its first line on."""

    function: _lru_cache_wrapper[Any]
    frame: types.FrameType
    deeds: Deeds = field(default_factory=Deeds)
    python: Any = field(default_factory=random.getstate)
    numpy: Any = field(default_factory=lambda: numpy_state())
    looked: Any = None

    def did(self) -> str:
        """What it did besides computing; empty for nothing that can be told as it ends."""
        if random.getstate() != self.python or not same_state(numpy_state(), self.numpy):
            return "draws random numbers"
        return self.deeds.what


class Remembering:
    """Follows such functions while code is watched.

    Attributes:
        once: What one of them did that happens once, in words; empty as long as none did.
        runs: Those that run now.
    """

    def __init__(
        self,
        look: Callable[[], Any],
        has_changed: Callable[[Any], bool],
        made: Callable[[Any], Callable[[], bool]],
    ) -> None:
        """None has run yet.

        Args:
            look: What everything holds now that was there before.
            has_changed: Whether it holds something else than at a look.
            made: Looks at a new result; what it returns says whether that was changed since, and
                undoes it.
        """
        self.once = ""
        self._results: list[tuple[_lru_cache_wrapper[Any], Callable[[], bool]]] = []
        self._look, self._has_changed, self._made = look, has_changed, made
        self.runs: list[_Run] = []

    def see(self, frame: types.FrameType, event: str, argument: Any) -> None:
        """See what happens in a frame: a call of Python's, or anything while such a function runs.

        Raises:
            RememberedError: If such a function ends that has done something else than computing.
        """
        if event == "call":
            function = remembering_by(frame.f_code)
            if function is not None and not is_library(str(frame.f_globals.get("__name__"))):
                self.runs.append(started := _Run(function, frame))
                listen(started.deeds)
            if self.runs and _may_store(frame.f_code):
                self._note_change()
        elif event == "c_call":
            if argument.__name__ in _CHANGING:
                self._note_change()
        elif event == "return" and frame is self.runs[-1].frame:
            self._end(self.runs[-1], argument)

    def finish(self) -> None:
        """See what became of the results that were made.

        Raises:
            RememberedError: If one was changed, which happens to the same one in every call.
        """
        changed = [function for function, was_changed in self._results if was_changed()]
        if changed:
            raise self._ended(changed[0], "gives what is changed")

    def refuse(self, act: str) -> None:
        """Raise if such a function is what reaches outside.

        Raises:
            RememberedError: If one runs.
        """
        if self.runs:
            raise self._ended(self.runs[-1].function, act)

    def stop(self) -> None:
        """Follow the functions no longer that run."""
        self.runs.clear()
        self._results.clear()
        listen(None)

    def _end(self, run: _Run, result: Any) -> None:
        did = run.did()
        if not did and is_object_of_a_capture(result):
            did = "makes an object that holds tensors"
        if not did and run.looked is not None and self._has_changed(run.looked):
            did = "changes an object"
        if did:
            raise self._ended(run.function, did)
        if not is_immutable(result):
            self._results.append((run.function, self._made(result)))
        self.runs.pop()
        around = self.runs[-1].deeds if self.runs else None
        if around is not None:
            around.add(run.deeds)
        listen(around)

    def _ended(self, function: _lru_cache_wrapper[Any], did: str) -> RememberedError:
        self.stop()
        self.once = _said(function, did)
        return RememberedError(self.once)

    def _note_change(self) -> None:
        """Note that what runs may change something, which is known when it ends.

        Most functions fill a list of their own, or set up an object that they make.
        """
        looked = None
        for run in self.runs:
            if run.looked is None:
                run.looked = looked = self._look() if looked is None else looked


def _said(function: _lru_cache_wrapper[Any], did: str) -> str:
    name = getattr(function, "__qualname__", "a function")
    return f"has {name}, which remembers results (functools.cache) and {did}, run for a new one"


def _may_store(code: types.CodeType) -> bool:
    """Whether code stores to outside of its own variables, or adds to an item of something.

    Code that only sets items is that of tables, and sets the same ones again.
    """
    ops, arguments = code.co_code[::2], code.co_code[1::2]
    if not _STORING.isdisjoint(ops):
        return True
    pairs = zip(ops, arguments, strict=True)
    return _SETTING in ops and any(op == _BINARY and n >= _IN_PLACE for op, n in pairs)


def numpy_state() -> Any:
    """The state of NumPy's own generator of random numbers; None where that isn't imported."""
    numpy = sys.modules.get("numpy.random")
    return None if numpy is None else numpy.get_state()


def same_state(a: Any, b: Any) -> bool:
    """Whether two states of generators are equal; NumPy's have arrays in them."""
    if hasattr(a, "tobytes"):
        return hasattr(b, "tobytes") and a.tobytes() == b.tobytes()
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_state(a[key], b[key]) for key in a)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_state, a, b))
    return bool(a == b)
