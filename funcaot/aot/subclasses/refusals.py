"""What is raised for tensors that programs don't know: wrappers at a level, classes of a user.

A forward that meets them isn't compiled: ``runtime.compiled`` calls the function itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.levels import functorch
from funcaot._torch.levels.situation import Situation
from funcaot._torch.tensors.classes.own_functions import has_own_dispatch
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError

__all__ = [
    "EagerOnlyError",
    "forward_refusal",
    "is_behind_levels",
    "level_refusal",
    "refuse_behind_levels",
    "refuse_forward",
    "refuse_under_mode",
]


class EagerOnlyError(UnsupportedError):
    """Nothing has happened yet in a call that can't be compiled; the function can be called."""


def is_behind_levels(value: torch.Tensor) -> bool:
    """Whether a transform's own wrappers hide a tensor that wraps others, or a dual number has one.

    Args:
        value: A tensor at a level, or a dual number.
    """
    plain = functorch.fully_unwrapped(value)
    if plain is not value and (is_wrapper(plain) or has_own_dispatch(type(plain))):
        return True
    return any(is_wrapper(functorch.fully_unwrapped(t)) for t in functorch.tangents_of(value))


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
            f"A derivative of {name} is asked for, which has to do with a tensor subclass that "
            "wraps others, while a TorchDispatchMode is active, which would see other ops than in "
            "eager.",
            remedy="enter the mode around the call, too, or leave it around both.",
        )


def refuse_forward(around: Situation, name: str) -> None:
    """Refuse to run a forward with wrappers in it where others look on.

    Args:
        around: What is in progress.
        name: The user's function.

    Raises:
        EagerOnlyError: At a level, in forward mode, or under a dispatch mode.
    """
    if around.derives:
        raise forward_refusal(name)
    if around.modes:
        raise EagerOnlyError(
            f"{name} is called with a tensor subclass that wraps others, or returns one, while a "
            "TorchDispatchMode is active, which would see other ops than in eager.",
            remedy="leave the mode around the call.",
        )


def forward_refusal(name: str) -> EagerOnlyError:
    """What is raised before a forward has run.

    Args:
        name: The user's function.
    """
    return EagerOnlyError(
        f"{name} meets a tensor subclass that wraps others inside a torch.func transform or in "
        "forward mode.",
        remedy="compile the function that calls the transform.",
    )


def level_refusal(name: str) -> UnsupportedError:
    """What is raised for a derivative whose forward has run below.

    Args:
        name: The user's function.
    """
    return UnsupportedError(
        f"A derivative of {name} meets a tensor subclass that wraps others inside a torch.func "
        "transform, forward mode or is_grads_batched.",
        remedy="call it inside of the transform, too, or compile the function that calls the "
        "transform.",
    )
