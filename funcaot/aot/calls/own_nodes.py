"""An autograd node of its own for each result that depends on others; entries attach them.

Note [Own nodes]: one node makes all results of a call. With that alone the engine wouldn't know
what one result owes to another: ``torch.autograd.grad(loss, features)`` would find no way, and a
hook on ``features`` would see a part of its gradient. So a result that depends on others comes
through a node of its own, which leads to the call's node and to those others. In general it only
hands its gradient on, and the call's node takes everything back to the inputs in one program.
Where somebody looks at the gradient by one of the others (a hook, ``retain_grad``, an input of
``torch.autograd.grad``), the own node goes back as far as that one instead, gives it its part,
and leaves the gradients of inputs that don't come through it to the call's node.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from funcaot._torch.autograd import autograd, nodes
from funcaot._torch.dynamo import captured
from funcaot._torch.dynamo.dynamo import hidden_from_dynamo
from funcaot.aot.effects import epilogue
from funcaot.aot.effects.effects import Effects
from funcaot.aot.segment.segment import Link, Shown
from funcaot.errors import UnsupportedError

__all__ = ["added", "between", "finish", "refuse_seen", "taken"]

# Of one thread's backwards, how many may have left something for one node.
_MOST = 16


class Left(NamedTuple):
    """What an own node leaves to the node of its call.

    Attributes:
        output: Its output of the graph.
        gradient: What it has handed on, which was taken care of.
        made: Gradients of the operands.
        thread: Where it ran.
    """

    output: int
    gradient: torch.Tensor
    made: tuple[torch.Tensor | None, ...]
    thread: int


class _Call:
    """One call, as the nodes of its results see it.

    Attributes:
        owner: The segment in the form that ran.
        node: Its own node.
    """

    def __init__(self, owner: Any) -> None:
        self.owner = owner
        self.node: Any = None
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], Any]] = {}
        self._looked_at = -1, 0

    def see(self, position: int, tensor: torch.Tensor) -> None:
        """Take note of what the caller has for a position in the segment's ``shown``."""
        if position not in self._seen:
            self._seen[position] = weakref.ref(tensor), _hooks_of(tensor)

    def looked_at(self) -> int:
        """Of which of these somebody looks at the gradient in this backward, as bits."""
        task, (of, found) = nodes.backward_in_progress(), self._looked_at
        if of == task:
            return found
        found = 0
        taken_out = captured.handed_out() if captured.is_watching() else None
        for position, (alive, hooks) in self._seen.items():
            tensor = alive()
            kept = tensor is not None and tensor.retains_grad
            if kept or hooks or taken_out is None or self._is_in(taken_out, position, tensor):
                found |= 1 << position
        self._looked_at = task, found
        return found

    def _is_in(
        self, edges: Sequence[tuple[Any, int]], position: int, tensor: torch.Tensor | None
    ) -> bool:
        if not edges:
            return False
        if tensor is not None:
            return (tensor.grad_fn, tensor.output_nr) in edges
        own = self.owner.segment.shown[position].own
        return any(self._output_of(*edge) == own for edge in edges) and own is not None

    def _output_of(self, node: Any, number: int) -> int | None:
        """Of which output of the graph the gradient arrives at an edge."""
        if node is self.node:
            return number
        others: _Others | None = getattr(node, "others", None)
        return others.link.output if others is not None and others.call is self else None


class _Others(NamedTuple):
    """What a result depends on, as its own node sees it.

    Attributes:
        call: The call that made it.
        link: Which result it is.
        positions: In the segment's ``shown``, of those that the node leads to.
    """

    call: _Call
    link: Link
    positions: tuple[int, ...]

    def stops(self) -> tuple[int, ...]:
        """Positions of those by which or behind which somebody looks at the gradient."""
        found = self.call.looked_at()
        if not found:
            return ()
        pairs = zip(self.link.on, self.link.behind, strict=True)
        return tuple(at for at, bits in pairs if bits & found and at in self.positions)

    def handed_on(self, gradient: torch.Tensor, stops: tuple[int, ...]) -> list[Any]:
        """What each of the others is given, where some of them stop the gradient."""
        owner, node = self.call.owner, self.call.node
        tangents: list[torch.Tensor | None] = [None] * len(owner.segment.output_nodes)
        tangents[self.link.output] = gradient
        complete = getattr(nodes.function_class(node), "complete", None)
        if complete is not None:
            complete(node)
        made = owner.backward_of(node, owner.saved(node), tuple(tangents), stops)
        count = len(owner.segment.operands)
        _leave(node, Left(self.link.output, gradient, made[:count], threading.get_ident()))
        given = dict(zip(stops, made[count:], strict=True))
        return [given.get(position) for position in self.positions]


def _hooks_of(tensor: torch.Tensor) -> Any:
    """The hooks on a tensor, with those that it gets later, also once the tensor is gone."""
    if tensor._backward_hooks is None:
        nodes.prepare_hooks(tensor)
    return tensor._backward_hooks


class OwnNode(torch.autograd.Function):
    """A result as it is, with the others that it depends on."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any, others: _Others, result: torch.Tensor, *tensors: torch.Tensor
    ) -> torch.Tensor:
        """Hold on to what the backward asks."""
        ctx.set_materialize_grads(False)
        ctx.others = others
        return result.detach()

    @staticmethod
    @hidden_from_dynamo
    def backward(ctx: Any, gradient: torch.Tensor | None) -> tuple[Any, ...]:  # type: ignore[override]
        """Hand the gradient on to the call's node, or to what somebody looks at."""
        edges = ctx.next_functions
        if gradient is None:
            return (None,) * (1 + len(edges))
        stops = ctx.others.stops()
        if not stops:
            return (None, gradient, *[None] * (len(edges) - 1))
        return (None, gradient, *ctx.others.handed_on(gradient, stops))


