"""Premises: what a program takes for granted about values, and looks at again at every call.

A capture that reads a number off a tensor, or makes a tensor whose shape depends on values, goes
on with what it found in the call being captured. The node that it records computes that again in
every call. Where it finds something else, the call leaves the program, of which nothing has
happened yet that can be seen, and takes another one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

from funcaot import config
from funcaot._torch.tensors.seeding import (
    generators_among,
    random_states,
    restore_random_states,
)
from funcaot.base.scopes import holding
from funcaot.errors import UnsupportedError

__all__ = [
    "PremiseFailed",
    "are_allowed",
    "holds",
    "leaving",
    "number_function",
    "reads_number",
    "refused",
]


class PremiseFailed(Exception):
    """A program was made for other values than those of this call."""

    def __init__(self, what: str, got: str) -> None:
        """Say what the program was made for, and what it is now."""
        super().__init__(f"{what}, now {got}")


def holds(function: type) -> bool:
    """Whether a Function is a premise."""
    return getattr(function, "funcaot_premise", False)


def reads_number(function: type) -> bool:
    """Whether a Function is a premise about a number: it is the same for tensors of any size."""
    return getattr(function, "funcaot_reads_number", False)


def number_function(
    compute: Callable[..., Any], expected: Any, name: str, reason: str
) -> type[torch.autograd.Function]:
    """A Function that computes a Python value from tensors and leaves unless it is as expected.

    Args:
        compute: Tensors to the value.
        expected: What the program was made for.
        name: Shown by graphs.
        reason: Shown by the report.

    Returns:
        The class; it returns one tensor that means nothing.
    """

    def forward(*tensors: torch.Tensor) -> torch.Tensor:
        found = compute(*tensors)
        # By text: nan equals itself, and 0.0 isn't -0.0.
        if repr(found) != repr(expected):
            raise PremiseFailed(reason, repr(found))
        return torch.zeros((), dtype=torch.bool, device="cpu")

    def abstract(*tensors: torch.Tensor) -> torch.Tensor:
        return torch.zeros((), dtype=torch.bool, device="cpu")

    def vmap(info: Any, in_dims: Any, *tensors: torch.Tensor) -> Any:
        raise UnsupportedError(
            f"Under vmap, a compiled function reads a number off a batched tensor ({reason}), "
            "which may be another number for each example.",
            remedy="compute with the tensor itself (torch.where for a branch).",
        )

    members = {
        "forward": staticmethod(forward),
        "abstract": staticmethod(abstract),
        "setup_context": staticmethod(lambda ctx, inputs, output: None),
        "vmap": staticmethod(vmap),
        "funcaot_reason": reason,
        "funcaot_premise": True,
        "funcaot_reads_number": True,
        "funcaot_found": [torch.zeros((), dtype=torch.bool, device="cpu")],
        "__module__": __name__,
    }
    return type(name, (torch.autograd.Function,), members)


@contextlib.contextmanager
def leaving(possible: bool, tape: Any) -> Iterator[None]:
    """Put the random generators back if a call leaves the program that runs inside.

    Args:
        possible: Whether it may.
        tape: What it was recorded on, which holds the generators that it draws from.
    """
    if not possible:
        yield
        return
    states = random_states(generators_among(vars(tape.root).values()))
    try:
        yield
    except PremiseFailed:
        restore_random_states(states)
        raise


class _ThisThread(threading.local):
    refused = False


_this_thread = _ThisThread()


def are_allowed() -> bool:
    """Whether a capture may go on with what it reads, here and now."""
    return not _this_thread.refused and config.get().specialize_on_values


@contextlib.contextmanager
def refused() -> Iterator[None]:
    """Let code that reads values fail inside, because it can run on real values as a whole."""
    with holding(_this_thread, refused=True):
        yield
