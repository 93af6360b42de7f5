"""What a call looks like: everything that decides which program runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch import tracing
from funcaot._torch.pytree import TreeSpec, tree_flatten
from funcaot.aot.spec import TensorSpec, spec_of
from funcaot.errors import UnsupportedError


@dataclass(frozen=True, slots=True)
class Constant:
    """A non-tensor leaf of the arguments; the program is specialized on its value."""

    kind: type
    value: Any


@dataclass(frozen=True, slots=True)
class Ambient:
    """Global state that changes what ops do."""

    grad_mode: bool
    forward_mode: bool
    inference_mode: bool
    autocast: tuple[Any, ...]
    default_dtype: torch.dtype
    deterministic: bool


@dataclass(frozen=True, slots=True)
class Signature:
    """A call's structure, metadata, constants and global state.

    Attributes:
        tree: Structure of ``(args, kwargs)``.
        leaves: A spec or a constant per leaf.
        repeats: For each tensor leaf that is the same object as an earlier one, both positions.
        ambient: Global state.
    """

    tree: TreeSpec
    leaves: tuple[TensorSpec | Constant, ...]
    repeats: tuple[tuple[int, int], ...]
    ambient: Ambient

    def __str__(self) -> str:
        """The leaves, one after the other."""
        return ", ".join(
            str(leaf) if isinstance(leaf, TensorSpec) else repr(leaf.value) for leaf in self.leaves
        )


_AUTOCAST_DEVICES = ("cpu", "cuda")


def read_ambient(*, forward_mode: bool) -> Ambient:
    """The global state at this moment."""
    autocast: tuple[Any, ...] = tuple(
        (device, torch.get_autocast_dtype(device), torch.is_autocast_cache_enabled())
        for device in _AUTOCAST_DEVICES
        if torch.is_autocast_enabled(device)
    )
    return Ambient(
        grad_mode=torch.is_grad_enabled(),
        forward_mode=forward_mode,
        inference_mode=torch.is_inference_mode_enabled(),
        autocast=autocast,
        default_dtype=torch.get_default_dtype(),
        deterministic=torch.are_deterministic_algorithms_enabled(),
    )


def read_signature(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Signature, list[Any]]:
    """The signature of a call and its flat leaves.

    Raises:
        UnsupportedError: For a leaf that can't be part of a signature.
    """
    leaves, tree = tree_flatten((args, kwargs))
    described: list[TensorSpec | Constant] = []
    seen: dict[int, int] = {}
    forward_mode = tracing.forward_mode_active()
    repeats: list[tuple[int, int]] = []
    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            described.append(_constant(name, position, leaf))
            continue
        _check_tensor(name, position, leaf)
        described.append(spec_of(leaf, forward_mode=forward_mode))
        first = seen.setdefault(id(leaf), position)
        if first != position:
            repeats.append((first, position))
    ambient = read_ambient(forward_mode=forward_mode)
    return Signature(tree, tuple(described), tuple(repeats), ambient), leaves


def tensor_positions(leaves: Sequence[Any]) -> tuple[int, ...]:
    """Positions of the tensors among flat leaves."""
    return tuple(index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))


def _constant(name: str, position: int, value: Any) -> Constant:
    if isinstance(value, float) and (math.isnan(value) or value == 0.0):
        # nan is unequal to itself and 0.0 equals -0.0; both by their text.
        return Constant(float, repr(value))
    try:
        hash(value)
    except TypeError:
        raise UnsupportedError(
            f"{name} was called with an unhashable {type(value).__name__} as leaf {position} of "
            "its arguments, so its value can't be part of the call's signature.",
            remedy="pass a tensor or a hashable value, or register the type as a pytree "
            "(torch.utils._pytree.register_pytree_node).",
        ) from None
    return Constant(type(value), value)


def _check_tensor(name: str, position: int, tensor: torch.Tensor) -> None:
    plain = type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    if not plain and tracing.is_wrapper_subclass(tensor):
        raise UnsupportedError(
            f"{name} was called with a tensor subclass {type(tensor).__name__} as leaf {position} "
            "of its arguments.",
            remedy="compile the function that works on the plain tensors inside.",
        )
