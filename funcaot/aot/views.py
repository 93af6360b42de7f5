"""Replaying views outside of a graph, with ordinary ops, at whatever level the base is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot.aot import graphs

aten = torch.ops.aten


@dataclass(frozen=True)
class ViewStep:
    """One view op: its target, the arguments after the source, and which result if several."""

    target: Any
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    item: int | None = None

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        """Apply the op to its source."""
        result = self.target(source, *self.arguments, **dict(self.keywords))
        return result if self.item is None else result[self.item]


@dataclass(frozen=True)
class View:
    """A chain of view ops.

    Attributes:
        steps: The ops, first to last.
        requires_grad: Whether the result does; if not, the chain runs without recording.
    """

    steps: tuple[ViewStep, ...]
    requires_grad: bool

    def __call__(self, base: torch.Tensor) -> torch.Tensor:
        """Apply the chain."""
        if self.requires_grad or not torch.is_grad_enabled():
            return self._replay(base)
        with torch.no_grad():
            return self._replay(base)

    def _replay(self, base: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            base = step(base)
        return base

    def __str__(self) -> str:
        """``t().slice(0, 1, 3)`` style."""
        return ".".join(
            f"{step.target._schema.name.removeprefix('aten::')}"
            f"({', '.join(map(str, step.arguments))})"
            for step in self.steps
        )


def chain(base: fx.Node, result: fx.Node) -> tuple[ViewStep, ...] | None:
    """The view ops that lead from one node to another, or None if there is no such chain."""
    steps: list[ViewStep] = []
    node = result
    while node is not base:
        item = None
        op = node
        if not graphs.is_view(node) and graphs.view_source(node) is not None:
            item = int(node.args[1])  # type: ignore[arg-type]
            op = node.args[0]  # type: ignore[assignment]
        source = graphs.view_source(op)
        if source is None or any(isinstance(value, fx.Node) for value in op.args[1:]):
            return None
        steps.append(ViewStep(op.target, tuple(op.args[1:]), tuple(op.kwargs.items()), item))
        node = source
    return tuple(reversed(steps))


def strided(tensor: torch.Tensor) -> tuple[ViewStep, ...]:
    """The one step that makes a view of this layout out of whatever shares the storage."""
    layout = (tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())
    return (ViewStep(aten.as_strided.default, layout, ()),)
