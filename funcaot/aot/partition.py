"""Which values of a forward are kept for its backward."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from funcaot.aot import graphs
from funcaot.aot.frontier import Demand


def kept_nodes(
    operands: Sequence[fx.Node], outputs: Sequence[fx.Node], demands: Sequence[Demand]
) -> tuple[fx.Node, ...]:
    """Choose the residuals: what autograd saved, stripped of views that cost nothing to redo.

    Args:
        operands: Inputs of the forward, which are there anyway.
        outputs: Outputs of the forward, which the caller gets anyway.
        demands: The frontier.

    Returns:
        Nodes to keep, each once, in order of demand; some may be operands or outputs.
    """
    wanted = dict.fromkeys(graphs.without_aliases(demand.node) for demand in demands)
    available = {*operands, *outputs, *wanted}
    kept = dict.fromkeys(_storage_owner(node, available) for node in wanted)
    return tuple(node for node in kept if node.op != "get_attr")


def _storage_owner(node: fx.Node, available: set[fx.Node]) -> fx.Node:
    """The farthest view source that is kept or given: a view of it is recomputed for free."""
    best = node
    source = graphs.view_source(node)
    while source is not None:
        if source in available:
            best = source
        source = graphs.view_source(source)
    return best
