"""A differentiable piece of a tape: its outputs as a function of its operands.

A segment is made for the forward, one more for each backward, one for each backward of a
backward, and so on; all live on one tape. Calling a segment runs a compiled graph inside an
``autograd.Function`` whose backward makes the next segment when autograd invokes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import fx

from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors.sizes.ragged import names_size
from funcaot.aot.graph import graphs
from funcaot.aot.graph.functional_graph import FunctionalGraph
from funcaot.aot.graph.graph_checks import NO_ROLES, Roles, is_met
from funcaot.aot.graph.settings import Settings
from funcaot.aot.lowering.executable_cache import Executables
from funcaot.aot.lowering.kept_layouts import free_layouts
from funcaot.aot.segment.partition import Kept, Problem, choose, drawn
from funcaot.aot.signature.sizes import shown_by
from funcaot.aot.subclasses.nodes import is_part
from funcaot.aot.tape.frontier import Demand, frontier, hides_what_is_saved
from funcaot.aot.tape.tape import Tape
from funcaot.errors import GraphError, UnsupportedError


@dataclass(frozen=True, eq=False)
class Operand:
    """One input of a segment.

    Attributes:
        node: The tape's node whose value it is.
        leaf: The tape's leaf that gradients for it are taken with respect to, if any.
        by_value: Whether the graph may read it. An operand that isn't read is only there so
            that autograd has an edge to it: residuals stand in for its value.
        volatile: Whether the caller overwrites it after the call, so it can't be saved as it is.
        private: Whether nobody outside can see it: a residual of the forward.
    """

    node: fx.Node
    leaf: torch.Tensor | None = None
    by_value: bool = True
    volatile: bool = False
    private: bool = False


@dataclass(frozen=True, eq=False)
class Residual:
    """A value that a forward keeps for its backward.

    Attributes:
        node: The tape's node whose value it is.
        operand: Position among the segment's operands, if it is one of them.
        output: Position among the graph's outputs otherwise.
        reason: Why it is kept.
        consumers: Autograd nodes that it is kept for.
    """

    node: fx.Node
    operand: int | None
    output: int | None
    reason: str = "an operand"
    consumers: tuple[str, ...] = ()

    def of(self, operands: Sequence[Any], outputs: Sequence[Any]) -> Any:
        """The value among those of one call."""
        return outputs[self.output or 0] if self.operand is None else operands[self.operand]


@dataclass(frozen=True, eq=False)
class Form:
    """One way to run a segment: its graph, and what it keeps.

    Attributes:
        graph: From the operands that are given by value to outputs and residuals.
        positions: Positions of those operands.
        residuals: What is kept, in the order in which it is saved.
    """

    graph: FunctionalGraph
    positions: tuple[int, ...]
    residuals: tuple[Residual, ...]


@dataclass(frozen=True, eq=False)
class Place:
    """Where an output of a segment comes from: the graph's output or an operand as it is."""

    output: int | None = None
    operand: int | None = None


class Shown(NamedTuple):
    """A tensor of the caller's on which outputs of the graph may depend.

    Attributes:
        tensor: The tape's tensor.
        own: Position of the output of the graph that it is, if it isn't made of one.
        output: Position of the function's output that it is; None for new data of an input, and
            for derivatives.
        input: Position of that input.
    """

    tensor: torch.Tensor
    own: int | None
    output: int | None
    input: int = 0


class Link(NamedTuple):
    """An output of the graph that depends on what the caller gets besides.

    Attributes:
        output: Its position among the graph's outputs.
        on: Positions in the segment's ``shown`` of what it depends on, but for what it does
            through others of these.
        behind: For each of these, itself and what it depends on, as bits.
        places: Where it is among the segment's outputs, or among the function's.
    """

    output: int
    on: tuple[int, ...]
    behind: tuple[int, ...]
    places: tuple[int, ...]


class Links(NamedTuple):
    """Outputs that depend on others, in an order in which each comes after what it depends on.

    Attributes:
        results: Those that depend on other outputs of the graph, as these are.
        made: Those that depend on new data of inputs or on views too, and on nothing else.
        outputs: Those that the function returns and that depend on something made of an output.
        rest: All others.
    """

    results: tuple[Link, ...] = ()
    made: tuple[Link, ...] = ()
    outputs: tuple[Link, ...] = ()
    rest: tuple[Link, ...] = ()


