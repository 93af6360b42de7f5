"""``flex_attention`` of tensors that require grad, on devices where torch has no kernel for it.

Torch refuses such tensors before it calls its operator, which a capture runs as a formula. Where
nothing is captured, and ``install`` is there, the operator is that formula for calls that may be
differentiated or that a transform batches; the others, in ``no_grad``, run as torch runs them.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.autograd import forward_ad

from funcaot._torch.levels.functorch import transforms_active
from funcaot._torch.patches import applied, is_usable
from funcaot.base.scopes import SharedPatch, holding

__all__ = [
    "differentiating_flex_attention",
    "install_flex_attention",
    "uninstall_flex_attention",
]

_MODULE = "torch.nn.attention.flex_attention"
_OPERATOR = "torch._higher_order_ops.flex_attention"
_NAME = "_validate_device"
# Torch's switch to call its operator as it is, rather than by way of its compiler.
_AS_IT_IS = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
# Where torch has the values and no gradients.
_WITHOUT_GRADIENTS = ("cpu", "mps")
Formula = Callable[..., Any]


class _ThisThread(threading.local):
    captures = False
    # Whether the call in progress is to be the formula, and whether it was.
    asked = False
    answered = False


_this_thread = _ThisThread()


class _Check:
    """Torch's check of where the operands are, with what else there is of gradients."""

    def __init__(self, original: Callable[..., None]) -> None:
        self.original = original

    def __call__(self, query: Any, key: Any, value: Any) -> None:
        if torch.compiler.is_dynamo_compiling():
            self.original(query, key, value)
            return
        _this_thread.asked = _this_thread.answered = False
        if _this_thread.captures and query.device.type in _WITHOUT_GRADIENTS:
            return
        # What scores are changed by may require grad where the operands don't.
        moves = torch.is_grad_enabled() or transforms_active() or _in_dual_level()
        if _formulas and not _this_thread.captures and moves:
            _this_thread.asked = True
            return
        self.original(query, key, value)


def _in_dual_level() -> bool:
    return forward_ad._current_level >= 0


class _Switch:
    """Torch's switch, which is on for the calls that are the formula."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __bool__(self) -> bool:
        return _this_thread.asked or _this_thread.answered or bool(self.original)


# What ``install`` gives; the last one counts.
_formulas: list[Formula] = []


def _exchange() -> None:
    module: Any = sys.modules[_MODULE]
    if not isinstance(original := getattr(module, _NAME), _Check):
        setattr(module, _NAME, _Check(original))


def _restore() -> None:
    module: Any = sys.modules[_MODULE]
    if isinstance(check := getattr(module, _NAME), _Check):
        setattr(module, _NAME, check.original)


def _exchange_operator() -> None:
    module: Any = sys.modules[_MODULE]
    if not isinstance(original := getattr(module, _AS_IT_IS), _Switch):
        setattr(module, _AS_IT_IS, _Switch(original))
    operator: Any = sys.modules[_OPERATOR].FlexAttentionHOP
    if hasattr(operator.__call__, "original"):
        return
    before = operator.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not _this_thread.asked:
            return before(self, *args, **kwargs)
        _this_thread.asked, _this_thread.answered = False, True
        return _formulas[-1](*args, **kwargs)

    call.original = before  # type: ignore[attr-defined]
    operator.__call__ = call


def _restore_operator() -> None:
    module: Any = sys.modules[_MODULE]
    if isinstance(switch := getattr(module, _AS_IT_IS), _Switch):
        setattr(module, _AS_IT_IS, switch.original)
    operator: Any = sys.modules[_OPERATOR].FlexAttentionHOP
    if (before := getattr(operator.__call__, "original", None)) is not None:
        operator.__call__ = before


_patch = SharedPatch(_exchange, _restore)
_operator_patch = SharedPatch(_exchange_operator, _restore_operator)


def install_flex_attention(formula: Formula) -> bool:
    """From now on the formula is what is differentiated, until it is uninstalled."""
    importlib.import_module(_MODULE)
    if not is_usable("flex attention") or not is_usable("uncompiled flex attention"):
        return False
    _formulas.append(formula)
    _patch.install()
    _operator_patch.install()
    return True


def uninstall_flex_attention() -> None:
    """Undo one installation."""
    _formulas.pop()
    _operator_patch.uninstall()
    _patch.uninstall()


@contextlib.contextmanager
def differentiating_flex_attention() -> Iterator[None]:
    """Inside, in this thread, ``flex_attention`` takes tensors that require grad everywhere."""
    if _MODULE not in sys.modules:  # whoever calls it has imported it
        yield
        return
    with applied("flex attention", _patch.used, None), holding(_this_thread, captures=True):
        yield
