"""Which values of a forward are kept for its backward: a minimum cut, demanded by the frontier."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import fx

from funcaot.aot.graph import graphs
from funcaot.aot.graph.mincut import INFINITE, Network
from funcaot.aot.graph.policy import Candidate, Policy, is_pinned
from funcaot.aot.segment.compared import Compared
from funcaot.aot.subclasses.nodes import is_part, is_wrapped, parts_inside
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.aot.tape import masks
from funcaot.aot.tape.again import is_marked, what_is_kept
from funcaot.aot.tape.frontier import Demand

# Each kept tensor costs this much beyond its elements.
_OVERHEAD = 64
# A copy that the forward has to make takes time too.
_COPYING = 2


@dataclass(frozen=True, eq=False)
class Kept:
    """A value that is kept.

    Attributes:
        node: The tape's node of it.
        reason: Why it is kept instead of being computed again.
        consumers: Autograd nodes that ask for it, or for something computed from it.
        shared: Whether the caller has this very tensor too, as autograd would have saved it.
    """

    node: fx.Node
    reason: str
    consumers: tuple[str, ...]
    shared: bool


@dataclass(frozen=True, eq=False)
class Problem:
    """What there is to choose from.

    Attributes:
        operands: Inputs of the forward.
        private: Inputs and outputs that nobody but the program has.
        overwritten: Those among them that the caller overwrites after the forward.
        outputs: What the caller gets.
        demands: The frontier.
        policy: What may be recomputed.
    """

    operands: tuple[fx.Node, ...]
    private: frozenset[fx.Node]
    overwritten: frozenset[fx.Node]
    outputs: tuple[fx.Node, ...]
    demands: tuple[Demand, ...]
    policy: Policy


def choose(problem: Problem) -> tuple[Kept, ...]:
    """Choose the residuals.

    Note [Who may see a residual]: an input or output is kept as it is only if autograd saved it
    (or a view of it), so that overwriting it between forward and backward is an error exactly
    where it is one in eager. Another input is kept only as a copy, at a price; another output not
    at all.

    Returns:
        What to keep, each node once, in the tape's order.
    """
    demands = problem.demands
    if not demands:
        return ()
    inside = _inside(problem.operands)
    nodes = [graphs.without_aliases(demand.node) for demand in demands]
    nodes = [inside.get(node, node) for node in nodes]
    shared = _shared(problem, nodes)
    if not problem.policy.everything:
        nodes = _compacted(demands, nodes, shared)
    wanted: dict[fx.Node, list[Demand]] = {}
    for node, demand in zip(nodes, demands, strict=True):
        wanted.setdefault(node, []).append(demand)
    search = _Search(problem, wanted, shared)
    kept = search.cut()
    consumers = _consumers(search.order, set(kept), wanted)
    return tuple(
        Kept(node, search.reason(node), consumers.get(node, ()), node in shared)
        for node in sorted(kept)
    )


def _shared(problem: Problem, wanted: Sequence[fx.Node]) -> set[fx.Node]:
    """Inputs and outputs that autograd itself has saved, and what is private anyway."""
    roots = {graphs.view_root(node) for node in wanted}
    roots |= {graphs.view_root(kept) for node in roots for kept in what_is_kept(node)}
    roots |= _checkpointed(wanted[0].graph) | problem.private
    given = {*problem.operands, *problem.outputs} - problem.overwritten
    return given & roots


def _live(problem: Problem) -> set[fx.Node]:
    """What only attributes of Functions hold: a backward reads what it holds by then."""
    roots: dict[bool, set[fx.Node]] = {True: set(), False: set()}
    for demand in problem.demands:
        roots[demand.checked].add(graphs.view_root(demand.node))
    return roots[False] - roots[True]


def _checkpointed(graph: fx.Graph) -> set[fx.Node]:
    """What goes into checkpointed regions: a checkpoint saves its inputs."""
    return {
        graphs.view_root(source)
        for node in graph.nodes
        if node.meta.get("region") is not None
        for source in graphs.tensor_inputs(node)
        if source.meta.get("region") != node.meta["region"]
    }


def _compacted(
    demands: Sequence[Demand], nodes: Sequence[fx.Node], shared: set[fx.Node]
) -> list[fx.Node]:
    """Ask for masks instead of tensors, except where the tensor is there anyway."""
    asked: list[fx.Node] = []
    for demand, node in zip(demands, nodes, strict=True):
        mask = None
        if demand.mask is not None and graphs.view_root(node) not in shared:
            mask = masks.mask_node(node, demand.mask)
        asked.append(mask or node)
    return asked


class _Search:
    """The part of the forward that demands lead back to, as a network."""

    def __init__(
        self, problem: Problem, wanted: dict[fx.Node, list[Demand]], shared: set[fx.Node]
    ) -> None:
        self.problem = problem
        self.policy = problem.policy
        self.wanted = wanted
        self.shared = shared
        self.operands = set(problem.operands)
        self.outputs = set(problem.outputs)
        self.inside = _inside(problem.operands)
        self.live = _live(problem) & (self.operands | self.outputs)
        self.barriers: dict[fx.Node, str] = {}
        self.compared = Compared(self._is_there)
        self.order = self._explore()

    def _explore(self) -> list[fx.Node]:
        """Nodes from which demanded ones can be recomputed, in the tape's order.

        A node that isn't recomputed becomes a barrier: nothing behind it is looked at.
        """
        found = self._behind()
        left = self._leaving_regions(found)
        if left:
            # Otherwise a chain of checkpoints would run again from its very beginning.
            self.barriers = dict.fromkeys(left, "a result of a checkpointed region")
            found = self._behind()
        ordered = sorted(found)
        if self.policy.depth is not None:
            self._limit_depth(ordered, self.policy.depth)
        return ordered

    def _behind(self) -> set[fx.Node]:
        found: set[fx.Node] = set()
        pending = list(self.wanted)
        while pending:
            node = pending.pop()
            if node in found:
                continue
            found.add(node)
            if not self.policy.everything:
                masks.compact_random(node)
            reason = self.barriers.get(node) or self._barrier(node)
            if reason is not None:
                self.barriers[node] = reason
            else:
                pending.extend(self._sources(node))
        return found

    def _sources(self, node: fx.Node) -> list[fx.Node]:
        """What a node reads: the wrapper instead of what it was made of, where it is there."""
        return [self.inside.get(source, source) for source in graphs.tensor_inputs(node)]

    def _leaving_regions(self, found: set[fx.Node]) -> list[fx.Node]:
        """Results of checkpointed regions that something outside of them needs."""
        left: list[fx.Node] = []
        for node in sorted(found):
            region = node.meta.get("region")
            if region is None or node in self.barriers or not _is_tensor(node):
                continue
            users = [user for user in node.users if user in found]
            outside = any(demand.region != region for demand in self.wanted.get(node, ()))
            if outside or any(user.meta.get("region") != region for user in users):
                # A view is never kept itself: what it shows is.
                root = graphs.view_root(node)
                known = root in found and root not in self.barriers
                # A gathered weight is gathered again outside of the region too.
                if known and root.meta.get("region") == region and not is_marked(root):
                    left.append(root)
        return left

    def _barrier(self, node: fx.Node) -> str | None:
        """Why a node isn't computed again, None if it may be."""
        if node in self.operands:
            return "an input of the function" if node in self.shared else "a copy of an input"
        if node.op == "placeholder":
            return "an input of the function"
        if is_marked(node):
            return None
        if self.live and not (graphs.is_view(node) or is_wrapped(node)):
            sources = map(graphs.view_root, graphs.tensor_inputs(node))
            if not self.live.isdisjoint(sources):
                return "made of what the caller may overwrite"
        if is_pinned(node):
            target = node.args[0] if node.target is operator.getitem else node
            if isinstance(target, fx.Node) and graphs.is_function_node(target):
                return f"made by {target.target!r}, whose forward runs once"
            if isinstance(target, fx.Node) and graphs.is_collective(target):
                return "received from other ranks, which don't send it twice"
            return "random: run again, it could be different"
        if node.op != "call_function" or node.meta.get("region") is not None:
            return None
        if _is_free(node) or not graphs.tensor_inputs(node):
            return None
        chosen = self._user_choice(node)
        if chosen is not None:
            return f"kept by the policy {self.policy.name}" if chosen else None
        if self.policy.everything:
            return "saved by autograd"
        if not self.policy.recomputes(node):
            return f"too expensive to compute again ({_op_name(node)})"
        if self.compared.must_be_kept(node):
            return "compared: computed again, it could have other last digits"
        return None

    def _is_there(self, node: fx.Node) -> bool:
        """Whether a value is kept, or given, whatever is chosen."""
        if node in self.operands or node.op != "call_function" or is_pinned(node):
            return True
        return node.meta.get("region") is None and not self.policy.recomputes(node)

    def _user_choice(self, node: fx.Node) -> bool | None:
        value = graphs.value_of(node)
        if self.policy.choice is None or not isinstance(value, torch.Tensor):
            return None
        return self.policy.choice(
            Candidate(
                node.name,
                _op_name(node),
                graphs.shape_of(value),
                value.dtype,
                _bytes(node),
                node.meta.get("source"),
            )
        )

    def _limit_depth(self, ordered: Sequence[fx.Node], limit: int) -> None:
        depth: dict[fx.Node, int] = {}
        for node in ordered:
            if node in self.barriers:
                depth[node] = 0
                continue
            behind = max(
                (depth.get(source, 0) for source in graphs.tensor_inputs(node)), default=-1
            )
            free = _is_free(node) or node.op != "call_function" or is_marked(node)
            depth[node] = max(behind, 0) + (0 if free or behind < 0 else 1)
            region = node.meta.get("region")
            if depth[node] > limit and region is None and _is_tensor(node):
                self.barriers[node] = f"the last of {limit} ops that would have to run again"
                depth[node] = 0

    def cut(self) -> set[fx.Node]:
        """The cheapest nodes that everything demanded can be computed from."""
        network = Network()
        source, sink = network.vertex(), network.vertex()
        entry = {node: network.vertex() for node in self.order}
        leave = {node: network.vertex() for node in self.order}
        for node in self.order:
            network.edge(entry[node], leave[node], self._price(node))
            if node in self.barriers:
                network.edge(source, entry[node], INFINITE)
            else:
                for needed in self._sources(node):
                    network.edge(leave[needed], entry[node], INFINITE)
            if node in self.wanted:
                network.edge(leave[node], sink, INFINITE)
        near = network.sink_side(source, sink)
        paid = {node for node in self.order if leave[node] in near and entry[node] not in near}
        if any(self._price(node) >= INFINITE for node in paid):
            raise RuntimeError(f"no cut separates the residuals: {sorted(paid)}")
        return paid | self._free(paid)

    def _free(self, paid: set[fx.Node]) -> set[fx.Node]:
        """Nodes that cost nothing to keep and that recomputing ends at."""
        found: set[fx.Node] = set()
        seen: set[fx.Node] = set()
        pending = list(self.wanted)
        while pending:
            node = pending.pop()
            if node in seen or node in paid:
                continue
            seen.add(node)
            if node in self.shared:
                found.add(node)
            elif node not in self.barriers:
                pending.extend(self._sources(node))
        return found

    def _price(self, node: fx.Node) -> int:
        if node in self.shared:
            return 0
        if is_wrapper(graphs.value_of(node)):
            return INFINITE
        if is_part(node):
            return _bytes(node) * _COPYING + _OVERHEAD
        if not _is_tensor(node) or graphs.view_source(node) is not None:
            return INFINITE
        in_region = node.meta.get("region") is not None and node not in self.barriers
        if in_region or is_marked(node):
            return INFINITE
        if node in self.outputs and node not in self.operands:
            return INFINITE
        return _bytes(node) * (_COPYING if node in self.operands else 1) + _OVERHEAD

    def reason(self, node: fx.Node) -> str:
        """Why a kept node is kept."""
        if node in self.outputs and node in self.shared:
            return "an output of the function"
        if node in self.barriers:
            return self.barriers[node]
        if node.meta.get("drawn"):
            return "random, kept as booleans: drawn again, it would be different"
        return "smaller than what it is computed from"


