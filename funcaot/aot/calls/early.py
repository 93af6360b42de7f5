"""A Function whose backward hands over gradients before it has ended; ``call`` makes it.

Note [Early gradients]: autograd takes the gradients of a node when the node is done. Where
somebody waits for each parameter's gradient, as the reducer of ``DistributedDataParallel`` does, a
segment has a chain of nodes behind it: its own backward runs the first part, and each of the
others runs one more. The node itself has edges to all operands, and each of the chain has edges to
those whose gradients its part finishes. What autograd does with a gradient comes before the next
node, since nodes that accumulate are always first in the engine's queue; and it happens once, as
the engine waits for all edges of a leaf.

The chain hangs together by tensors without elements. Their gradients carry what remains to be
done, so that it belongs to the backward in progress and to nothing else. Where a backward has to
run as a whole (it is differentiated itself, or not all gradients are wanted), the first node does
that and the chain has nothing to do.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.autograd.autograd import version_of
from funcaot._torch.autograd.nodes import backward_in_progress, is_wanted
from funcaot._torch.dynamo.dynamo import hidden_from_dynamo
from funcaot._torch.levels.situation import situation
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors import guards
from funcaot._torch.tracing import tracing
from funcaot.aot.calls.joined import Joined, Left, Source, deriving, separately, source_of
from funcaot.aot.calls.parts import Group, Part, Parts, in_turns, parted
from funcaot.aot.graph import graphs

if TYPE_CHECKING:
    from torch import fx

    from funcaot.aot.calls.call import SegmentFunction, SegmentFunctions
    from funcaot.aot.segment.backward import Backward
    from funcaot.aot.segment.segment import Segment

_CARRIED = "_funcaot_carried"
# More parts take longer to compile, and hide little more.
_MOST = 16
# Bytes of operands from which one node less saves more time than a chain of nodes costs.
_WORTH = 1 << 20
_WHOLE = {"key", "segment", "targets", "timings", "conditions", "read"}


def groups_of(segment: Segment, limits: Sequence[int]) -> tuple[Group, ...]:
    """Operands that may need a gradient, in the order in which a backward finishes these.

    That is the reverse of the order in which they are first used, whatever the derivative's order:
    what autograd recorded first it runs last.

    Args:
        segment: What is differentiated.
        limits: A group ends once it has as many bytes; the last number is for all that follow.
    """
    first = {
        index: _first_use(operand.node)
        for index, operand in enumerate(segment.operands)
        if operand.leaf is not None
    }
    order = {node: place for place, node in enumerate(segment.tape.graph.nodes)}
    sizes = {index: _bytes_of(segment, index) for index in first}
    ranked = sorted(first, key=lambda index: (-order.get(first[index], -1), sizes[index]))
    least = sum(sizes.values()) / _MOST
    found: list[list[int]] = [[]]
    bytes_so_far = 0
    for index in ranked:
        if bytes_so_far >= max(least, limits[min(len(found), len(limits)) - 1]) and sizes[index]:
            found.append([])
            bytes_so_far = 0
        found[-1].append(index)
        bytes_so_far += sizes[index]
    return tuple(map(tuple, found))


def is_worth_it(segment: Segment, groups: Sequence[Group]) -> bool:
    """Whether to run a segment in this way; of one group, only joined backwards gain by it."""
    if len(groups) > 1:
        return True
    return sum(_bytes_of(segment, index) for index in groups[0]) >= _WORTH


def _bytes_of(segment: Segment, index: int) -> int:
    return graphs.bytes_of(graphs.value_of(segment.operands[index].node))


def _first_use(node: fx.Node) -> Any:
    """The first node that computes with a value."""
    found, pending = [], [node]
    while pending:
        for user in pending.pop().users:
            (pending if graphs.view_source(user) is not None else found).append(user)
    return min(found, default=node)


class Early:
    """A segment's Function with a chain of nodes behind it (see Note [Early gradients]).

    Attributes:
        owner: The segment in its keeping form.
        groups: Operands, in the order in which their gradients are handed over.
    """

    def __init__(self, owner: SegmentFunction, groups: tuple[Group, ...]) -> None:
        """Nothing is compiled yet."""
        self.owner, self.groups = owner, groups
        self._joined: dict[SegmentFunction, Joined | None] = {}
        self._turns = [turn for group in groups for turn in in_turns(group)]
        operands = owner.segment.operands
        saved = {residual.operand for residual in owner.form.residuals}
        self._edges = tuple(
            index
            for index, operand in enumerate(operands)
            if operand.leaf is not None and index not in saved
        )
        self._constant = tuple(
            index
            for index, tensor in enumerate(owner.segment.graph_outputs)
            if not tensor.requires_grad
        )
        members = {"forward": staticmethod(self._forward), "backward": staticmethod(self._backward)}
        name = owner.segment.name
        self._function = type(name, (torch.autograd.Function,), members)
        self._following = [
            type(f"{name}_part", (torch.autograd.Function,), _members()) for _ in self._turns[1:]
        ]

    def apply(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The graph's outputs; the chain's last node is made first."""
        token: Any = None
        for function, turn in zip(
            reversed(self._following), reversed(self._turns[1:]), strict=True
        ):
            token = function.apply(token, *[operands[index] for index in turn])
        source = source_of(self.owner)
        link = None if source is None else source.link
        made = self._function.apply(*operands, token, link, source)
        return made[:-1]  # type: ignore[index,return-value]

    def _forward(self, ctx: Any, *given: Any) -> tuple[torch.Tensor, ...]:
        owner, operands = self.owner, given[:-3]
        ctx.set_materialize_grads(False)
        ctx.source, ctx.leaving = given[-1], None
        made = owner.values(operands)
        if self._constant:
            ctx.mark_non_differentiable(*[made[index] for index in self._constant])
        link = torch.empty(0)
        ctx.save_for_backward(*[kept.of(operands, made) for kept in owner.form.residuals], link)
        ctx.edges = tuple(operands[index] for index in self._edges)
        ctx.edge_indices = self._edges
        return (*made[: len(owner.segment.output_nodes)], link)

    @hidden_from_dynamo
    def _backward(self, ctx: Any, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        *tangents, arrived = tangents  # type: ignore[assignment]
        left: Left | None = None if arrived is None else _carried(arrived)
        saved, link = (), None
        if self.owner.form.residuals:
            *saved, link = ctx.saved_tensors
        saved, tangents = tuple(saved), tuple(tangents)
        nothing = (None,) * len(self.owner.segment.operands)
        kept = hasattr(ctx, "left") or hasattr(ctx, "rest")
        if left is None and not kept and self._leaves(ctx, saved, tangents):
            work = _carrying(Left(self.owner, ctx, saved, tangents))
            return (*nothing, None, work, None)
        remaining = None if kept else self._begun(ctx, saved, tangents, left)
        if remaining is None:
            source = None if link is None else Source(self.owner, ctx, link)
            with deriving(source if torch.is_grad_enabled() else None):
                made = self.owner.backward_of(ctx, saved, tangents)
            made = made if left is None else separately(self.owner, made, left)
            return (*made, None, None, None)
        gradients: list[Any] = list(nothing)
        made, token = remaining.next()
        for index, gradient in zip(self._turns[0], made, strict=True):
            gradients[index] = gradient
        return (*gradients, token, None, None)

    def _leaves(
        self, ctx: Any, saved: tuple[Any, ...], tangents: tuple[torch.Tensor | None, ...]
    ) -> bool:
        """Whether a node leaves its backward to the one whose gradients it computed."""
        source = ctx.source
        if source is None or torch.is_grad_enabled() or not self._is_all_common(saved, tangents):
            return False
        task = backward_in_progress()
        # What two nodes leave to it would be added.
        if source.ctx.leaving == task or not is_wanted(source.ctx):
            return False
        shared = {operand.node for operand in source.owner.segment.operands}
        if any(
            needed and operand.node not in shared
            for needed, operand in zip(
                self.owner.needs(ctx), self.owner.segment.operands, strict=True
            )
        ):
            return False
        source.ctx.leaving = task
        return True

    @staticmethod
    def _is_all_common(
        saved: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor | None]
    ) -> bool:
        present = [tangent for tangent in tangents if tangent is not None]
        return bool(present) and _is_common([*present, *saved])

    def _begun(
        self,
        ctx: Any,
        saved: Sequence[torch.Tensor],
        tangents: Sequence[torch.Tensor | None],
        left: Left | None,
    ) -> _Remaining | None:
        """What is to be done if it is done in parts; None if the backward runs as a whole."""
        owner = self.owner
        given = tangents if left is None else (*tangents, *left.tangents)
        if torch.is_grad_enabled() or not self._is_all_common(saved, given):
            return None
        needs = owner.needs(ctx)
        if any(not needs[index] for group in self.groups for index in group):
            return None
        joined: Any = owner if left is None else self._joined_with(left.owner)
        if joined is None:
            return None
        values, arrived = list(saved), list(tangents)
        if left is not None and isinstance(joined, Joined):
            values, arrived = joined.values(saved, left), joined.tangents(tangents, left)
            needs = (*needs, *[False] * (len(joined.segment.operands) - len(needs)))
        try:
            backward, functions = joined.derivatives.backward(needs, self._edges, arrived, values)
            parts = self._cut(joined, backward, functions)
            if parts is None:
                return None
            if ctx.edges and saved and not tracing.backward_keeps_graph():
                ctx.edges = ()
            present = [tangent for tangent in arrived if tangent is not None]
            return _Remaining(parts, [*values, *present])
        finally:
            owner.segment.tape.forget_values()

    def _joined_with(self, following: SegmentFunction) -> Joined | None:
        if following not in self._joined:
            with self.owner.segment.settings.lock, StateKept():
                joined = Joined(self.owner, following)
                self._joined[following] = joined if joined.fits else None
        return self._joined[following]

    def _cut(self, owner: Any, backward: Backward, functions: SegmentFunctions) -> Parts | None:
        if functions.parts is None:
            with self.owner.segment.settings.lock, StateKept():
                parts = None
                if _is_whole(backward):
                    parts = parted(owner, backward, functions.plain, self.groups)
                functions.parts = (parts,)
        return functions.parts[0]  # type: ignore[index]


