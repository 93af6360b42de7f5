"""Gradients of slices that don't overlap are joined by ``cat``: `lower` writes graphs so.

The gradient of a slice is as large as what was sliced, and zero elsewhere. Autograd adds those of
all slices of a tensor. Where they don't overlap, each element of the sum is an element of one
gradient and zeros. Compilers would read every gradient under a mask for every element, and write
code for that; joined they are copied.

Note [Signs of zero]: a sum with zeros has no negative zero, so zero is added to what is joined.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.sizes import shapes
from funcaot.aot.graph import graphs

__all__ = ["joined_slices"]

aten = torch.ops.aten

# Shorter runs of memory are read under a mask by vectors, which copies of them wouldn't be.
_RUN = 16


@dataclass(frozen=True)
class _Piece:
    """What one gradient gives of a sum.

    Attributes:
        start: Its first element along the dimension that was sliced.
        end: The element after its last one.
        gradient: The node of the gradient.
    """

    start: int
    end: int
    gradient: fx.Node

    @property
    def length(self) -> int:
        """How many elements it gives along the dimension."""
        return self.end - self.start


@dataclass(frozen=True)
class _Sum:
    """A sum of gradients of slices that don't overlap, and of at most one other tensor.

    Attributes:
        nodes: What is computed for it; nothing else reads these, but for the last.
        pieces: What the gradients give, in order.
        like: A node of the sum's own size, a gradient with zeros around it; None without pieces.
        other: The other tensor.
        begins_with_other: Whether it is added to from the left, so that the sum is laid out as it.
    """

    nodes: tuple[fx.Node, ...] = ()
    pieces: tuple[_Piece, ...] = ()
    like: fx.Node | None = None
    other: fx.Node | None = None
    begins_with_other: bool = False

    def plus(self, more: _Sum, node: fx.Node) -> _Sum | None:
        """The node that adds both, if it is a sum of this kind."""
        pieces = sorted(self.pieces + more.pieces, key=lambda piece: piece.start)
        if (self.other and more.other) or any(a.end > b.start for a, b in pairwise(pieces)):
            return None
        like = [of.like for of in (self, more) if of.like is not None]
        if not like or len({_dim(of) for of in like}) > 1:
            return None
        nodes = (*self.nodes, *more.nodes, node)
        other = self.other or more.other
        return _Sum(nodes, tuple(pieces), like[0], other, self.begins_with_other)

    def is_worth_it(self) -> bool:
        """Whether most of the sum is copied, in runs that are long enough."""
        if len(self.pieces) < 2 or self.like is None:
            return False
        size, *inner = _sizes(self.like)[_dim(self.like) :]
        run = prod(size for size in inner if isinstance(size, int))
        lengths = [piece.length for piece in self.pieces]
        return 2 * sum(lengths) >= size and min(lengths) * run >= _RUN


def joined_slices(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with such sums joined.

    Args:
        module: Functional graph as captured, with values of nodes; it stays as it is.

    Returns:
        The same module if there are none.
    """
    if not any(node.target is aten.slice_backward.default for node in module.graph.nodes):
        return module
    made = fx.GraphModule(module, copy.deepcopy(module.graph))
    sums = [found for found in _largest(made.graph).values() if found.is_worth_it()]
    for found in reversed(sums):  # one may be a term, or a gradient, of a later one
        _join(made.graph, found)
    return made if sums else module


def _largest(graph: fx.Graph) -> dict[fx.Node, _Sum]:
    """The sums in a graph that aren't terms of another one."""
    found: dict[fx.Node, _Sum] = {}
    for node in graph.nodes:
        if node.target is aten.slice_backward.default:
            piece = _piece(node)
            if piece is not None:
                found[node] = _Sum((node,), (piece,), node)
        elif node.target is aten.add.Tensor and not node.kwargs and _is_of_its_terms(node):
            one, other = (
                (found.get(term) if len(term.users) == 1 else None)
                or _Sum(other=term, begins_with_other=True)
                for term in node.all_input_nodes
            )
            both = one.plus(other, node)
            if both is not None:
                for term in node.all_input_nodes:
                    if term is not both.other:
                        found.pop(term, None)
                found[node] = both
    return found