NO_LINKS = Links()


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
        start: The first node traced for it; None if the tape began with it.
        drawn: Nodes that ran in an earlier segment and must not run again.
        executables: What was compiled for segments like this one.
        seen: For each operand, the tape's tensor that the program worked with; empty for
            derivatives.
        roles: What becomes of outputs; of gradients and tangents that's left to autograd.
        shown: What the caller gets; of a derivative, first what it has of the calls before.
        links: Those outputs.
        turns: Inputs that get new data; each comes after those that it depends on.
        noted: Positions in ``shown`` of what nodes are told of: derivatives may depend on it.
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
    start: fx.Node | None = None
    drawn: frozenset[fx.Node] = frozenset()
    executables: Executables | None = None
    seen: tuple[torch.Tensor | None, ...] = ()
    roles: Roles = NO_ROLES
    shown: tuple[Shown, ...] = ()
    links: Links = NO_LINKS
    turns: tuple[int, ...] = ()
    noted: tuple[int, ...] = ()
    places: tuple[Place, ...] = field(init=False)
    output_nodes: tuple[fx.Node, ...] = field(init=False)
    graph_outputs: tuple[torch.Tensor, ...] = field(init=False)
    backward_executables: Executables = field(init=False)

    def __post_init__(self) -> None:
        """Find out which outputs the graph makes and which are operands as they came."""
        given = {
            operand.node: i
            for i, operand in enumerate(self.operands)
            # What the compiler laid out isn't what the caller gets.
            if operand.by_value and not (operand.private and self.leaves_layouts)
        }
        made: dict[fx.Node, int] = {}
        tensors: list[torch.Tensor] = []
        places: list[Place] = []
        for tensor, node in zip(self.outputs, self._nodes_of_outputs(given), strict=True):
            if node in given and self._is_as_it_came(tensor, self.operands[given[node]]):
                places.append(Place(operand=given[node]))
                continue
            if node not in made:
                made[node] = len(tensors)
                tensors.append(tensor)
            elif tensor.requires_grad and not tensors[made[node]].requires_grad:
                tensors[made[node]] = tensor
            places.append(Place(output=made[node]))
        self.places = tuple(places)
        self.output_nodes = tuple(dict.fromkeys((*made, *self.carried)))
        self.graph_outputs = tuple(tensors)
        self._forms: dict[bool, Form] = {}
        self.backward_executables = Executables(self.settings.name)

    def _is_as_it_came(self, tensor: torch.Tensor, operand: Operand) -> bool:
        """Whether an operand may be returned in place of an output that has its value.

        What a forward kept comes to its backward as a constant, whatever it depends on.
        """
        constant = self.order > 0 and operand.leaf is None and tensor.requires_grad
        return not (operand.volatile or constant)

    def _nodes_of_outputs(self, given: Container[fx.Node]) -> list[fx.Node]:
        """What each output is: the node itself where autograd only read it, so that it is kept.

        The caller's write to a result that autograd saved is noticed if the result itself is kept.
        """
        nodes = [self._recorded(node) for node in self.tape.nodes_of(self.outputs)]
        plain = [graphs.without_aliases(node) for node in nodes]
        times = Counter(plain)
        return [
            itself if tensor.requires_grad and times[itself] == 1 and itself not in given else node
            for tensor, node, itself in zip(self.outputs, nodes, plain, strict=True)
        ]

    def _recorded(self, node: fx.Node | None) -> fx.Node:
        if node is None:
            raise RuntimeError(f"{self.name}: an output isn't on the tape")
        return node

    @property
    def leaves_layouts(self) -> bool:
        """Whether the compiler chooses how what is kept lies in memory."""
        return self.settings.compiler.chooses_layouts and self.tape.sizes is None

    def node_of(self, tensor: torch.Tensor) -> fx.Node:
        """The tape's node of one of the tape's tensors."""
        node = self.tape.node_of(tensor)
        if node is None:
            raise RuntimeError(f"{self.name}: a tensor isn't on the tape")
        return node

    @property
    def is_told(self) -> bool:
        """Whether nodes of its calls are told of what the caller gets."""
        return bool(self.noted) or any(self.links)

    @property
    def is_differentiable(self) -> bool:
        """Whether something can be differentiated with respect to an operand."""
        return any(output.requires_grad for output in self.graph_outputs)

    @cached_property
    def draws(self) -> bool:
        """Whether running the graph twice may give different values."""
        nodes = graphs.closure(self.output_nodes, [operand.node for operand in self.operands])
        return any(graphs.has_effect(node) or graphs.is_function_node(node) for node in nodes)

    def form(self, *, keeping: bool) -> Form:
        """The segment's graph, with residuals for a backward or without.

        Args:
            keeping: Whether to keep what the frontier asks for. Otherwise a backward computes
                again from the operands, which is right only if nothing is drawn at random.
        """
        if keeping not in self._forms:
            with self.settings.lock, StateKept():
                if keeping not in self._forms:
                    self._forms[keeping] = self._make_form(keeping)
        return self._forms[keeping]

    @cached_property
    def calls_functions(self) -> bool:
        """Whether users' Functions are on its tape, whose rules a derivative may run."""
        return any(graphs.is_function_node(node) for node in self.tape.graph.nodes)

    @cached_property
    def drawn_after(self) -> frozenset[fx.Node]:
        """Nodes that must not run again once this segment has run."""
        nodes = graphs.closure(self.output_nodes, [operand.node for operand in self.operands])
        return self.drawn | drawn(nodes) | drawn(self.effect_nodes)

    @cached_property
    def demands(self) -> tuple[Demand, ...]:
        """What autograd saved while the segment was traced."""
        ends = {operand.node for operand in self.operands if operand.by_value}
        return frontier(self.tape, self.graph_outputs, ends.union(self.output_nodes))

    @cached_property
    def unchecked(self) -> frozenset[fx.Node]:
        """What only attributes of Functions hold: its versions don't matter.

        That is operands, and what a Function on real values made or met somewhere. Nothing else
        is in anybody's hands.
        """
        operands = {operand.node for operand in self.operands}
        loose = {
            demand.node
            for demand in self.demands
            if not demand.checked
            and (graphs.without_aliases(demand.node) in operands or is_met(demand.node))
        }
        if not loose:
            return frozenset()
        checked: set[fx.Node] = set()
        for demand in self.demands:
            node: fx.Node | None = demand.node if demand.checked else None
            while node is not None and node not in checked:
                checked.add(node)
                node = graphs.view_source(node)
        return frozenset(graphs.without_aliases(node) for node in loose) - checked

    def _make_form(self, keeping: bool) -> Form:
        index = {op.node: i for i, op in enumerate(self.operands) if op.by_value}
        if keeping:
            kept = self._choose(tuple(index))
        else:
            kept = tuple(Kept(node, "an operand", (), shared=True) for node in index)
        residuals: list[Residual] = []
        extra: list[fx.Node] = []
        visible = self.output_nodes[: len(self.graph_outputs)]
        roots = set().union(*map(graphs.memory_roots, visible))
        # The caller may overwrite what it was given without a residual's knowing.
        copied = [
            index
            for index, node in enumerate(self.output_nodes)
            if index >= len(visible) and self._must_be_copied(node, roots)
        ]
        for item in kept:
            position, output = index.get(item.node), None
            if position is None or not item.shared:
                position = None
                if item.node in self.output_nodes and item.shared:
                    output = self.output_nodes.index(item.node)
                else:
                    output = len(self.output_nodes) + len(extra)
                    extra.append(item.node)
                    if self._must_be_copied(item.node, roots):
                        copied.append(output)
            residuals.append(Residual(item.node, position, output, item.reason, item.consumers))
        carrier = self._size_carrier([item.node for item in kept]) if keeping else None
        if carrier is not None:
            output = len(self.output_nodes) + len(extra)
            residuals.append(Residual(carrier, None, output, "sizes that nothing else shows"))
            extra.append(carrier)
        module = self._extract(tuple(index), [*self.output_nodes, *extra])
        kind = "inference" if not keeping and self.kind == "forward" else self.kind
        module = graphs.with_own_outputs(module, copied, detached=kind == "inference")
        places: tuple[int, ...] = ()
        if self.leaves_layouts:
            made = range(len(self.output_nodes), len(self.output_nodes) + len(extra))
            free_layouts(module, set(made) - set(copied))
            private = enumerate(self.operands[position].private for position in index.values())
            places = tuple(place for place, is_private in private if is_private)
        hidden = range(len(self.graph_outputs), len(self.output_nodes) + len(extra))
        roles = replace(self._roles(), private=frozenset(hidden))
        graph = FunctionalGraph(module, kind, self.name, roles, places)
        return Form(graph, tuple(index.values()), tuple(residuals))

    def _must_be_copied(self, node: fx.Node, roots: set[fx.Node]) -> bool:
        """Whether what is kept is in the caller's hands otherwise.

        A copy of a jagged tensor's offsets would be the offsets of other sizes.
        """
        if is_part(node):
            return not names_size(graphs.value_of(node))
        return not roots.isdisjoint(graphs.memory_roots(node))

    def _roles(self) -> Roles:
        """The roles of the graph's outputs, but for what a Function returned of its operands.

        That is in the caller's memory in eager too, and only the Function knows its derivative.
        """
        roles = self.roles.at([place.output for place in self.places])
        returned = map(graphs.is_in_memory_of_operand, self.output_nodes)
        return roles.without([position for position, found in enumerate(returned) if found])

    def _size_carrier(self, kept: Sequence[fx.Node]) -> fx.Node | None:
        """A node to keep for its shape alone: open sizes that are no size of what is kept."""
        sizes = self.tape.sizes
        if sizes is None:
            return None
        shown = shown_by(kept, sizes)
        missing = [symbol for symbol in sizes.symbols if symbol not in shown]
        return self.tape.carrier(missing) if missing else None

    def _choose(self, operands: tuple[fx.Node, ...]) -> tuple[Kept, ...]:
        private = [operand.node for operand in self.operands if operand.private]
        return choose(
            Problem(
                operands,
                frozenset([*private, *self.carried]),
                frozenset(operand.node for operand in self.operands if operand.volatile),
                self.output_nodes,
                self._demands(operands),
                self.settings.policy,
            )
        )

    def _extract(self, available: tuple[fx.Node, ...], wanted: Sequence[fx.Node]) -> fx.GraphModule:
        again = graphs.closure(wanted, available) & self.drawn
        if again:
            names = sorted({str(node.target) for node in again})
            raise UnsupportedError(
                f"A derivative of {self.settings.name} needs a value that its forward didn't "
                f"keep and that can't be computed again: {', '.join(names)}.",
                remedy="save it with ctx.save_for_backward in the Function that uses it.",
            )
        try:
            return graphs.extract(
                self.tape.root,
                available,
                wanted,
                keep_alive=self.effect_nodes,
                since=self.start,
            )
        except GraphError as error:
            if self.kind == "forward":
                raise
            raise UnsupportedError(
                f"A derivative of {self.settings.name} computes with a tensor that the function "
                "made, and that neither autograd saved nor a hook of a tensor holds: what a hook "
                "of an autograd node or of a module, or of saved_tensors_hooks, closes over.",
                remedy="register a hook of the tensor (tensor.register_hook), or compile a "
                "function that runs the backward too.",
            ) from error

    def _demands(self, operands: tuple[fx.Node, ...]) -> tuple[Demand, ...]:
        """What autograd saved; and everything else can be computed from, if some of that hides."""
        demands = self.demands
        if not hides_what_is_saved(self.tape, self.graph_outputs):
            return demands
        needed = graphs.closure(self.output_nodes, operands)
        once = [n for n in needed if graphs.is_random(n) or graphs.is_function_node(n)]
        return (*demands, *(Demand(node, "CopySlices") for node in (*operands, *once)))

    @cached_property
    def first_places(self) -> dict[int, int]:
        """The first place where each output of the graph is among the segment's outputs."""
        places = reversed([*enumerate(self.places)])
        return {place.output: i for i, place in places if place.output is not None}

    def assemble(
        self, operands: Sequence[torch.Tensor | None], made: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor | None, ...]:
        """The segment's outputs from what the graph made and the operands returned as they are."""
        return tuple(
            made[place.output] if place.output is not None else operands[place.operand or 0]
            for place in self.places
        )
