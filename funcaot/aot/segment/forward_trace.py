"""Forward mode by running a tape's nodes again below a ``jvp`` level, by forward mode's own rules.

Transposing a backward twice needs a backward for every op, whose own derivative doesn't depend on
the cotangent; it never asks a Function for its ``jvp``; and it stops where reverse mode stops, at
``no_grad``, which forward mode sees through, but not where forward mode was off. Where one of these
matters, the nodes of the forward are run once more, each in the modes that it was recorded in. What
they compute is recorded already, so only the tangents are new.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.autograd import forward_ad

from funcaot._torch.autograd import autograd
from funcaot._torch.levels import functorch
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs
from funcaot.classes.traits import display_name, has_jvp
from funcaot.errors import UnsupportedError
from funcaot.operator.operator import custom_function_call

if TYPE_CHECKING:
    from funcaot.aot.segment.segment import Segment


def nodes_between(
    segment: Segment, moving: Sequence[int], outputs: Sequence[int], *, cut: bool = True
) -> set[fx.Node]:
    """Nodes through which some operands reach some graph outputs, whatever autograd recorded.

    Args:
        segment: The segment.
        moving: Positions of operands.
        outputs: Positions of graph outputs.
        cut: Whether tangents end at ``detach``, and where forward mode was off.
    """
    start = {segment.operands[index].node for index in moving}
    nodes = sorted(graphs.closure([segment.output_nodes[index] for index in outputs], start))
    reached: set[fx.Node] = set()
    for node in nodes:
        if cut and (node.meta.get("detached") == "yes" or is_still(node)):
            continue
        if not _may_have_tangent(graphs.value_of(node)):
            continue
        if any(source in reached or source in start for source in node.all_input_nodes):
            reached.add(node)
    return reached


def _may_have_tangent(value: Any) -> bool:
    if not isinstance(value, torch.Tensor):
        return True
    return value.is_floating_point() or value.is_complex()


def is_hidden(node: fx.Node) -> bool:
    """Whether a node was recorded where reverse mode doesn't look."""
    return not node.meta.get("grad_mode", True)


def is_still(node: fx.Node) -> bool:
    """Whether a node was recorded where forward mode was off, so that it has no tangent."""
    return bool(node.meta.get("still"))


def refuse_hidden_writes(segment: Segment, tangents: Sequence[torch.Tensor | None]) -> None:
    """Refuse reverse mode over what was overwritten where it doesn't look.

    Eager lets go on, at the levels outside, the gradient that the tangent had before the write.

    Raises:
        UnsupportedError: If such a tangent reaches an output.
    """
    if segment.order > 0 or not any(
        tangent is not None and functorch.requires_grad_at_any_level(tangent)
        for tangent in tangents
    ):
        return
    moving = [index for index, tangent in enumerate(tangents) if tangent is not None]
    shown, results = segment.roles.shown, enumerate(segment.graph_outputs)
    outputs = [index for index, result in results if index in shown or result.requires_grad]
    nodes = nodes_between(segment, moving, outputs)
    if any(is_hidden(node) and node.meta.get("write") for node in nodes):
        raise UnsupportedError(
            f"{segment.settings.name} writes to a tensor in a torch.no_grad() region, and its "
            "tangents are differentiated in reverse.",
            remedy="write out of place there, or with grad mode on.",
        )


def has_forward_rule(node: fx.Node) -> bool:
    """Whether a node is a call of a Function with a ``jvp`` of its own."""
    return graphs.is_function_node(node) and has_jvp(node.target.function)  # type: ignore


def push_forward(
    segment: Segment, given: dict[int, torch.Tensor], outputs: Sequence[int]
) -> list[torch.Tensor | None]:
    """The tangents of a segment's graph outputs, by forward mode on its tape.

    Args:
        segment: A segment of order 0: operands of another are values that depend on one another.
        given: The tape's tangent of each operand that has one.
        outputs: Positions of the graph outputs that are asked for.

    Raises:
        UnsupportedError: If a Function would have its forward rule made from a backward of which
            nobody knows that it is linear, or the segment is a derivative.
    """
    if segment.order > 0 or not all(segment.operands[index].by_value for index in given):
        raise UnsupportedError(
            f"A derivative of {segment.settings.name} was pushed forward, and something in it has "
            "no second reverse-mode derivative.",
            remedy="compile the function that calls torch.func.jvp, jacfwd or hessian instead.",
        )
    again = _Again(segment, given, outputs)
    if any(node.meta.get("detached") == "maybe" for node in again.nodes):
        raise UnsupportedError(
            f"Forward mode through {segment.settings.name} would have to see through the backward "
            "of a Function, which may call detach.",
            remedy="compile the function that calls torch.func.jvp instead.",
        )
    for node in again.nodes:
        if graphs.is_function_node(node):
            _check_linear(segment, again.known, node)
    return again.push()


