"""Results of graphs and proofs about them: no op writes, and none shares memory with others."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.graph import graphs
from funcaot.errors import GraphError

_REMEDY = "please report this with the function that was compiled."
_COPY = torch.ops.aten.copy_.default


@dataclass(frozen=True)
class Roles:
    """What becomes of a graph's outputs, by position.

    The others are gradients and tangents, whose memory is as in autograd.

    Attributes:
        shown: The function's caller gets them.
        copied: They are copied into tensors of the caller, and nobody gets them.
        private: They are kept for a backward, and nobody sees them.
    """

    shown: frozenset[int] = frozenset()
    copied: frozenset[int] = frozenset()
    private: frozenset[int] = frozenset()

    def without(self, places: Collection[int]) -> Roles:
        """The roles but for some places, of which nothing is said."""
        return Roles(
            self.shown.difference(places),
            self.copied.difference(places),
            self.private.difference(places),
        )

    def at(self, places: Sequence[int | None]) -> Roles:
        """The roles of a graph's outputs from those of values and where each is among them."""
        shown = {places[position] for position in self.shown}
        copied = {places[position] for position in self.copied} - shown
        return Roles(
            frozenset(place for place in shown if place is not None),
            frozenset(place for place in copied if place is not None),
        )


NO_ROLES = Roles()


def is_met(node: Any) -> bool:
    """Whether a value is one that an opaque Function returned: it may have been there before."""
    return (
        isinstance(node, fx.Node)
        and node.target is graphs.GETITEM
        and graphs.is_opaque(node.args[0])
    )


def check_functional(module: fx.GraphModule, what: str) -> None:
    """Prove that no op of a graph mutates its arguments.

    Raises:
        GraphError: If one does; the message names it and shows the graph.
    """
    for node in module.graph.nodes:
        if _writes(node):
            raise GraphError(
                f"The {what} isn't functional: {node.name!r} ({node.target}) mutates an argument."
                f"\n{graphs.shown(module.graph)}",
                remedy=_REMEDY,
            )


def check_writes_last(module: fx.GraphModule, what: str) -> None:
    """Prove that a graph that writes does so by copies into its inputs, after all else.

    Raises:
        GraphError: If something else writes or follows; the message names it and shows the graph.
    """
    written: set[Any] = set()
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        target = node.args[0] if node.target is _COPY else None
        once = isinstance(target, fx.Node) and target.op == "placeholder" and target not in written
        if once:
            written.add(target)
        elif _writes(node) or (written and node.op == "call_function"):
            raise GraphError(
                f"The {what} writes before it has computed everything: {node.name!r} "
                f"({node.target}).\n{graphs.shown(module.graph)}",
                remedy=_REMEDY,
            )


def check_results_apart(module: fx.GraphModule, roles: Roles, what: str) -> None:
    """Prove that no result of a graph shares memory that somebody could tell.

    Those that are shown share none with an input, a constant or another one that is shown, those
    that are copied none with an input or a constant. What shares memory for the caller is made by
    the epilogue, outside of the graph. One pass over the graph.

    Raises:
        GraphError: If one does; the message names it and shows the graph.
    """
    outputs = _outputs(module)
    roots = _roots(module)
    seen: dict[Any, fx.Node] = {}
    for position in (*sorted(roles.copied - roles.shown), *sorted(roles.shown)):
        value = outputs[position]
        if not isinstance(value, fx.Node):
            continue
        root = roots[value]
        other = root if root.op in ("placeholder", "get_attr") else seen.get(root)
        if other is not None:
            raise GraphError(
                f"The {what} returns {value.name!r}, which shares memory with {other.name!r}.\n"
                f"{graphs.shown(module.graph)}",
                remedy=_REMEDY,
            )
        if position in roles.shown:
            seen[root] = value


def _roots(module: fx.GraphModule) -> dict[fx.Node, fx.Node]:
    """For each node the one whose memory its result lives in."""
    roots: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        source = graphs.view_source(node)
        roots[node] = node if source is None else roots[source]
    return roots


def _outputs(module: fx.GraphModule) -> Sequence[Any]:
    return next(iter(reversed(module.graph.nodes))).args[0]  # type: ignore[return-value]


def _writes(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and node.target._schema.is_mutable
