"""What ``aliases`` says of a view that it can't make again."""

from __future__ import annotations

import torch

from funcaot.errors import UnsupportedError

__all__ = ["view_of_a_function"]

_OF_HOOKS = "BackwardHookFunction"


def view_of_a_function(name: str, value: torch.Tensor) -> UnsupportedError:
    """The error for a view that a Function made: torch makes one for a module's backward hooks.

    Args:
        name: The user's function.
        value: The view, on the tape.
    """
    node = value.grad_fn
    if node is not None and _OF_HOOKS in node.name():
        return UnsupportedError(
            f"{name} returns or stores what a module with a full backward hook was given or "
            "returned, beside other tensors in the same memory (BackPACK stores them so).",
            remedy="compile a function that runs the backward too, as a whole training step "
            "does; or store a clone.",
        )
    return UnsupportedError(
        f"{name} returns a view that a custom Function made.",
        remedy="return a new tensor from the Function (x.clone() for a view of x).",
    )
