"""``flex_attention`` of tensors that require grad, on devices where torch has no kernel for it.

Torch refuses such tensors before it calls its operator, which a capture runs as a formula.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch, holding

__all__ = ["differentiating_flex_attention"]

_MODULE = "torch.nn.attention.flex_attention"
_NAME = "_validate_device"
# Where torch has the values and no gradients.
_WITHOUT_GRADIENTS = ("cpu", "mps")


class _ThisThread(threading.local):
    captures = False


_this_thread = _ThisThread()


class _Check:
    """Torch's check of where the operands are, with what else there is of gradients."""

    def __init__(self, original: Callable[..., None]) -> None:
        self.original = original

    def __call__(self, query: Any, key: Any, value: Any) -> None:
        if _this_thread.captures and query.device.type in _WITHOUT_GRADIENTS:
            return
        self.original(query, key, value)


def _exchange() -> None:
    module: Any = sys.modules[_MODULE]
    if not isinstance(original := getattr(module, _NAME), _Check):
        setattr(module, _NAME, _Check(original))


def _restore() -> None:
    module: Any = sys.modules[_MODULE]
    if isinstance(check := getattr(module, _NAME), _Check):
        setattr(module, _NAME, check.original)


_patch = SharedPatch(_exchange, _restore)


@contextlib.contextmanager
def differentiating_flex_attention() -> Iterator[None]:
    """Inside, in this thread, ``flex_attention`` takes tensors that require grad everywhere."""
    if _MODULE not in sys.modules:  # whoever calls it has imported it
        yield
        return
    with applied("flex attention", _patch.used, None), holding(_this_thread, captures=True):
        yield
