"""A functional graph in ops that vmap can batch, whatever the strides of the batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from funcaot._torch.levels import functorch
from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.graph.graphs import value_of
from funcaot.aot.graph.tensor_spec import is_dense

aten = torch.ops.aten

Rewrite = Callable[[fx.Graph, tuple[Any, ...], fx.Node], fx.Node | None]


def batchable(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph without ops that vmap can't batch or that depend on a batch's strides.

    Safe because the graph is functional: nobody sees whether a result is a view.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        rewrite = _REWRITES.get(node.target) if node.op == "call_function" else None
        arguments = fx.map_arg(node.args, lambda argument: copies[argument])
        made = None if rewrite is None else rewrite(graph, arguments, node)
        if made is None:
            made = graph.node_copy(node, lambda argument: copies[argument])
        made.meta = dict(node.meta)
        copies[node] = made
    return forget_source_with(fx.GraphModule(module, graph))


def _view(graph: fx.Graph, arguments: tuple[Any, ...], node: fx.Node) -> fx.Node:
    return graph.call_function(aten.reshape.default, arguments)


def _slice_scatter(graph: fx.Graph, arguments: tuple[Any, ...], node: fx.Node) -> fx.Node | None:
    """With a start and an end that exist: its batching makes all indices."""
    dim, start, end, step = (*arguments[2:], *(0, None, None, 1)[len(arguments) - 2 :])
    size = value_of(node).shape[dim]
    given = (start, end, step, size)
    if not all(value is None or isinstance(value, int) for value in given):
        return None
    first, last, step = slice(start, end, step).indices(size)
    bounded = (*arguments[:2], dim, first, max(first, last), step)
    return graph.call_function(aten.slice_scatter.default, bounded)


def _copy(graph: fx.Graph, arguments: tuple[Any, ...], node: fx.Node) -> fx.Node:
    """The source alone, as what it is copied into: no values of that are left."""
    value = value_of(node)
    converted = graph.call_function(
        aten._to_copy.default, (arguments[1],), {"dtype": value.dtype, "device": value.device}
    )
    if tuple(value_of(node.args[1]).shape) == tuple(value.shape):  # type: ignore[arg-type]
        return converted
    expanded = graph.call_function(aten.expand.default, (converted, list(value.shape)))
    # Memory of its own for each element, which may be written to where it is an output.
    return graph.call_function(
        aten.clone.default, (expanded,), {"memory_format": torch.contiguous_format}
    )


def _check(graph: fx.Graph, arguments: tuple[Any, ...], node: fx.Node) -> fx.Node:
    check: Any = node.target
    return graph.call_function(_hold_for_all, (check, *arguments))


def _hold_for_all(check: Any, condition: torch.Tensor, *message: str) -> None:
    """Check what has to hold of each example."""
    check(functorch.without_batches(condition).all(), *message)


def _as_strided(graph: fx.Graph, arguments: tuple[Any, ...], node: fx.Node) -> fx.Node | None:
    """A choice of elements by their number, where the unbatched tensor has no gaps in memory."""
    whole = value_of(node.args[0])  # type: ignore[arg-type]
    places = _places(graph, whole, arguments[1:])
    if places is None:
        return None
    flat = _in_memory(graph, arguments[0], whole)
    chosen = graph.call_function(aten.index_select.default, (flat, 0, places))
    return graph.call_function(aten.reshape.default, (chosen, arguments[1]))


def _as_strided_scatter(
    graph: fx.Graph, arguments: tuple[Any, ...], node: fx.Node
) -> fx.Node | None:
    """Elements replaced by their number, where the unbatched tensor has no gaps in memory."""
    whole = value_of(node.args[0])  # type: ignore[arg-type]
    places = _places(graph, whole, arguments[2:])
    if places is None:
        return None
    flat = _in_memory(graph, arguments[0], whole)
    source = graph.call_function(aten.reshape.default, (arguments[1], [-1]))
    replaced = graph.call_function(aten.index_put.default, (flat, [places], source))
    order = _memory_order(whole)
    sizes = [whole.shape[dim] for dim in order]
    ordered = graph.call_function(aten.reshape.default, (replaced, sizes))
    back = sorted(range(len(order)), key=order.__getitem__)
    return graph.call_function(aten.permute.default, (ordered, back))


def _memory_order(whole: torch.Tensor) -> list[int]:
    """The dimensions of a tensor in the order in which it lies; as they are if that is usual."""
    if whole.is_contiguous():
        return list(range(whole.dim()))
    return sorted(range(whole.dim()), key=lambda dim: -whole.stride(dim))


def _in_memory(graph: fx.Graph, tensor: fx.Node, whole: torch.Tensor) -> fx.Node:
    """All elements in a row, as they lie in the unbatched tensor."""
    order = _memory_order(whole)
    ordered = graph.call_function(aten.permute.default, (tensor, order))
    return graph.call_function(aten.reshape.default, (ordered, [-1]))


def _places(graph: fx.Graph, whole: torch.Tensor, geometry: tuple[Any, ...]) -> fx.Node | None:
    """Which elements a size, strides and an offset mean, known before any batch is.

    None if the tensor has gaps or they reach beyond it.
    """
    size, stride = geometry[0], geometry[1]
    given = geometry[2] if len(geometry) > 2 else None
    first = 0 if given is None else given - whole.storage_offset()
    last = first + sum((count - 1) * step for count, step in zip(size, stride, strict=True))
    dense = whole.is_contiguous() or is_dense(tuple(whole.shape), whole.stride())
    if not dense or 0 in size or first < 0 or last >= whole.numel():
        return None
    options = {"dtype": torch.int64, "device": whole.device}
    places = graph.call_function(aten.full.default, ([1], first), options)
    for count, step in zip(size, stride, strict=True):
        steps = graph.call_function(aten.arange.default, (count,), options)
        scaled = graph.call_function(aten.mul.Tensor, (steps, step))
        column = graph.call_function(aten.unsqueeze.default, (places, -1))
        both = graph.call_function(aten.add.Tensor, (column, scaled))
        places = graph.call_function(aten.reshape.default, (both, [-1]))
    return places


_REWRITES: dict[Any, Rewrite] = {
    aten.view.default: _view,
    aten.slice_scatter.default: _slice_scatter,
    aten.copy.default: _copy,
    aten._assert_async.default: _check,
    aten._assert_async.msg: _check,
    aten.as_strided.default: _as_strided,
    aten.as_strided_scatter.default: _as_strided_scatter,
}