class _Remaining:
    """The parts of one backward that haven't run, and the values that they need."""

    def __init__(self, parts: Parts, operands: list[torch.Tensor]) -> None:
        given = [operands[position] for position in parts.positions]
        self._values: list[Any] = [*given, *[None] * (parts.count - len(given))]
        self._versions = [version_of(tensor) for tensor in given]
        self._parts, self._next = parts.parts, 0

    def next(self) -> tuple[list[Any], torch.Tensor | None]:
        """Run a part: its gradients, and what takes the rest to the next node of the chain."""
        part = self._parts[self._next]
        if self._next:
            self._refuse_changes(part)
        values = self._values
        if part.program is not None:
            made = part.program.execute([values[place] for place in part.takes])
            for place, value in zip(part.makes, made, strict=True):
                values[place] = value
            del made
        gradients = [None if place is None else values[place] for place in part.gives]
        for place in part.done:
            values[place] = None
        self._next += 1
        return gradients, _carrying(self) if self._next < len(self._parts) else None

    def _refuse_changes(self, part: Part) -> None:
        """Raise what autograd raises where it looks at what it saved."""
        used = () if part.program is None else part.program.used
        for place in [part.takes[index] for index in used]:
            if place >= len(self._versions):
                continue
            version, expected = version_of(self._values[place]), self._versions[place]
            if version != expected:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an "
                    f"inplace operation, while its backward was running: a tensor of shape "
                    f"{list(self._values[place].shape)} is at version {version}; expected version "
                    f"{expected} instead."
                )


