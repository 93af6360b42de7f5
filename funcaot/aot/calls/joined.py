"""A backward's backward and what it continues, as one graph; ``early`` leaves one to the other.

Note [Joined backwards]: where a loss is computed from outputs and from their gradients, two nodes
have a backward to run: that of the gradients' program, which goes back through it and through the
forward, and the forward's own, which goes back through the forward once more. Eager adds what
arrives at each op first and goes back once. So the first leaves what it was given to the second,
which differentiates both together: on the tape that is one derivative of all these outputs.

The first has an edge to the second, by a tensor without elements. So the second runs after it, in
the same backward, and hands out the gradients of both. Only operands of both may need one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from funcaot.aot.segment.segment import Form, Operand, Residual, Segment

if TYPE_CHECKING:
    from funcaot.aot.calls.call import SegmentFunction, SegmentFunctions
    from funcaot.aot.calls.derivatives import Derivatives


@dataclass(frozen=True, eq=False)
class Source:
    """The node of a forward whose gradients are computed by a program that may leave it work.

    Attributes:
        owner: What it ran.
        ctx: The node.
        link: A result of it without elements, which makes an edge to it.
    """

    owner: SegmentFunction
    ctx: Any
    link: torch.Tensor


@dataclass(frozen=True, eq=False)
class Left:
    """What one node has left to another.

    Attributes:
        owner: What the node ran.
        ctx: The node.
        saved: What it had saved.
        tangents: One for each of its outputs.
    """

    owner: SegmentFunction
    ctx: Any
    saved: tuple[torch.Tensor, ...]
    tangents: tuple[torch.Tensor | None, ...]


class _Now(threading.local):
    source: Source | None = None


_now = _Now()


@contextlib.contextmanager
def deriving(source: Source | None) -> Iterator[None]:
    """The program of gradients that is called in this block is one of this node's."""
    before, _now.source = _now.source, source
    try:
        yield
    finally:
        _now.source = before


def source_of(owner: SegmentFunction) -> Source | None:
    """Whose gradients a program computes that is called now; it is told to one program."""
    source, _now.source = _now.source, None
    if source is None or owner.segment.order != 1 or source.owner.segment.order:
        return None
    return source if source.owner.segment.tape is owner.segment.tape else None


class Joined:
    """The outputs of a forward and those of its backward, as one segment to be differentiated.

    Attributes:
        segment: It begins with the operands of the forward.
        form: What both have kept.
        derivatives: Its backwards.
    """

    def __init__(self, first: SegmentFunction, second: SegmentFunction) -> None:
        """Nothing is traced yet.

        Args:
            first: The forward.
            second: What computed its gradients.
        """
        self._first, self._second = first.segment, second.segment
        known = {operand.node for operand in self._first.operands}
        known |= {residual.node for residual in first.form.residuals}
        # What arrived at the backward.
        own = [operand for operand in self._second.operands if operand.node not in known]
        self.segment = _segment((*self._first.operands, *own), self._first, self._second)
        kept = {residual.node for residual in first.form.residuals}
        self._positions = tuple(
            index
            for index, residual in enumerate(second.form.residuals)
            if residual.node not in kept
        )
        moved = [
            self._moved(second.form.residuals[index], number)
            for number, index in enumerate(self._positions)
        ]
        self.form: Form = replace(first.form, residuals=(*first.form.residuals, *moved))
        self.derivatives: Derivatives[SegmentFunctions] = second.derivatives.with_more(
            self.segment, self.form
        )

    @property
    def fits(self) -> bool:
        """Whether its outputs are those of both, each by itself."""
        given = (*self._first.graph_outputs, *self._second.graph_outputs)
        made = self.segment.graph_outputs
        same = len(given) == len(made) and all(map(lambda a, b: a is b, given, made))
        return same and len(self.segment.output_nodes) == len(made)

    def _moved(self, residual: Residual, number: int) -> Residual:
        """What the backward kept, by its place here."""
        nodes = [operand.node for operand in self.segment.operands]
        made, own = self.segment.output_nodes, self._second.output_nodes
        if residual.operand is not None:
            seen = self._second.operands[residual.operand]
            if residual.node in nodes and not seen.private:
                return replace(residual, operand=nodes.index(residual.node), output=None)
        elif residual.output is not None and residual.output < len(own):
            return replace(residual, output=made.index(residual.node))
        return replace(residual, operand=None, output=len(made) + number)

    def values(self, saved: Sequence[torch.Tensor], left: Left) -> list[torch.Tensor]:
        """What both have kept in one call."""
        return [*saved, *[left.saved[index] for index in self._positions]]

    def tangents(
        self, tangents: Sequence[torch.Tensor | None], left: Left
    ) -> list[torch.Tensor | None]:
        """What has arrived at both."""
        own = left.tangents[: len(self._second.graph_outputs)]
        return [*tangents[: len(self._first.graph_outputs)], *own]


def _segment(operands: tuple[Operand, ...], first: Segment, second: Segment) -> Segment:
    return Segment(
        first.tape,
        operands,
        (*first.graph_outputs, *second.graph_outputs),
        first.settings,
        second.name,
        order=second.order,
        kind="backward",
        drawn=first.drawn_after | second.drawn_after,
    )


def separately(
    owner: SegmentFunction, gradients: Sequence[Any], left: Left
) -> tuple[torch.Tensor | None, ...]:
    """The gradients of a forward's operands, and what was left to it, each by its own program."""
    found = list(gradients)
    nodes = {operand.node: index for index, operand in enumerate(owner.segment.operands)}
    others = left.owner.backward_of(left.ctx, left.saved, left.tangents)
    for operand, other in zip(left.owner.segment.operands, others, strict=False):
        if other is not None:
            index = nodes[operand.node]
            found[index] = other if found[index] is None else found[index] + other
    return tuple(found)
