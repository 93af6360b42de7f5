"""Settings of the process that no object of the user's holds: read by a call that names them.

The walk asks here which of them code that ran names; the reader compares what they say. What
changes what an op does is a part of every signature instead (``signature/ambient``).
"""

from __future__ import annotations

import decimal
import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tensors import guards
from funcaot.aot.closure.children import quoted
from funcaot.aot.closure.named.code_names import ReadNames
from funcaot.base.variables import Variables, is_environ
from funcaot.errors import UnsupportedError

__all__ = ["Settings", "are_named", "asked_for", "named_settings"]


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


def _set_precision(digits: int) -> None:
    decimal.getcontext().prec = digits


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


@dataclass(frozen=True)
class _Setting:
    """A setting that code may set: what it is called, what it says, and how it is put back."""

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], Any]


def _numpys() -> Any:
    numpy = sys.modules.get("numpy")
    return None if numpy is None else numpy.geterr()


def _set_numpys(before: Any) -> None:
    sys.modules["numpy"].seterr(**before)


def _set_hook(before: Any) -> None:
    sys.excepthook = before


_SET = (
    _Setting("the number of threads", torch.get_num_threads, torch.set_num_threads),
    _Setting("the precision of decimal", lambda: decimal.getcontext().prec, _set_precision),
    _Setting("NumPy's handling of errors", _numpys, _set_numpys),
    _Setting("logging.disable", lambda: logging.root.manager.disable, logging.disable),
    _Setting("sys.excepthook", lambda: sys.excepthook, _set_hook),
)


class Settings:
    """What settings of the process say before a function runs."""

    def __init__(self) -> None:
        """Read them."""
        self._before = [setting.read() for setting in _SET]

    def _changed(self) -> Iterator[tuple[_Setting, Any]]:
        for setting, before in zip(_SET, self._before, strict=True):
            if before is not None and setting.read() != before:
                yield setting, before

    def refuse_changed(self, name: str) -> None:
        """Raise if one of them says something else now.

        Args:
            name: The user's function.

        Raises:
            UnsupportedError: If one does.
        """
        for setting, _ in self._changed():
            raise UnsupportedError(
                f"{name} leaves {setting.name} changed, which would happen once, when it is "
                "captured, and not at every call.",
                remedy="change it outside of the compiled function, or change it back inside.",
            )

    def put_back(self) -> None:
        """Have them say again what they said."""
        for setting, before in self._changed():
            setting.write(before)


def named_settings(
    mentions_any: Callable[[frozenset[str]], bool],
) -> Iterator[tuple[str, Any, Any]]:
    """Each setting that code of the user's names: source text that reads it, and what it says now.

    Args:
        mentions_any: Whether that code has one of some names in it.

    Yields:
        The text, the constant that it names, and the value.
    """
    for read, names in _SETTINGS:
        if mentions_any(names):
            yield "{0}()", read, read()


def asked_for(variables: Variables) -> Iterator[tuple[str, Any, Any]]:
    """The same for each environment variable that code asked for by its name."""
    for name in variables:
        yield f"{{0}}.environ.get({quoted(name)})", os, os.environ.get(name)


def are_named(holder: Any, variables: Variables, names: ReadNames) -> bool:
    """Whether something holds environment variables of which only those are compared."""
    if not is_environ(holder) or variables.all:
        return False
    return not (names.mentions("_data") or names.reads_own(holder))
