"""Settings and counters, which ``runtime`` makes for a function and every stage reads."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from funcaot.aot.graph.policy import POLICIES, Policy
from funcaot.backends.compiler import Compiler

_KEPT = 100_000
_STRIKES = 2
SPECIAL = (0, 1)  # Numbers that ops treat differently, which says nothing about others.


@dataclass
class Statistics:
    """Counters of one compiled function, shared by everything derived from it."""

    graphs_compiled: int = 0
    graphs_shared: int = 0
    backward_traces: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    calls: int = 0


@dataclass(eq=False)
class NumbersRead:
    """Numbers that a function reads besides its arguments, as its programs were made for them.

    They are named by the key and by what holds them: the ``id`` of a dictionary, list, cell or
    object, or the way to an object that may be another one in each call. If another thing gets the
    same ``id``, a number may be left open that needn't be. One in a container has a second name, by
    where that is: a function may put a new one there in each call.

    Attributes:
        values: What each was when a program was last made.
        changed: Those that were something else then than before.
        closed: Those that programs need the value of.
        strikes: How many programs did.
        may_be_open: Whether the next program may leave some open.
        left_open: Those that the last capture put something in place of.
        reads: Whether floats that are read off tensors may stay in the graph.
        has_read: Whether the last capture left some there.
    """

    values: dict[tuple[Any, Any], int | float] = field(default_factory=dict)
    changed: set[tuple[Any, Any]] = field(default_factory=set)
    closed: set[tuple[Any, Any]] = field(default_factory=set)
    strikes: Counter[tuple[Any, Any]] = field(default_factory=Counter)
    may_be_open: bool = False
    left_open: set[tuple[Any, Any]] = field(default_factory=set)
    reads: bool = True
    has_read: bool = False

    def is_open(self, keys: Sequence[tuple[Any, Any]], value: float) -> bool:
        """Whether a program leaves a number open that is this in the present call.

        Args:
            keys: The names of the number.
            value: The number.
        """
        if not self.may_be_open or not self.closed.isdisjoint(keys):
            return False
        if self.changed.isdisjoint(keys):
            known = next((self.values[key] for key in keys if key in self.values), value)
            if type(known) is not type(value) or repr(known) == repr(value):
                return False
        self.changed.update(keys)
        self.left_open.update(keys)
        return True

    def note(self, found: Mapping[tuple[Any, Any], int | float]) -> None:
        """Note what a program was made for."""
        if len(self.values) > _KEPT:
            self.values.clear()
        self.values.update(found)

    def close(self, keys: Iterable[tuple[Any, Any]]) -> None:
        """Never leave some open again."""
        self.closed.update(keys)

    def strike(self, keys: Iterable[tuple[Any, Any]]) -> None:
        """Note that a program needs the value of some: one may be a special case."""
        self.strikes.update(keys)
        self.close(key for key in keys if self.strikes[key] >= _STRIKES)

    def clear(self) -> None:
        """Forget everything."""
        for kept in (self.strikes, self.values, self.changed, self.closed, self.left_open):
            kept.clear()


@dataclass
class HandedOver:
    """How gradients are handed to autograd before a backward has ended, if somebody waits for them.

    Attributes:
        limits: Bytes of the groups in which they are; the last is for all that follow. Empty if
            nobody waits.
    """

    limits: tuple[int, ...] = ()


@dataclass(frozen=True)
class Settings:
    """What every program of one compiled function shares.

    Attributes:
        compiler: The backend.
        statistics: Counters for the report.
        lock: Held while anything is traced or compiled for this function.
        name: The user's function, for messages.
        policy: What a backward may compute again.
        dynamic: Which sizes of arguments programs leave open (see ``funcaot.compile``).
        fullgraph: Whether a call that can't be captured is an error; None as configured.
        numbers: Numbers that the function reads besides its arguments.
        handed_over: Whether gradients are handed over early.
        is_stage: Whether programs change nothing that a caller sees, since another one will.
    """

    compiler: Compiler
    name: str
    policy: Policy = POLICIES["balanced"]
    dynamic: bool | None = None
    fullgraph: bool | None = None
    statistics: Statistics = field(default_factory=Statistics)
    lock: threading.RLock = field(default_factory=threading.RLock)
    numbers: NumbersRead = field(default_factory=NumbersRead)
    handed_over: HandedOver = field(default_factory=HandedOver)
    is_stage: bool = False
