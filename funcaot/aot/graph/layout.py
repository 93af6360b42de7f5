"""Layouts that a compiled graph was made for, and giving an operand the layout that is expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot.aot.graph.tensor_spec import may_overlap
from funcaot.errors import GraphError

Run = Callable[[list[Any]], Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Shape and strides of one operand."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's elements are where the layout says; strides of size 1 don't matter."""
        return tensor.stride() == self.stride or all(
            given == wanted or size <= 1
            for size, given, wanted in zip(self.shape, tensor.stride(), self.stride, strict=True)
        )


def layouts_of(examples: Sequence[torch.Tensor]) -> tuple[Layout, ...] | None:
    """The layouts of a graph's example inputs; None if some size isn't a plain number."""
    found = []
    for example in examples:
        if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
            return None
        if not all(type(number) is int for number in (*example.shape, *example.stride())):
            return None
        found.append(Layout(tuple(example.shape), tuple(example.stride())))
    return tuple(found)


def checking(run: Run, layouts: Sequence[Layout], name: str) -> Run:
    """A callable that gives its operands the layouts that a compiled graph trusts them to have.

    The compiled code reads memory by these numbers and doesn't look at the tensors. Signatures see
    to it that arguments have them; what was kept for a backward may come back from saved-tensor
    hooks with the same values and other strides.

    Args:
        run: What the compiler made.
        layouts: One per operand.
        name: The graph, for messages.
    """

    def run_checked(operands: list[Any]) -> Sequence[Any]:
        for index, (operand, layout) in enumerate(zip(operands, layouts, strict=True)):
            if tuple(operand.shape) != layout.shape:
                raise GraphError(
                    f"Operand {index} of {name} has another shape than the graph was compiled for.",
                    expected=str(list(layout.shape)),
                    got=str(list(operand.shape)),
                    remedy="return from saved-tensor hooks what was packed; otherwise please "
                    "report this with the function that was compiled.",
                )
            if not layout.fits(operand):
                operands[index] = restrided(operand, layout)
        return run(operands)

    return run_checked


class Restriding:
    """A callable that first copies some operands to the layout that it was made for.

    Attributes:
        run: What was made for other layouts.
        changes: The positions of operands, each with the layout that is wanted.
    """

    def __init__(self, run: Run, changes: Sequence[tuple[int, Layout]]) -> None:
        """Wrap what was made."""
        self.run = run
        self.changes = tuple(changes)

    def __call__(self, operands: list[Any]) -> Sequence[Any]:
        """Run it on copies."""
        for index, layout in self.changes:
            operands[index] = restrided(operands[index], layout)
        return self.run(operands)


def restrided(operand: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A copy with the given strides, by which several equal elements may lie in one place."""
    fresh = torch.empty_strided(
        layout.shape, layout.stride, dtype=operand.dtype, device=operand.device
    )
    place = fresh
    for dim, (size, step) in enumerate(zip(layout.shape, layout.stride, strict=True)):
        if step == 0 and size > 1:
            operand, place = operand.narrow(dim, 0, 1), place.narrow(dim, 0, 1)
    if may_overlap(place.shape, place.stride()):
        index = torch.zeros((), dtype=torch.int64, device=operand.device)
        for size, step in zip(place.shape, place.stride(), strict=True):
            index = index.unsqueeze(-1) + torch.arange(size, device=operand.device) * step
        last = int(index.max()) + 1
        fresh.as_strided((last,), (1,)).index_put_((index,), operand)
    else:
        place.copy_(operand)
    return fresh
