"""``torch.autograd.grad`` by inputs: what was recorded before the call must not lead to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from funcaot._torch.autograd.nodes import is_leaf, nodes_behind
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.errors import UnsupportedError

__all__ = ["note", "with_own_numbers"]


def note(call: Call, capture: InProgress) -> Any:
    """Note which inputs are differentiated by which.

    Raises:
        UnsupportedError: If one of them was made of one that it is differentiated by, or that one
            has hooks.
    """
    given = dict(zip(("outputs", "inputs"), call.args, strict=False)) | call.kwargs
    outputs, inputs = _edges_and_tensors(given["outputs"]), _edges_and_tensors(given["inputs"])
    found_by = [_tensor_of(given, capture) for given in inputs]
    by = [tensor for tensor in found_by if capture.facts.know(tensor)]
    if not by:
        return NotImplemented
    for tensor in filter(capture.facts.has_hooks, by):
        raise UnsupportedError(
            f"{capture.name} differentiates by {capture.described(tensor)}, which has hooks that "
            "were registered before the call; eager runs them on that gradient.",
            remedy="register them inside, or remove them and change the gradient that is returned.",
        )
    reached = _reached(outputs)
    behind = [
        slot.tensor
        for slot in capture.inputs
        if slot.tensor.requires_grad
        and (id(slot.tensor) in reached or slot.tensor.grad_fn in reached)
    ]
    found = capture.facts.note_history(behind, by)
    if found is not None:
        of, other = (capture.described(tensor) for tensor in found)
        raise UnsupportedError(
            f"{capture.name} differentiates by {other}, and {of} was computed from it before the "
            "call; the derivative goes on there in eager, while a capture starts at its inputs.",
            remedy="compute it inside, or pass it detached, if that part isn't meant; of what "
            "torch.func.vjp returned, compile the function that calls torch.func.vjp.",
        )
    return NotImplemented


def with_own_numbers(call: Call, capture: InProgress) -> Any:
    """Edges to inputs have the numbers of the tape's tensors.

    An edge takes its number from a tensor, and an input says that of the real one, which may be
    one of many outputs. The engine looks for it and ends the process.
    """

    def own(value: Any) -> Any:
        if isinstance(value, GradientEdge):
            return value._replace(output_nr=_number(value, capture))
        if isinstance(value, dict):
            return {key: own(item) for key, item in value.items()}
        return type(value)(map(own, value)) if type(value) in (list, tuple) else value

    return Call(call.func, own(call.args), own(call.kwargs))


def _number(edge: GradientEdge, capture: InProgress) -> int:
    tensor = _tensor_of(edge, capture)
    if tensor is None:
        return edge.output_nr
    with tracing.without_torch_function():
        return tensor.output_nr


def _edges_and_tensors(given: Any) -> Sequence[Any]:
    return (given,) if isinstance(given, torch.Tensor | GradientEdge) else given


def _tensor_of(given: Any, capture: InProgress) -> Any:
    """What is differentiated by; of an edge, the leaf or the input that it leads to."""
    if not isinstance(given, GradientEdge):
        return given
    if is_leaf(given.node):
        return getattr(given.node, "variable", None)
    with tracing.without_torch_function():
        inputs = [slot.tensor for slot in capture.inputs]
        return next((tensor for tensor in inputs if tensor.grad_fn is given.node), None)


def _reached(outputs: Sequence[Any]) -> set[Any]:
    """Nodes behind outputs, and leaves by ``id``."""
    starts = [out.node if isinstance(out, GradientEdge) else out.grad_fn for out in outputs]
    nodes = set(nodes_behind([node for node in starts if node is not None]))
    return nodes | {id(node.variable) for node in nodes if is_leaf(node)} | {*map(id, outputs)}