def _consumers(
    order: Sequence[fx.Node], kept: set[fx.Node], wanted: dict[fx.Node, list[Demand]]
) -> dict[fx.Node, tuple[str, ...]]:
    """For each kept node, which autograd nodes it is kept for."""
    names: dict[fx.Node, dict[str, None]] = {}
    for node in reversed(order):
        mine = names.setdefault(node, {})
        mine.update(dict.fromkeys(demand.consumer for demand in wanted.get(node, ())))
        if node not in kept:
            for source in graphs.tensor_inputs(node):
                into = names.setdefault(source, {})
                if len(into) < 8:
                    into.update(mine)
    return {node: tuple(found) for node, found in names.items()}


def _is_free(node: fx.Node) -> bool:
    """Whether a node is a view, or the several views that one op makes."""
    return graphs.is_view(node) or graphs.view_source(node) is not None


def _inside(operands: Sequence[fx.Node]) -> dict[fx.Node, fx.Node]:
    """For each tensor that an operand wraps, that operand."""
    return {part: node for node in operands for part in parts_inside(node)}


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(graphs.value_of(node), torch.Tensor)


def _bytes(node: fx.Node) -> int:
    return graphs.bytes_of(graphs.value_of(node))


def _op_name(node: fx.Node) -> str:
    target = node.args[0].target if node.target is operator.getitem else node.target  # type: ignore[union-attr]
    return str(target)


def drawn(nodes: Iterable[fx.Node]) -> frozenset[fx.Node]:
    """The nodes among these that must not run twice."""
    return frozenset(
        node for node in nodes if is_pinned(node) and node.target is not operator.getitem
    )
