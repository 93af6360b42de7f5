"""What the graphs of a compiled function send to other ranks; ``Report.communication`` has it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot._torch.distributed.collectives import group_in, place_in
from funcaot.aot.calls.call import SegmentFunctions
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.graph import graphs

# How often what a collective is about passes a rank's wire, where ranks stand in a ring: for n
# ranks, this times (n - 1) / n.
_PASSES = {"all_reduce": 2}


@dataclass(frozen=True)
class Collective:
    """A collective that a graph runs.

    Attributes:
        op: ``"all_gather_into_tensor"`` and so on, the name of the functional op.
        group: The name of the group of ranks.
        ranks: How many these were.
        given: Bytes that each rank gives to it.
        received: Bytes of its result.

    Example:
        >>> from funcaot.report.communication import Collective
        >>> gather = Collective("all_gather_into_tensor", "0", ranks=2, given=400, received=800)
        >>> gather.sent(), gather.sent(ranks=8)
        (400, 700)
    """

    op: str
    group: str
    ranks: int
    given: int
    received: int

    def sent(self, ranks: int | None = None) -> int:
        """Bytes that each rank sends, if ranks stand in a ring.

        Args:
            ranks: For so many of them, with what is gathered, reduced or scattered as large as it
                is now; those that there were by default.
        """
        count = self.ranks if ranks is None else ranks
        whole = max(self.given, self.received)
        passes = next((n for name, n in _PASSES.items() if self.op.startswith(name)), 1)
        return passes * whole * (count - 1) // count


@dataclass(frozen=True)
class Communication:
    """The collectives of one graph that has run.

    Attributes:
        graph: Its name.
        order: 0 for a forward, 1 for its backward, 2 for the backward of that, and so on.
        collectives: In the order in which they run.

    Example:
        >>> from funcaot.report.communication import Collective, Communication
        >>> reduced = Collective("all_reduce", "0", ranks=2, given=400, received=400)
        >>> print(Communication("step", 1, (reduced, reduced)))
        step (order 1): 2 all_reduce, 800 bytes sent by each of 2 ranks
    """

    graph: str
    order: int
    collectives: tuple[Collective, ...]

    def sent(self, ranks: int | None = None) -> int:
        """Bytes that each rank sends in one call (see `Collective.sent`)."""
        return sum(each.sent(ranks) for each in self.collectives)

    def __str__(self) -> str:
        """``f_backward (order 1): 2 all_gather_into_tensor, 800 bytes sent by each of 2 ranks``."""
        names = [each.op for each in self.collectives]
        counted = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names))
        ranks = max(each.ranks for each in self.collectives)
        sent = f"{self.sent():,} bytes sent by each of {ranks} ranks"
        return f"{self.graph} (order {self.order}): {counted}, {sent}"


def communication_of(functions: SegmentFunctions) -> tuple[Communication, ...]:
    """The collectives of every graph of a segment and of its derivatives that has run."""
    return tuple(_communication(functions, 0))


def _communication(functions: SegmentFunctions, order: int) -> Iterator[Communication]:
    for made in functions.made:
        found = tuple(_collectives(made.program))
        if found:
            yield Communication(made.program.name, order, found)
    for made in functions.made:
        for _, following in made.derivatives.traced:
            yield from _communication(following, order + 1)


def _collectives(program: GraphProgram) -> Iterator[Collective]:
    if not program.is_compiled:
        return
    for node in program.lowered.module.graph.nodes:
        group = group_in(node.target, node.args) if graphs.is_collective(node) else None
        if group is None:
            continue
        place = place_in(group)
        yield Collective(
            op=node.target._schema.name.partition("::")[2],
            group=group,
            ranks=_ranks(node, place),
            given=_bytes(node.all_input_nodes),
            received=_bytes([node]),
        )


def _ranks(node: fx.Node, place: tuple[int, int] | None) -> int:
    """How many ranks: as the op says, or else as the group is now."""
    for argument, value in zip(node.target._schema.arguments, node.args, strict=False):  # type: ignore[union-attr]
        if argument.name == "group_size" and isinstance(value, int):
            return value
    return 1 if place is None else place[0]


def _bytes(nodes: Iterable[fx.Node]) -> int:
    values: list[Any] = []
    for node in nodes:
        value = graphs.value_of(node)
        values += value if isinstance(value, list | tuple) else [value]
    return sum(graphs.bytes_of(value) for value in values if isinstance(value, torch.Tensor))