_attach = autograd.native_apply(OwnNode)


def finish(
    owner: Any,
    effects: Effects,
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor | None],
) -> list[Any]:
    """Change the inputs and make the outputs of a function, those with their own nodes too.

    Args:
        owner: The segment in the form that ran.
        effects: The plan.
        inputs: The call's inputs, then what regions add.
        results: What the graph computed.

    Returns:
        The flat outputs.
    """
    call = _Call(owner)
    outputs = epilogue.finish(effects, inputs, between(owner, results, call=call))
    for link in owner.segment.links.outputs:
        others = {at: _visible(owner.segment.shown[at], outputs, inputs) for at in link.on}
        _put(call, outputs, link.places, (link, others))
    if owner.segment.links.rest:
        _show(owner, results, outputs, inputs)
    return outputs


def between(
    owner: Any, values: Sequence[Any], *, made: bool = False, call: _Call | None = None
) -> list[Any]:
    """Results of which those that depend on others have nodes of their own.

    Args:
        owner: The segment in the form that ran.
        values: What it made: its results, or with ``made`` the outputs of its graph.
        made: See ``values``.
        call: The call, if something else is told of it too.
    """
    segment, found, call = owner.segment, list(values), call or _Call(owner)
    for link in segment.links.results:
        places = (link.output,) if made else link.places
        others = {}
        for position in link.on:
            own = segment.shown[position].own
            others[position] = found[own if made else segment.first_places[own]]
        _put(call, found, places, (link, others))
    return found


def _put(
    call: _Call, values: list[Any], places: Sequence[int], linked: tuple[Link, dict[int, Any]]
) -> None:
    """Replace a result by one with its own node, wherever it is among some values."""
    link, others = linked
    result = values[places[0]]
    node = None if result is None else result.grad_fn
    if nodes.function_class(node) is None:
        return
    others = {at: other for at, other in others.items() if nodes.has_grad_fn(other)}
    if not others:
        return
    captured.is_watching()
    call.node = node
    for at, other in others.items():
        call.see(at, other)
    seen = _Others(call, link, tuple(others))
    if torch.is_grad_enabled():
        own = _attach(seen, result, *others.values())
    else:
        with torch.enable_grad():
            own = _attach(seen, result, *others.values())
    for place in places:
        values[place] = own


def _visible(shown: Shown, outputs: Sequence[Any], inputs: Sequence[Any]) -> torch.Tensor:
    return inputs[shown.input] if shown.output is None else outputs[shown.output]


def _leave(node: Any, left: Left) -> None:
    now = nodes.backward_in_progress()
    waiting: dict[int, list[Left]] | None = getattr(node, "left", None)
    if waiting is None:
        waiting = node.left = {}
    waiting.setdefault(now, []).append(left)
    # The call's node doesn't run where it is only a gradient's way out.
    own = [task for task, each in [*waiting.items()] if each[0].thread == left.thread]
    for task in own[:-_MOST]:
        waiting.pop(task, None)


def taken(
    ctx: Any, tangents: tuple[torch.Tensor | None, ...]
) -> tuple[tuple[torch.Tensor | None, ...], list[Left]]:
    """The gradients that a call's node has to take care of itself, and what was left to it."""
    waiting: dict[int, list[Left]] | None = getattr(ctx, "left", None)
    found = waiting.pop(nodes.backward_in_progress(), []) if waiting else []
    rest = list(tangents)
    for left in found:
        arrived = rest[left.output]
        if arrived is not None:
            # More arrives where a derivative of the backward leads here too.
            rest[left.output] = None if arrived is left.gradient else arrived - left.gradient
    return tuple(rest), found


def added(made: Sequence[torch.Tensor | None], left: Sequence[Left]) -> tuple[Any, ...]:
    """A call's gradients with those that were left to it."""
    if not left:
        return tuple(made)
    total = list(made)
    for each in left:
        for index, part in enumerate(each.made):
            if part is not None:
                whole = total[index]
                total[index] = part if whole is None else whole + part
    return tuple(total)


def _show(
    owner: Any, results: Sequence[Any], outputs: Sequence[Any], inputs: Sequence[Any]
) -> None:
    """Tell the node of a call of the results that have no nodes of their own, though they depend.

    Args:
        owner: The segment in the form that ran.
        results: Its results, as it made them.
        outputs: Outputs of the function.
        inputs: Its inputs, with their new values.
    """
    segment = owner.segment
    made = zip(results, segment.places, strict=True)
    histories = [each.grad_fn for each, place in made if place.output is not None]
    node = next((history for history in histories if history is not None), None)
    if node is None:
        return
    call, node.rest = _Call(owner), []
    for link in segment.links.rest:
        others = {at: _visible(segment.shown[at], outputs, inputs) for at in link.on}
        for at, other in others.items():
            if nodes.has_grad_fn(other):
                call.see(at, other)
        node.rest.append(_Others(call, link, link.on))


def refuse_seen(owner: Any, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> None:
    """Refuse a backward whose gradients somebody has seen without a part of theirs.

    Raises:
        UnsupportedError: One of the results that ``_show`` told of is looked at.
    """
    for others in getattr(ctx, "rest", ()):
        if tangents[others.link.output] is not None and others.stops():
            raise UnsupportedError(
                f"Somebody looks at the gradient by a result of {owner.segment.settings.name} on "
                "which new data of an argument depends, with a hook or retain_grad. One autograd "
                "node makes both, so it is the gradient without that part.",
                remedy="return a new tensor in place of writing to the argument; or compile what "
                "makes the tensor and what uses it as two functions.",
            )
