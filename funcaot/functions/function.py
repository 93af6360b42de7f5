"""``funcaot.Function``: the base class whose ``apply`` goes through the operator."""

from __future__ import annotations

from typing import Any

import torch

import funcaot.transforms  # noqa: F401  (registers the rules)
from funcaot.operator.operator import custom_function_call

__all__ = ["Function"]


class Function(torch.autograd.Function):
    """A ``torch.autograd.Function`` that works under every transform.

    The staticmethods are those of ``torch.autograd.Function``: ``forward``, ``setup_context``,
    ``backward`` (or ``vjp``), ``jvp`` and ``vmap``; also forward with ``ctx`` and no
    ``setup_context``. Nothing else has to be learned; what's missing can be generated:

    Attributes:
        generate_vmap_rule: Run forward, setup_context, backward and jvp per example under ``vmap``.
            They must be written with torch operations.
        generate_jvp_rule: Make forward mode from ``backward``. Exact if ``backward`` is linear in
            the cotangents, differentiable in them, and doesn't branch on their values.
        generate_backward_rule: Make reverse mode from ``jvp``, under the same conditions on
            ``jvp`` and the tangents.
        vmap_by_loop: With ``generate_vmap_rule``, run one example after another; for rules that
            ``vmap`` can't batch, like those written with NumPy.
        allow_nonlinear_rule: Skip the check that a rule to be transposed is linear, and take its
            linearization at zero.

    Example:
        >>> import torch, funcaot
        >>> class Square(funcaot.Function):
        ...     generate_vmap_rule = True
        ...     generate_jvp_rule = True
        ...     @staticmethod
        ...     def forward(x):
        ...         return x * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         ctx.save_for_backward(inputs[0])
        ...     @staticmethod
        ...     def backward(ctx, cotangent):
        ...         return 2 * cotangent * ctx.saved_tensors[0]
        >>> torch.func.jacfwd(Square.apply)(torch.tensor(3.0))
        tensor(6.)
    """

    generate_vmap_rule = False
    generate_jvp_rule = False
    generate_backward_rule = False
    vmap_by_loop = False
    allow_nonlinear_rule = False
    funcaot_checks_rules = True

    @classmethod
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """Call the Function on ``args`` under whatever transforms are active.

        Raises:
            FuncaotError: A rule is missing, or returned something that the transform can't use.
        """
        return custom_function_call(cls, *args, **kwargs)
