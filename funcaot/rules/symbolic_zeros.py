"""Zeros that a custom rule can tell from other tangents, and arguments that say what they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.errors import ArgumentError

__all__ = [
    "CustomVJPPrimal",
    "SymbolicZero",
    "custom_vjp_primal_tree_values",
    "is_number",
    "zero_from_primal",
]


@dataclass(frozen=True)
class SymbolicZero:
    """The tangent or cotangent of what isn't differentiated, for rules with ``symbolic_zeros``.

    Attributes:
        shape: The shape of the zero.
        dtype: Its dtype.
        device: Where it would be.

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.custom_jvp(lambda x, y: x * y)
        >>> def rule(primals, tangents):
        ...     (x, y), (x_dot, y_dot) = primals, tangents
        ...     assert type(y_dot) is funcaot.SymbolicZero
        ...     return f(x, y), x_dot * y
        >>> _ = f.defjvp(rule, symbolic_zeros=True)
        >>> torch.func.grad(f)(torch.tensor(2.0), torch.tensor(3.0))
        tensor(3.)
    """

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def like(value: Any) -> SymbolicZero:
        """The zero that belongs to a tensor or a number."""
        if not isinstance(value, torch.Tensor):
            value = torch.empty((), dtype=torch.tensor(value).dtype)
        return SymbolicZero(value.shape, value.dtype, value.device)

    @property
    def ndim(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    def instantiate(self) -> torch.Tensor:
        """A tensor of zeros."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class CustomVJPPrimal:
    """A leaf of an argument of ``fwd``, for rules with ``symbolic_zeros``.

    Attributes:
        value: The tensor or number.
        perturbed: Whether it is differentiated.

    Example:
        >>> import torch, funcaot
        >>> f = funcaot.custom_vjp(lambda x, y: x * y)
        >>> def fwd(x, y):
        ...     assert isinstance(x, funcaot.CustomVJPPrimal) and not y.perturbed
        ...     return x.value * y.value, y.value
        >>> f.defvjp(fwd, lambda y, cotangent: (cotangent * y, None), symbolic_zeros=True)
        >>> torch.func.grad(f)(torch.tensor(2.0), torch.tensor(3.0))
        tensor(3.)
    """

    value: Any
    perturbed: bool


def custom_vjp_primal_tree_values(tree: Any) -> Any:
    """The values of an argument of ``fwd`` whose rule was set with ``symbolic_zeros``.

    Args:
        tree: An argument: a pytree whose leaves are :class:`CustomVJPPrimal`.

    Raises:
        ArgumentError: A leaf is something else.

    Example:
        >>> import funcaot
        >>> leaf = funcaot.CustomVJPPrimal(3.0, perturbed=False)
        >>> funcaot.custom_vjp_primal_tree_values({"a": leaf})
        {'a': 3.0}
    """
    return pytree.tree_map(_value, tree)


def _value(leaf: Any) -> Any:
    if not isinstance(leaf, CustomVJPPrimal):
        raise ArgumentError(
            "custom_vjp_primal_tree_values was given a tree with another leaf.",
            expected="leaves that are CustomVJPPrimal, as fwd gets them with symbolic_zeros=True",
            got=type(leaf).__name__,
            remedy="pass an argument of fwd as it came.",
        )
    return leaf.value


def is_number(value: Any) -> bool:
    """Whether a value is a number that has tangents."""
    return isinstance(value, (float, complex)) and not isinstance(value, bool)


def zero_from_primal(primal: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangent of a value; None for leaves that have no tangent.

    Args:
        primal: A pytree.
        symbolic_zeros: Whether its leaves are to be :class:`SymbolicZero`.

    Example:
        >>> import torch, funcaot
        >>> funcaot.zero_from_primal({"a": torch.ones(2), "n": 3})
        {'a': tensor([0., 0.]), 'n': None}
    """

    def zero(leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            return SymbolicZero.like(leaf) if symbolic_zeros else torch.zeros_like(leaf)
        if is_number(leaf):
            return SymbolicZero.like(leaf) if symbolic_zeros else 0.0
        return None

    return pytree.tree_map(zero, primal)
