"""A graph without side effects, as a segment extracts it and as it goes on to be compiled."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from funcaot.aot.graph.graph_checks import NO_ROLES, Roles


@dataclass(frozen=True, eq=False)
class FunctionalGraph:
    """A graph and what becomes of its inputs and outputs.

    Attributes:
        module: The graph, as extracted from a tape.
        kind: ``"inference"``, ``"forward"`` or ``"backward"``.
        name: Shown by the report.
        roles: What becomes of its outputs, so what they may share memory with.
        kept: Positions of inputs that an earlier graph computed for this one, in any layout.
    """

    module: fx.GraphModule
    kind: str
    name: str
    roles: Roles = NO_ROLES
    kept: tuple[int, ...] = ()