def _carrying(work: _Remaining | Left) -> torch.Tensor:
    token = torch.empty(0)
    setattr(token, _CARRIED, work)
    return token


def _carried(token: torch.Tensor) -> Any:
    work = getattr(token, _CARRIED)
    delattr(token, _CARRIED)
    return work


def _members() -> dict[str, Any]:
    """The members of a Function of the chain."""

    def forward(ctx: Any, token: torch.Tensor | None, *operands: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.count = len(operands)
        return torch.empty(0)

    @hidden_from_dynamo
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[Any, ...]:
        if gradient is None:
            return (None,) * (1 + ctx.count)
        gradients, token = _carried(gradient).next()
        return (token, *gradients)

    return {"forward": staticmethod(forward), "backward": staticmethod(backward)}


def _is_common(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether graphs may run on values as they are, and nobody else looks at what runs."""
    return (
        situation().is_bare
        and not guards.any_autocast_enabled()
        and all(type(tensor) in (torch.Tensor, torch.nn.Parameter) for tensor in tensors)
        and all(tensor.layout is torch.strided for tensor in tensors)
        and not any(map(autograd.is_zero_tensor, tensors))
        and not any(tensor.is_inference() for tensor in tensors)
    )


def _is_whole(backward: Backward) -> bool:
    """Whether running the graph and handing out its outputs is all there is to a backward."""
    others = [item.name for item in dataclasses.fields(backward) if item.name not in _WHOLE]
    return backward.segment is not None and not any(getattr(backward, name) for name in others)
