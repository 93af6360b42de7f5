"""A differentiable piece of a tape: its outputs as a function of its operands.

A segment is made for the forward, one more for each backward, one for each backward of a
backward, and so on; all live on one tape. Calling a segment runs a compiled graph inside an
``autograd.Function`` whose backward makes the next segment when autograd invokes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import fx

from funcaot.aot import graphs
from funcaot.aot.frontier import frontier
from funcaot.aot.partition import kept_nodes
from funcaot.aot.program import GraphProgram, Settings
from funcaot.aot.tape import Tape


@dataclass(frozen=True, eq=False)
class Operand:
    """One input of a segment.

    Attributes:
        node: The tape's node whose value it is.
        leaf: The tape's leaf that gradients for it are taken with respect to, if any.
        by_value: Whether the graph may read it. An operand that isn't read is only there so
            that autograd has an edge to it: residuals stand in for its value.
        volatile: Whether the caller overwrites it after the call, so it can't be saved as it is.
    """

    node: fx.Node
    leaf: torch.Tensor | None = None
    by_value: bool = True
    volatile: bool = False


@dataclass(frozen=True, eq=False)
class Residual:
    """A value that a forward keeps for its backward.

    Attributes:
        node: The tape's node whose value it is.
        operand: Position among the segment's operands, if it is one of them.
        output: Position among the graph's outputs otherwise.
    """

    node: fx.Node
    operand: int | None
    output: int | None


@dataclass(frozen=True, eq=False)
class Form:
    """One way to run a segment: its graph, and what it keeps.

    Attributes:
        program: The graph, from the operands that are given by value to outputs and residuals.
        positions: Positions of those operands.
        residuals: What is kept, in the order in which it is saved.
    """

    program: GraphProgram
    positions: tuple[int, ...]
    residuals: tuple[Residual, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """Where an output of a segment comes from: the graph's output or an operand as it is."""

    output: int | None = None
    operand: int | None = None


@dataclass(eq=False)
class Segment:
    """Outputs on a tape as a function of operands on it.

    Attributes:
        tape: The tape.
        operands: What goes in.
        outputs: The tape's tensors that come out.
        settings: Shared by everything derived from one compiled function.
        name: Shown by the report and by ``grad_fn``.
        order: 0 for the forward, 1 for a backward, and so on.
        kind: ``"forward"`` or ``"backward"``, for the compiler.
        effect_nodes: Nodes that run even if nobody uses their results.
        carried: Nodes whose values the graph gives out too, though nothing differentiates them:
            residuals of the segment that this one was derived from.
    """

    tape: Tape
    operands: tuple[Operand, ...]
    outputs: tuple[torch.Tensor, ...]
    settings: Settings
    name: str
    order: int = 0
    kind: str = "forward"
    effect_nodes: tuple[fx.Node, ...] = ()
    carried: tuple[fx.Node, ...] = ()
    places: tuple[Place, ...] = field(init=False)
    output_nodes: tuple[fx.Node, ...] = field(init=False)
    graph_outputs: tuple[torch.Tensor, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Find out which outputs the graph makes and which are operands as they came."""
        given = {operand.node: i for i, operand in enumerate(self.operands) if operand.by_value}
        made: dict[fx.Node, int] = {}
        tensors: list[torch.Tensor] = []
        places: list[Place] = []
        for tensor in self.outputs:
            node = self.node_of(tensor)
            if node in given and not self.operands[given[node]].volatile:
                places.append(Place(operand=given[node]))
                continue
            if node not in made:
                made[node] = len(tensors)
                tensors.append(tensor)
            places.append(Place(output=made[node]))
        self.places = tuple(places)
        self.output_nodes = tuple(dict.fromkeys((*made, *self.carried)))
        self.graph_outputs = tuple(tensors)
        self._forms: dict[bool, Form] = {}

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The tape's node of one of the tape's tensors."""
        node = self.tape.node_of(tensor)
        if node is None:
            raise RuntimeError(f"{self.name}: a tensor isn't on the tape")
        return node

    @cached_property
    def draws(self) -> bool:
        """Whether running the graph twice may give different values."""
        nodes = graphs.closure(self.output_nodes, [operand.node for operand in self.operands])
        return any(graphs.is_random(node) or graphs.is_function_node(node) for node in nodes)

    def form(self, *, keeping: bool) -> Form:
        """The segment's graph, with residuals for a backward or without.

        Args:
            keeping: Whether to keep what the frontier asks for. Otherwise a backward computes
                again from the operands, which is right only if nothing is drawn at random.
        """
        if keeping not in self._forms:
            with self.settings.lock:
                if keeping not in self._forms:
                    self._forms[keeping] = self._make_form(keeping)
        return self._forms[keeping]

    @property
    def forms(self) -> tuple[Form, ...]:
        """The forms that exist so far."""
        return tuple(self._forms.values())

    def _make_form(self, keeping: bool) -> Form:
        index = {op.node: i for i, op in enumerate(self.operands) if op.by_value}
        if keeping:
            demands = frontier(self.tape, self.graph_outputs)
            kept = kept_nodes(tuple(index), self.output_nodes, demands)
        else:
            kept = tuple(index)
        residuals: list[Residual] = []
        extra: list[fx.Node] = []
        for node in kept:
            position = index.get(node)
            if position is not None and not (keeping and self.operands[position].volatile):
                residuals.append(Residual(node, position, None))
            elif node in self.output_nodes:
                residuals.append(Residual(node, None, self.output_nodes.index(node)))
            else:
                residuals.append(Residual(node, None, len(self.output_nodes) + len(extra)))
                extra.append(node)
        module = graphs.extract(
            self.tape.root,
            tuple(index),
            [*self.output_nodes, *extra],
            keep_alive=self.effect_nodes,
        )
        kind = "inference" if not keeping and self.kind == "forward" else self.kind
        program = GraphProgram(graphs.with_own_outputs(module), kind, self.name, self.settings)
        return Form(program, tuple(index.values()), tuple(residuals))

    def assemble(
        self, operands: Sequence[torch.Tensor | None], made: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """The segment's outputs from what the graph made and the operands returned as they are."""
        return tuple(
            made[place.output] if place.output is not None else operands[place.operand or 0]
            for place in self.places
        )
