"""What a Function keeps on its ctx, with the tensors inside of objects taken out and put back.

A ctx may hold anything: an object that holds an object that holds a tensor, a function that closes
over one. What runs a rule later, at another level or on real values, has other tensors. It puts
these into copies of what was kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tracing.tracing_errors import met_traced
from funcaot.errors import UnsupportedError
from funcaot.rules.operands.closure_parts import data_of
from funcaot.rules.operands.closures import Hollow, Sealed, hollowed
from funcaot.rules.operands.entered import is_of_a_call
from funcaot.rules.operands.flat_call import FlatCall, flatten_values

__all__ = ["HeldCall", "flatten_held", "stored_while_traced", "without_tensors", "without_traced"]


def without_tensors(
    leaves: tuple[tuple[Any, ...], ...],
    wanted: Callable[[torch.Tensor], bool],
    left: Callable[[Any], bool] = lambda value: False,
) -> tuple[Hollow, tuple[torch.Tensor, ...]]:
    """Take tensors out of objects and functions.

    They are taken apart together, so that what two of them share stays shared.

    Args:
        leaves: Values, among them objects.
        wanted: Which tensors.
        left: What isn't looked into.

    Returns:
        The leaves without these tensors, and the tensors.

    Raises:
        Sealed: One is held by what can't be copied.
    """

    def parts(value: Any) -> Iterator[tuple[str, Any]]:
        return iter(()) if left(value) else data_of(value)

    hollow, tensors, _ = hollowed(leaves, wanted, parts=parts)
    return hollow, tensors


@dataclass(frozen=True, eq=False)
class HeldCall:
    """How to rebuild the arguments of a call from its tensors, those inside of objects too.

    Attributes:
        specs: The tree structure of each argument.
        leaves: The leaves of each argument, with marks for tensors and objects with holes.
        count: How many tensors are inside of objects; these come first.
    """

    specs: tuple[Any, ...]
    leaves: Hollow
    count: int

    def arguments(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with ``tensors`` in their places."""
        leaves = self.leaves.filled(tensors[: self.count])
        return FlatCall(self.specs, leaves).arguments(tensors[self.count :])


def flatten_held(
    values: tuple[Any, ...], name: str
) -> tuple[FlatCall | HeldCall, tuple[torch.Tensor, ...]]:
    """Flatten what a rule is given, and take the call's tensors out of objects.

    Args:
        values: Saved tensors, attributes of the ctx by name, cotangents.
        name: The Function.

    Raises:
        UnsupportedError: A tensor is held by what can't be copied.
    """
    call, tensors = flatten_values(values)
    try:
        leaves, inside = without_tensors(call.leaves, is_of_a_call)
    except Sealed as sealed:
        raise UnsupportedError(
            f"The backward of {name} runs by itself, on tensors that it is given, and its ctx "
            "keeps a tensor in an iterator, or in something else that can't be copied.",
            remedy="keep tensors with ctx.save_for_backward or as attributes of ctx, and a list "
            "instead of an iterator.",
        ) from sealed
    if not inside:
        return call, tensors
    return HeldCall(call.specs, leaves, len(inside)), (*inside, *tensors)


@contextlib.contextmanager
def without_traced(name: str) -> Iterator[None]:
    """While a backward runs on real values, which may find a tensor of a capture somewhere.

    Raises:
        UnsupportedError: It computed with one.
    """
    try:
        yield
    except (AssertionError, RuntimeError) as error:
        if not met_traced(error):
            raise
        raise stored_while_traced(f"backward of {name}") from error


def stored_while_traced(what: str) -> UnsupportedError:
    """The error of a backward that meets a tensor of a capture where it has none."""
    return UnsupportedError(
        f"{what} computes with a tensor that a call stored while it was traced: in a cache, or in "
        "a module that forward made.",
        remedy="keep the tensor with ctx.save_for_backward or as an attribute of ctx.",
    )
