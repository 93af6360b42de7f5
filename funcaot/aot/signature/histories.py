"""What was done to inputs before the call and changes gradients by them; captures ask.

``torch.autograd.grad`` inside of a function goes on, in eager, through what was recorded before
the call: where ``y`` was made of ``x``, the gradient of ``y * x`` by ``x`` has two parts. A tape
starts at its inputs, so that it has only one of them. Such a call is refused. So is one by an input
that has hooks, which eager runs on the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from funcaot._torch.autograd.nodes import edges_behind, hooks_on

__all__ = ["History", "Place", "has_hooks", "led_by"]

_grad_fn = torch.Tensor.grad_fn.__get__  # type: ignore[attr-defined]


class Place(NamedTuple):
    """Where an input is in a call.

    Attributes:
        is_argument: Whether it is an argument; else it is closed over.
        position: Its leaf among the arguments, or its place among what is closed over.
    """

    is_argument: bool
    position: int

    def read(self, arguments: Sequence[Any], lifted: Sequence[torch.Tensor]) -> torch.Tensor:
        """The tensor of a call."""
        return (arguments if self.is_argument else lifted)[self.position]


class History(NamedTuple):
    """Inputs that a program differentiates, and others that it differentiates by.

    Attributes:
        behind: What is differentiated.
        by: What it is differentiated by: none of the former was made of these, and they have no
            hooks.
    """

    behind: tuple[Place, ...]
    by: tuple[Place, ...]

    def matters(self, arguments: Sequence[Any], lifted: Sequence[torch.Tensor]) -> bool:
        """Whether what was done before a call changes the gradients that the program has."""
        by = [place.read(arguments, lifted) for place in self.by]
        if any(map(hooks_on, by)):
            return True
        behind = [place.read(arguments, lifted) for place in self.behind]
        return any(map(_grad_fn, behind)) and led_by(behind, by) is not None


def has_hooks(tensor: torch.Tensor) -> bool:
    """Whether there are hooks on a tensor that change the gradient by it."""
    return bool(hooks_on(tensor))


def led_by(behind: Sequence[torch.Tensor], by: Sequence[torch.Tensor]) -> tuple[int, int] | None:
    """Which of some tensors was made of which of the others; None if none was."""
    nodes = {(_grad_fn(x), x.output_nr): place for place, x in enumerate(by) if _grad_fn(x)}
    leaves = {id(x): place for place, x in enumerate(by) if not _grad_fn(x)}
    for place, tensor in enumerate(behind):
        for node, number in edges_behind(tensor):
            leaf = getattr(node, "variable", None)
            found = nodes.get((node, number)) if leaf is None else leaves.get(id(leaf))
            if found is not None:
                return place, found
    return None
