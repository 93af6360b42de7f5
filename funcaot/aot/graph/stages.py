"""How ``pipeline`` runs the stages of one compilation: each is timed, logged and verified."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

from funcaot import config

_LOG = logging.getLogger("funcaot.stages")

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
        timings: Seconds per stage; one that runs twice counts both.
    """

    def __init__(self, what: str) -> None:
        """Run nothing yet."""
        self.what = what
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
            record = stage(*args, **kwargs)
        finally:
            seconds = time.perf_counter() - began
            self.timings[name] = self.timings.get(name, 0.0) + seconds
        if config.get().check_aliases:
            _verify(record)
        _LOG.debug("%s: %s took %.1f ms", self.what, name, seconds * 1e3)
        return record


def _verify(record: Any) -> None:
    for part in record if isinstance(record, tuple) else (record,):
        if isinstance(part, Verified):
            part.verify()
