"""``funcaot.linear_call``: a linear function given with its transpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.functions.custom_vjp import custom_vjp
from funcaot.rules.symbolic_zeros import custom_vjp_primal_tree_values

__all__ = ["linear_call"]


def linear_call(
    function: Callable[..., Any],
    transpose: Callable[..., Any],
    residual_args: Any,
    linear_args: Any,
) -> Any:
    """Call a linear function whose transpose is given, and used wherever one is needed.

    The transpose of the transpose is the function, to any order and in both modes. By the residual
    arguments, the function is differentiated as it is written.

    Args:
        function: ``function(residual_args, linear_args)``, linear in the second.
        transpose: ``transpose(residual_args, cotangent)``, which returns what has the structure of
            ``linear_args``.
        residual_args: A pytree.
        linear_args: A pytree of tensors.

    Example:
        >>> import torch, funcaot
        >>> def solve(lower, b):
        ...     return torch.linalg.solve_triangular(lower, b, upper=False)
        >>> def solve_transposed(lower, c):
        ...     return torch.linalg.solve_triangular(lower.T, c, upper=True)
        >>> lower, b = torch.tensor([[2.0, 0.0], [1.0, 1.0]]), torch.ones(2, 1)
        >>> f = lambda b: funcaot.linear_call(solve, solve_transposed, lower, b).sum()
        >>> torch.func.grad(f)(b).T
        tensor([[0., 1.]])
    """

    def call(residual: Any, linear: Any) -> Any:
        return function(residual, linear)

    def fwd(residual: Any, linear: Any) -> tuple[Any, Any]:
        leaves = pytree.tree_leaves(residual)
        needed = any(leaf is not None and leaf.perturbed for leaf in leaves)
        residual, linear = map(custom_vjp_primal_tree_values, (residual, linear))
        return function(residual, linear), (residual, linear if needed else None)

    def bwd(kept: Any, cotangent: Any) -> tuple[Any, Any]:
        residual, linear = kept
        cotangent = pytree.tree_map(_instantiated, cotangent)
        gradient = linear_call(transpose, function, residual, cotangent)
        if linear is None:
            return None, gradient
        return _by_residual(function, residual, linear, cotangent), gradient

    # What it says of itself isn't probed: forward mode is the function again.
    rule = custom_vjp(call, allow_nonlinear_rule=True)
    rule.defvjp(fwd, bwd, symbolic_zeros=True)
    return rule(residual_args, linear_args)


def _instantiated(leaf: Any) -> Any:
    return leaf if isinstance(leaf, torch.Tensor) else leaf.instantiate()


def _by_residual(function: Any, residual: Any, linear: Any, cotangent: Any) -> Any:
    leaves, spec = pytree.tree_flatten(residual)
    where = [
        i
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    ]

    def of_floats(*floats: torch.Tensor) -> Any:
        filled = list(leaves)
        for i, value in zip(where, floats, strict=True):
            filled[i] = value
        return function(pytree.tree_unflatten(filled, spec), linear)

    pulled = torch.func.vjp(of_floats, *[leaves[i] for i in where])[1](cotangent)
    found = dict(zip(where, pulled, strict=True))
    return pytree.tree_unflatten([found.get(i) for i in range(len(leaves))], spec)
