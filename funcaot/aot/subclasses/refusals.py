"""What is raised for wrappers at a level of a transform, where programs know plain tensors only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.levels import functorch
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError

__all__ = ["is_behind_levels", "level_refusal", "refuse_behind_levels", "refuse_under_mode"]


def is_behind_levels(value: torch.Tensor) -> bool:
    """Whether a transform's own wrappers, or dual numbers, hide a tensor that wraps others."""
    plain = functorch.fully_unwrapped(value)
    return plain is not value and is_wrapper(plain)


def refuse_behind_levels(values: Sequence[Any], name: str) -> None:
    """Refuse to run a program at a level on tensors that wrap others.

    Raises:
        UnsupportedError: If there is one.
    """
    for value in values:
        if isinstance(value, torch.Tensor) and (is_wrapper(value) or is_behind_levels(value)):
            raise level_refusal(name)


def refuse_under_mode(nodes: Iterable[fx.Node], name: str) -> None:
    """Refuse to run a graph of wrappers op by op, where a dispatch mode looks on.

    It would see what a wrapper's class does inside, and not the ops that eager shows it.

    Raises:
        UnsupportedError: If there is a wrapper among the values.
    """
    if any(is_wrapper(node.meta.get("val")) for node in nodes):
        raise UnsupportedError(
            f"{name} is called with a tensor subclass that wraps others, or returns one, while a "
            "TorchDispatchMode is active, which would see other ops than in eager.",
            remedy="call the function itself there, or leave the mode around the call.",
        )


def level_refusal(name: str) -> UnsupportedError:
    """What is raised.

    Args:
        name: The user's function.
    """
    return UnsupportedError(
        f"{name}, or a derivative of it, meets a tensor subclass that wraps others inside a "
        "torch.func transform, forward mode or is_grads_batched.",
        remedy="compile the function that calls the transform, or call the function itself there.",
    )
