"""A backward's graph in parts, each of which finishes some gradients; ``early`` runs them.

Note [Parts of a backward]: a part runs what its gradients need and no part before has run. It also
runs everything that reads the operands that these gradients are for: once the gradient of a
parameter is handed over, a hook may change the parameter, in eager too. Views are made again in
each part; everything else that a later part needs is carried there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import fx

from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.graph import graphs
from funcaot.aot.graph.graph_checks import Roles

if TYPE_CHECKING:
    from funcaot.aot.calls.call import SegmentFunction
    from funcaot.aot.segment.backward import Backward

Group = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Part:
    """One of the graphs that a backward was cut into.

    Attributes:
        program: It; None if its gradients are there already.
        takes: Where its operands are among the values.
        makes: Where its results are put.
        gives: For each operand of the forward whose gradient it finishes, where that is; None if
            there is none.
        done: Values that no later part needs.
    """

    program: GraphProgram | None
    takes: tuple[int, ...]
    makes: tuple[int, ...]
    gives: tuple[int | None, ...]
    done: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Parts:
    """A backward that hands over gradients before it has ended.

    Attributes:
        parts: In the order in which they run.
        positions: Which of the backward's operands the values begin with.
        count: How many values there are.
    """

    parts: tuple[Part, ...]
    positions: tuple[int, ...]
    count: int


def parted(
    owner: SegmentFunction, backward: Backward, runs: SegmentFunction, groups: Sequence[Group]
) -> Parts | None:
    """Cut a backward; None if it has to run as a whole.

    Args:
        owner: Whose backward it is.
        backward: What was traced.
        runs: What runs it, where nobody differentiates it.
        groups: Operands of the owner, in the order in which to hand over their gradients.
    """
    segment = runs.segment
    nodes = runs.program.module.graph.nodes
    if not segment.output_nodes or segment.effect_nodes or segment.tape.wrappers.used:
        return None
    if any(graphs.has_effect(node) or graphs.is_function_node(node) for node in nodes):
        return None
    return _Cut(owner, backward, runs).parts(groups)


class _Cut:
    """Cuts one graph."""

    def __init__(self, owner: SegmentFunction, backward: Backward, runs: SegmentFunction) -> None:
        self._backward, self._runs = backward, runs
        self._graph = runs.form.graph
        self._nodes: list[fx.Node] = list(self._graph.module.graph.nodes)
        inputs = graphs.inputs(self._graph.module)
        self._sizes = [n for n in self._nodes if n.op == "placeholder" and graphs.is_size(n)]
        # Where the values are that placeholders stand for, and those that parts make.
        self._places: dict[fx.Node, int] = {node: place for place, node in enumerate(inputs)}
        by_operand = dict(zip(runs.form.positions, inputs, strict=True))
        self._inputs = by_operand
        self._read = {
            residual.operand: by_operand[position]
            for position, residual in enumerate(owner.form.residuals)
            if residual.operand is not None and position in by_operand
        }

    def parts(self, groups: Sequence[Group]) -> Parts:
        """All of them."""
        given, made = len(self._inputs), {*self._places, *self._sizes}
        wanted = [[self._gradient(index) for index in group] for group in groups]
        runs: list[list[fx.Node]] = []
        for group, gradients in zip(groups, wanted, strict=True):
            asked = [node for node in gradients if node is not None]
            needed = _needed([*asked, *self._readers(group)], made)
            runs.append([node for node in self._nodes if node in needed])
            made.update(node for node in needed if not _is_made_again(node))
        parts: list[Part] = []
        for index, group in enumerate(wanted):
            later = [node for nodes in runs[index + 1 :] for node in nodes]
            awaited = {source for node in later for source in node.all_input_nodes}
            awaited.update(node for nodes in wanted[index + 1 :] for node in nodes if node)
            parts.append(self._part(f"{index + 1} of {len(wanted)}", runs[index], group, awaited))
        handed = [each for part in parts for each in _handing_over(part)]
        freed = _freeing(handed, given if self._sizes else 0)
        return Parts(freed, tuple(self._runs.form.positions), len(self._places))

    def _gradient(self, index: int) -> fx.Node | None:
        """What of the graph is the gradient of an operand; an input, where it is that."""
        target = self._backward.targets[index]
        if target is None:
            return None
        place = self._runs.segment.places[target]
        if place.output is None:
            return self._inputs[place.operand or 0]
        return self._nodes[-1].args[0][place.output]  # type: ignore[index,return-value]

    def _readers(self, group: Group) -> list[fx.Node]:
        """What reads the operands of a group, or views of them."""
        found: list[fx.Node] = []
        pending = [self._read[index] for index in group if index in self._read]
        while pending:
            for user in pending.pop().users:
                if _is_made_again(user):
                    pending.append(user)
                elif user.op != "output":
                    found.append(user)
        return found

    def _part(
        self,
        which: str,
        nodes: list[fx.Node],
        gradients: list[fx.Node | None],
        awaited: set[fx.Node],
    ) -> Part:
        """The part of some nodes; what is awaited is for those after it."""
        inside = set(nodes)
        carried = [n for n in nodes if n in awaited and not _is_made_again(n) and _is_tensor(n)]
        own = [n for n in dict.fromkeys(gradients) if n in inside and n not in carried]
        if not carried and not own:
            return Part(None, (), (), self._given(gradients))
        sources = {source for node in nodes for source in node.all_input_nodes}
        # Of operands that it doesn't use it only sees the sizes.
        takes = [n for n in self._places if n in sources or (self._sizes and n.op == "placeholder")]
        results = [*own, *carried]
        shared = {graphs.view_root(n) for n in carried} | ({*self._places} if awaited else set())
        module = self._module([*takes, *self._sizes], nodes, results, shared)
        private = frozenset(range(len(own), len(results)))
        kept = {self._places[node] for node in self._kept()}
        graph = replace(
            self._graph,
            module=module,
            name=f"{self._graph.name}, part {which}",
            roles=Roles(private=private),
            kept=tuple(i for i, node in enumerate(takes) if self._places[node] in kept),
        )
        taken = tuple(self._places[node] for node in takes)
        for node in results:
            self._places[node] = len(self._places)
        made = tuple(self._places[node] for node in results)
        settings, executables = self._runs.segment.settings, self._runs.segment.executables
        program = GraphProgram(graph, settings, executables)
        return Part(program, taken, made, self._given(gradients))

    def _kept(self) -> list[fx.Node]:
        inputs = list(self._inputs.values())
        return [inputs[position] for position in self._graph.kept]

    def _given(self, gradients: Sequence[fx.Node | None]) -> tuple[int | None, ...]:
        return tuple(None if node is None else self._places[node] for node in gradients)

    def _module(
        self,
        given: Sequence[fx.Node],
        nodes: Sequence[fx.Node],
        results: Sequence[fx.Node],
        shared: set[fx.Node],
    ) -> fx.GraphModule:
        """The graph of a part.

        A gradient that lies in memory that a later part reads is copied: it is somebody else's
        as soon as it is handed over.
        """
        graph = fx.Graph()
        copies: dict[fx.Node, fx.Node] = {}
        for node in given:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in nodes:
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
        outputs = []
        for node in results:
            made = copies[node]
            if graphs.view_source(node) is not None and graphs.view_root(node) in shared:
                made = graph.call_function(torch.ops.aten.clone.default, (made,))
                made.meta = dict(node.meta)
            outputs.append(made)
        graph.output(tuple(outputs))
        return forget_source_with(fx.GraphModule(self._graph.module, graph))


def _is_made_again(node: fx.Node) -> bool:
    """Whether each part makes what a node stands for by itself: views, sizes, constants."""
    if node.op == "get_attr" or graphs.is_size(node):
        return True
    return graphs.view_source(node) is not None


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _needed(wanted: Iterable[fx.Node], made: set[fx.Node]) -> set[fx.Node]:
    """What has to run; of a node with several results all of these."""
    needed: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node in needed or node in made:
            continue
        needed.add(node)
        pending += node.all_input_nodes
        if not _is_made_again(node) and not _is_tensor(node):
            pending += [user for user in node.users if user.target is graphs.GETITEM]
    return needed


def in_turns(group: Group) -> tuple[Group, ...]:
    """What of a group is handed over at once: the last of it comes by itself.

    A reducer's bucket ends with the operand that fills it. In which order the engine takes what one
    node hands over isn't known, and the reducer orders its buckets by that.
    """
    return (group[:-1], group[-1:]) if len(group) > 1 else (group,)


def _handing_over(part: Part) -> Iterator[Part]:
    first, *rest = in_turns(part.gives)  # type: ignore[arg-type]
    yield replace(part, gives=first)
    for gives in rest:
        yield Part(None, (), (), gives)


def _freeing(parts: Sequence[Part], lasting: int) -> tuple[Part, ...]:
    """The parts, each letting go of what none after it needs; some values stay to the end."""
    needed = set(range(lasting))
    found: list[Part] = []
    for part in reversed(parts):
        gives = {place for place in part.gives if place is not None}
        touched = {*part.takes, *part.makes, *gives}
        found.append(replace(part, done=tuple(sorted(touched - needed))))
        needed |= {*part.takes, *gives}
    return tuple(reversed(found))
