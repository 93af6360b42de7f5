"""How ``pipeline`` runs the stages of a compilation: each is timed, shown, logged and verified."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from funcaot import config
from funcaot._torch.tensors import trace_log
from funcaot.aot.graph.observed import logs
from funcaot.aot.graph.observed.progress import showing

Parameters = ParamSpec("Parameters")
Record = TypeVar("Record")


@runtime_checkable
class Verified(Protocol):
    """A record that can tell whether it is in order."""

    def verify(self) -> None:
        """Raise a GraphError that names what is wrong."""
        ...


class Stages:
    """Runs one compilation's stages in order.

    Attributes:
        what: What is compiled, for the log.
        ops: How many ops its graph has; 0 if that isn't known yet.
        timings: Seconds per stage; one that runs twice counts both.
    """

    def __init__(self, what: str, ops: int = 0) -> None:
        """Run nothing yet."""
        self.what, self.ops = what, ops
        self.timings: dict[str, float] = {}

    def __call__(
        self,
        name: str,
        stage: Callable[Parameters, Record],
        *args: Parameters.args,
        **kwargs: Parameters.kwargs,
    ) -> Record:
        """Run a stage; its record is verified where ``config.check_aliases`` is on."""
        began = time.perf_counter()
        try:
            profiled = trace_log.in_profile(f"funcaot: {self.what}: {name}")
            with profiled, showing(self.what, name, self.ops):
                record = stage(*args, **kwargs)
        finally:
            seconds = time.perf_counter() - began
            self.timings[name] = self.timings.get(name, 0.0) + seconds
        if config.get().check_aliases:
            _verify(record)
        logs.STAGES.debug("%s: %s took %.1f ms", self.what, name, seconds * 1e3)
        trace_log.stage(self.what, name, seconds, self.ops)
        return record


def _verify(record: Any) -> None:
    for part in record if isinstance(record, tuple) else (record,):
        if isinstance(part, Verified):
            part.verify()
