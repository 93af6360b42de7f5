"""Settings and counters, which ``runtime`` makes for a function and every stage reads."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from funcaot.aot.graph.policy import POLICIES, Policy
from funcaot.backends.compiler import Compiler


@dataclass
class Statistics:
    """Counters of one compiled function, shared by everything derived from it."""

    graphs_compiled: int = 0
    graphs_shared: int = 0
    backward_traces: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    calls: int = 0


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
    """

    compiler: Compiler
    name: str
    policy: Policy = POLICIES["balanced"]
    dynamic: bool | None = None
    statistics: Statistics = field(default_factory=Statistics)
    lock: threading.RLock = field(default_factory=threading.RLock)
