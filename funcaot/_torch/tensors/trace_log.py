"""Torch's own records of a compilation: profiles, and ``TORCH_TRACE``, which tlparse reads."""

from __future__ import annotations

import contextlib
import json

import torch
from torch._logging import trace_structured
from torch._logging._internal import trace_log

__all__ = ["artifact", "in_profile", "is_tracing", "stage"]

_NOTHING = contextlib.nullcontext()


def is_tracing() -> bool:
    """Whether somebody reads the records (``TORCH_TRACE`` names a folder)."""
    return any(getattr(handler, "root_dir", None) for handler in trace_log.handlers)


def in_profile(name: str) -> contextlib.AbstractContextManager[object]:
    """A range of ``torch.profiler``, where one is recording."""
    if not torch.autograd._profiler_enabled():
        return _NOTHING
    return torch.profiler.record_function(name)


def stage(what: str, name: str, seconds: float, ops: int) -> None:
    """Record that a stage is over.

    Args:
        what: What is compiled.
        name: The stage.
        seconds: How long it took.
        ops: How many ops the graph has, 0 if there is none yet.
    """
    if is_tracing():
        found = {"what": what, "stage": name, "seconds": round(seconds, 6), "ops": ops}
        artifact(f"stage {what} {name}", json.dumps(found), encoding="json")


def artifact(name: str, text: str, *, encoding: str = "string") -> None:
    """Record a text, such as a graph.

    Args:
        name: What it is.
        text: The text.
        encoding: ``string`` or ``json``.
    """
    if is_tracing():
        trace_structured(
            "artifact",
            metadata_fn=lambda: {"name": f"funcaot {name}", "encoding": encoding},
            payload_fn=lambda: text,
        )
