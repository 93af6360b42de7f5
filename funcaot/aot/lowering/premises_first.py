"""What a program takes for granted about values is looked at before it waits for other ranks.

A call leaves a program whose premise fails, and runs another one from its beginning. A collective
that had run by then would run again on this rank, and the others would wait for this rank in the
next one, or take what it sends for that.
"""

from __future__ import annotations

from torch import fx

from funcaot.aot.graph import graphs
from funcaot.aot.tape.collectives import refuse_value_of_ranks

__all__ = ["premises_first"]


def premises_first(module: fx.GraphModule) -> None:
    """Move premises, and what they are computed from, before the first collective of a graph.

    No premise is about what a collective gives: a capture refuses to read that. What draws random
    numbers or runs on real values keeps its order.

    Args:
        module: Functional graph; its nodes are moved.

    Raises:
        UnsupportedError: A premise has to come after something that waits for a collective.
    """
    nodes = list(module.graph.nodes)
    first = next(filter(graphs.is_collective, nodes), None)
    if first is None:
        return
    after = nodes[nodes.index(first) :]
    premises = list(filter(graphs.is_premise, after))
    if not premises:
        return
    moved = _before(premises, after)
    if any(map(graphs.is_collective, moved)):
        raise refuse_value_of_ranks()
    for node in moved:
        first.prepend(node)
    module.recompile()


def _before(premises: list[fx.Node], after: list[fx.Node]) -> list[fx.Node]:
    """The nodes to move, in their order: what premises need, and what can't be overtaken."""
    needed = set(graphs.needed_for(premises))
    while True:
        in_order = [node for node in after if _keeps_its_order(node)]
        last = max((at for at, node in enumerate(in_order) if node in needed), default=-1)
        overtaken = [node for node in in_order[: last + 1] if node not in needed]
        if not overtaken:
            return [node for node in after if node in needed]
        needed |= set(graphs.needed_for(overtaken))


def _keeps_its_order(node: fx.Node) -> bool:
    return graphs.is_random(node) or (graphs.runs_alone(node) and not graphs.is_premise(node))