def _is_of_its_terms(node: fx.Node) -> bool:
    """Whether an addition has two tensors of its own size, dtype, device and kind of layout."""
    values = [graphs.value_of(of) for of in (node, *node.all_input_nodes)]
    if len(values) != 3 or not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return len({(_expressions(of.shape), of.dtype, of.device, of.layout) for of in values}) == 1


def _expressions(shape: Any) -> tuple[Any, ...]:
    """Sizes that can be compared without deciding about open ones."""
    return tuple(map(shapes.expression_of, shape))


def _sizes(node: fx.Node) -> list[Any]:
    """Sizes of a gradient with zeros around it, those that are open as nodes."""
    return list(node.args[1])  # type: ignore[arg-type]


def _dim(node: fx.Node) -> int:
    """The dimension that was sliced, counted from the first."""
    return node.args[2] % len(_sizes(node))  # type: ignore[operator]


def _piece(node: fx.Node) -> _Piece | None:
    """What a gradient with zeros around it gives; None where that isn't known, or with steps."""
    gradient, _, _, start, end, step = node.args
    size = _sizes(node)[_dim(node)]
    numbers = (size, start, end)
    if step != 1 or not all(type(number) is int for number in numbers) or _any_layout(node):
        return None
    first, after, _ = slice(start, end).indices(size)
    return _Piece(first, after, gradient) if after > first else None  # type: ignore[arg-type]


def _any_layout(node: fx.Node) -> bool:
    """Whether joined gradients could lie in memory otherwise than their sum does."""
    gradient = graphs.value_of(node.args[0])  # type: ignore[arg-type]
    numbers = (*gradient.shape, *gradient.stride())
    known = all(type(number) is int for number in numbers)
    return gradient.dim() in (4, 5) and not (known and gradient.is_contiguous())


def _join(graph: fx.Graph, found: _Sum) -> None:
    """Put what is joined in the place of a sum."""
    assert found.like is not None
    node, dim = found.nodes[-1], _dim(found.like)
    with graph.inserting_before(node):
        parts = _with_zeros(graph, found)
        joined = graph.call_function(aten.cat.default, (parts, dim))
        made = graph.call_function(aten.add.Scalar, (joined, 0))
        for new, old in ((joined, found.nodes[0]), (made, found.nodes[1])):
            new.meta.update(old.meta, val=graphs.value_of(old))
        if found.other is not None:
            terms = (found.other, made) if found.begins_with_other else (made, found.other)
            made = graph.call_function(aten.add.Tensor, terms)
            made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    for old in reversed(found.nodes):
        graph.erase_node(old)


def _with_zeros(graph: fx.Graph, found: _Sum) -> list[fx.Node]:
    """The gradients of a sum, and zeros where there are none."""
    assert found.like is not None
    sizes, dim, value = _sizes(found.like), _dim(found.like), graphs.value_of(found.like)
    parts: list[fx.Node] = []
    end = 0
    for start, after, gradient in (
        *((piece.start, piece.end, piece.gradient) for piece in found.pieces),
        (sizes[dim], sizes[dim], None),
    ):
        if start > end:
            shape = [*sizes[:dim], start - end, *sizes[dim + 1 :]]
            options = {"dtype": value.dtype, "device": value.device}
            zeros = graph.call_function(aten.full.default, (shape, 0), options)
            lengths = [*value.shape[:dim], start - end, *value.shape[dim + 1 :]]
            zeros.meta["val"] = value.new_empty(lengths)
            parts.append(zeros)
        if gradient is not None:
            parts.append(gradient)
        end = after
    return parts
