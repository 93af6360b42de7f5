"""Ops of ``torch.library`` under every transform; ``kernels`` and the interception ask for this.

Torch's kernel of autograd for such an op is a Function of its own. It can't be applied at a
transform's level, and drops tangents without a word. Here it is applied at the level that runs,
and forward mode is the transpose of what ``register_autograd`` was given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import (
    SingleLevelFunction,
    compiled_autograd_key,
    forward_grad_enabled,
)
from funcaot._torch.autograd.op_kernels import (
    OpOverload,
    draws_at_random,
    op_name,
    schema_of,
)
from funcaot._torch.levels.functorch import single_level_functions_allowed
from funcaot.derivatives.table import Derivative
from funcaot.derivatives.ways import transposed
from funcaot.errors import MissingRuleError

__all__ = ["MODULE", "apply_at_level", "forward_rule"]

# Where torch makes the Functions of such ops.
MODULE = "torch._library.autograd"
_NAME = "_funcaot_single_level"


def apply_at_level(function: type, args: tuple[Any, ...]) -> Any:
    """Apply torch's Function of such an op at the level in progress, as one node of autograd."""
    single = function.__dict__.get(_NAME)
    if single is None:
        single = _single_level(function)
        setattr(function, _NAME, single)
    with single_level_functions_allowed():
        return single.apply(*args)


def _single_level(function: Any) -> Any:
    def forward(ctx: Any, *args: Any) -> Any:
        # Switched off here, where they must be on for the levels below.
        with torch.enable_grad(), forward_grad_enabled(True):
            return function.forward(ctx, *args)

    members = {
        "forward": staticmethod(forward),
        "backward": staticmethod(function.backward),
        "_compiled_autograd_key": staticmethod(compiled_autograd_key),
        "__module__": __name__,
    }
    return type(function.__name__, (SingleLevelFunction,), members)


def forward_rule(op: OpOverload) -> Derivative:
    """A rule for forward mode of an op that the table has none for."""
    return Derivative(op, jvp=_forward(op), reverse=False)


def _forward(op: OpOverload) -> Callable[..., Any]:
    if not schema_of(op).is_mutable and not draws_at_random(op):
        return _of_formulas(op)

    def refuse(*_: Any, **__: Any) -> Any:
        raise MissingRuleError(
            f"{op_name(op)} was differentiated in forward mode, which is made of its gradient by "
            "running it once more, and it writes to an argument or draws at random.",
            expected="an op that only computes",
            got=str(schema_of(op)),
            remedy="register a jvp with funcaot.register_derivative.",
        )

    return refuse


def _of_formulas(op: OpOverload) -> Callable[..., Any]:
    by_transposing = transposed(op)

    def jvp(*args: Any, **kwargs: Any) -> Any:
        try:
            return by_transposing(*args, **kwargs)
        except RuntimeError as error:
            if "no autograd formula was registered" not in str(error):
                raise
            raise MissingRuleError(
                f"{op_name(op)} was differentiated in forward mode, which is the transpose of its "
                "gradient, and its gradient can't be transposed.",
                expected="register_autograd for it and for every op that its backward calls",
                got=str(error).split(". ")[0],
                remedy="register these, or a jvp with funcaot.register_derivative.",
            ) from error

    return jvp
