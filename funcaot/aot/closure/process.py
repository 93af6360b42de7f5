"""Settings of the process that no object of the user's holds: read by a call that names them.

The walk asks here which of them code that ran names; the reader compares what they say. What
changes what an op does is a part of every signature instead (``signature/ambient``).
"""

from __future__ import annotations

import decimal
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from funcaot._torch.tensors import guards

__all__ = ["named_settings"]


def _decimal_context() -> tuple[Any, ...]:
    context = decimal.getcontext()
    traps = tuple(sorted(kind.__name__ for kind, is_on in context.traps.items() if is_on))
    limits = (context.Emin, context.Emax, context.capitals, context.clamp)
    return (context.prec, context.rounding, *limits, traps)


def _backends() -> tuple[Any, ...]:
    backends = torch.backends
    attention = ("flash", "math", "mem_efficient", "cudnn")
    kernels = (getattr(backends.cuda, f"{name}_sdp_enabled", bool)() for name in attention)
    cudnn, einsum = backends.cudnn, backends.opt_einsum
    return (
        cudnn.enabled,
        cudnn.benchmark,
        cudnn.deterministic,
        cudnn.allow_tf32,
        backends.mkldnn.enabled,
        einsum.enabled,
        einsum.strategy,
        backends.mha.get_fastpath_enabled(),
        *kernels,
    )


def _warning_settings() -> tuple[bool, ...]:
    return (torch.is_warn_always_enabled(),)


def _anomaly() -> tuple[bool, bool]:
    return torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()


_SETTINGS: tuple[tuple[Callable[[], Any], frozenset[str]], ...] = (
    (guards.profiler_enabled, frozenset({"_profiler_enabled"})),
    (torch.get_num_threads, frozenset({"get_num_threads"})),
    (_anomaly, frozenset({"is_anomaly_enabled", "is_anomaly_check_nan_enabled"})),
    (_warning_settings, frozenset({"is_warn_always_enabled"})),
    (_backends, frozenset({"backends", "cudnn", "mkldnn", "opt_einsum", "mha"})),
    (_decimal_context, frozenset({"decimal", "Decimal", "getcontext", "localcontext"})),
    (os.getcwd, frozenset({"getcwd", "cwd", "abspath", "realpath"})),
    (sys.getrecursionlimit, frozenset({"getrecursionlimit"})),
)


def named_settings(
    mentions_any: Callable[[frozenset[str]], bool],
) -> Iterator[tuple[Callable[[], Any], Any]]:
    """What reads each setting that code of the user's names, and what it says now.

    Args:
        mentions_any: Whether that code has one of some names in it.
    """
    for read, names in _SETTINGS:
        if mentions_any(names):
            yield read, read()