def _without_tangent(results: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Those of several results that have no tangent.

    Torch would make their zeros of the results themselves, which may not be known any more.
    """
    return {
        index: result
        for index, result in enumerate(results)
        if forward_ad.unpack_dual(result).tangent is None
    }


def _zeros_for(result: torch.Tensor) -> torch.Tensor:
    return torch.zeros(result.shape, dtype=result.dtype, device=result.device)


class _Again:
    """The nodes of a segment, run once more with tangents."""

    def __init__(
        self, segment: Segment, given: dict[int, torch.Tensor], outputs: Sequence[int]
    ) -> None:
        self.segment = segment
        self.given = given
        self.wanted = [segment.output_nodes[index] for index in outputs]
        self.known = [operand.node for operand in segment.operands if operand.by_value]
        self.nodes = sorted(graphs.closure(self.wanted, self.known))

    def push(self) -> list[torch.Tensor | None]:
        """Run them; what has no tangent gets zeros."""
        tape, operands = self.segment.tape, self.segment.operands
        with tape.recording(), autograd.jvp_inside_dual_level():
            values = {
                operand.node: tape.constant(operand.node) if operand.leaf is None else operand.leaf
                for operand in operands
                if operand.by_value
            }
            moving = [operands[index].node for index in self.given]
            without: dict[int, torch.Tensor] = {}

            def run(*active: torch.Tensor) -> tuple[Any, ...]:
                environment: dict[fx.Node, Any] = dict(values)
                environment.update(zip(moving, active, strict=True))
                for node in self.nodes:
                    environment[node] = self._run_node(node, environment)
                results = [environment[node] for node in self.wanted]
                without.update(_without_tangent(results))
                return tuple(r for i, r in enumerate(results) if i not in without) or active

            primals = tuple(values[node] for node in moving)
            _, pushed = torch.func.jvp(run, primals, tuple(self.given.values()))
            rest = iter(pushed)
            return [
                _zeros_for(without[index]) if index in without else next(rest)
                for index in range(len(self.wanted))
            ]

    def _run_node(self, node: fx.Node, environment: dict[fx.Node, Any]) -> Any:
        if node.op == "get_attr":
            return getattr(self.segment.tape.root, str(node.target))
        args, kwargs = fx.map_arg((node.args, node.kwargs), environment.__getitem__)
        target: Any = node.target
        if graphs.is_function_node(node):
            target = partial(target.again, node)
        else:
            target = _PUSHED_OTHERWISE.get(target, target)
        grad_mode = torch.set_grad_enabled(not is_hidden(node))
        with grad_mode, autograd.forward_grad_enabled(not is_still(node)):
            result = target(*args, **kwargs)
            if node.meta.get("detached") == "yes":
                result = result.detach()
        if isinstance(result, torch.Tensor):
            plain = tracing.unwrap_functorch(result)
            self.segment.tape.stand_for(result if plain is None else plain, node)
        return result


def _copied(target: torch.Tensor, source: torch.Tensor, *_: object) -> torch.Tensor:
    """What ``copy`` gives, in the target's layout; torch has no forward rule for it."""
    value = source.to(target.device, target.dtype).expand(target.shape)
    order = sorted(range(target.dim()), key=target.stride, reverse=True)
    back = [order.index(dim) for dim in range(target.dim())]
    return value.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


# Torch's forward rule of `zero` writes zeros to the tangent that it is given.
_PUSHED_OTHERWISE = {
    torch.ops.aten.copy.default: _copied,
    torch.ops.aten.zero.default: torch.zeros_like,
}


def _check_linear(segment: Segment, known: Sequence[fx.Node], node: fx.Node) -> None:
    """Let a generated rule be checked as it is in eager: on the values of this call."""
    function = node.target.function  # type: ignore[union-attr]
    if has_jvp(function) or getattr(function, "allow_nonlinear_rule", False):
        return
    values = segment.tape.values_of(node.all_input_nodes)
    if values is None:
        raise UnsupportedError(
            f"The forward rule of {display_name(function)} would be made from its backward, which "
            "isn't visibly linear in the cotangents.",
            remedy="define `jvp(ctx, *tangents)`.",
        )
    by_node = dict(zip(node.all_input_nodes, values, strict=True))
    operands = [by_node[argument] for argument in node.args]  # type: ignore[index]

    def call(*tensors: torch.Tensor) -> object:
        return custom_function_call(function, *node.target.operands(*tensors))  # type: ignore

    segment.tape.outside(lambda: _jvp_along_zero(call, operands))


def _jvp_along_zero(call: object, operands: Sequence[torch.Tensor]) -> None:
    moving = [i for i, value in enumerate(operands) if value.is_floating_point()]

    def run(*active: torch.Tensor) -> object:
        filled = list(operands)
        for position, value in zip(moving, active, strict=True):
            filled[position] = value
        results = functorch.pytree.tree_leaves(call(*filled))  # type: ignore[operator]
        return tuple(result for result in results if isinstance(result, torch.Tensor))

    # A tangent is laid out as its value is, and can't be where elements share memory.
    whole = torch.contiguous_format
    primals = tuple(operands[position].clone(memory_format=whole) for position in moving)
    with autograd.jvp_inside_dual_level():
        torch.func.jvp(run, primals, tuple(torch.zeros_like(primal) for primal in primals))
