"""Read from a Function class which rules it has."""

from __future__ import annotations

from typing import Any

import torch


def overrides(function: Any, rule: str) -> bool:
    """Whether the class defines this staticmethod itself."""
    inherited = getattr(torch.autograd.Function, rule, None)
    return getattr(function, rule, None) is not inherited


def is_once_differentiable(function: Any) -> bool:
    """Whether backward was decorated with ``once_differentiable``."""
    # The decorator leaves no flag: its wrapper is recognised by the file it is written in.
    code = getattr(getattr(function, "backward", None), "__code__", None)
    written_in = getattr(code, "co_filename", "").replace("\\", "/")
    return overrides(function, "backward") and written_in.endswith("torch/autograd/function.py")


def is_old_style(function: Any) -> bool:
    """Whether forward takes the context, because there is no ``setup_context``."""
    return not overrides(function, "setup_context")


def rules_of(function: Any) -> dict[str, bool]:
    """The ``supports_*`` fields of a ``FunctionInfo``, read from the class.

    Args:
        function: An ``autograd.Function`` class.

    Returns:
        Field names of ``FunctionInfo`` and whether the class has, or lets us generate, the rule.
    """
    if is_old_style(function):
        # The operator splits forward(ctx, ...) and generates the rest unasked.
        return {
            "supports_autograd": overrides(function, "backward") or overrides(function, "vjp"),
            "supports_gradgrad": not is_once_differentiable(function),
            "supports_forward_ad": True,
            "supports_vmap": True,
        }
    has_jvp = overrides(function, "jvp")
    has_backward = overrides(function, "backward") or overrides(function, "vjp")
    return {
        "supports_autograd": has_backward or getattr(function, "generate_backward_rule", False),
        "supports_gradgrad": not is_once_differentiable(function),
        "supports_forward_ad": has_jvp or getattr(function, "generate_jvp_rule", False),
        "supports_vmap": overrides(function, "vmap")
        or getattr(function, "generate_vmap_rule", False),
    }
