"""Replaying views outside of a graph, with ordinary ops, at whatever level the base is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeAlias

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tensors.sizes import ragged, shapes
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import is_dense
from funcaot.aot.subclasses.nodes import is_part
from funcaot.aot.tape.memory.strided_views import extent

aten = torch.ops.aten


@dataclass(frozen=True)
class ViewStep:
    """One view op: its target, the arguments after the source, and which result if several."""

    target: Any
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]
    item: int | None = None

    @property
    def is_detach(self) -> bool:
        """Whether autograd's graph ends here, so that the result is no view for autograd."""
        return self.target is aten.detach.default

    @property
    def is_alias(self) -> bool:
        """Whether the result is the source with another place in autograd's graph."""
        return self.target in (aten.detach.default, aten.alias.default)

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        """Apply the op to its source."""
        result = self.target(source, *self.arguments, **dict(self.keywords))
        return result if self.item is None else result[self.item]

    def __str__(self) -> str:
        """``slice(0, 1, 3)`` style."""
        name = self.target._schema.name.removeprefix("aten::")
        text = f"{name}({', '.join(map(str, self.arguments))})"
        return text if self.item is None else f"{text}[{self.item}]"


# A new object with nothing changed: what ``x[...]`` or ``x.view_as(x)`` is.
SAME = ViewStep(aten.alias.default, (), ())
# The same memory, of which autograd knows nothing but how often it was written to.
DETACHED = ViewStep(aten.detach.default, (), ())


@dataclass(frozen=True)
class StridedStep:
    """``as_strided`` with the offset counted from the source's own."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    is_alias = False
    is_detach = False

    def __call__(self, source: torch.Tensor) -> torch.Tensor:
        """Make the view."""
        return source.as_strided(self.shape, self.stride, source.storage_offset() + self.offset)

    def stays_in(self, shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
        """Whether a source of some shape and strides surely has all elements of the view."""
        if not all(isinstance(size, int) for size in (*shape, *stride, *self.shape, *self.stride)):
            return False
        reach = self.offset + extent(self.shape, self.stride)
        return is_dense(shape, stride) and self.offset >= 0 and reach <= extent(shape, stride)

    def __str__(self) -> str:
        """``as_strided((2,), (1,), +3)`` style."""
        return f"as_strided({self.shape}, {self.stride}, {self.offset:+d})"


Steps: TypeAlias = tuple[ViewStep | StridedStep, ...]


@dataclass(frozen=True)
class View:
    """A chain of view ops.

    Attributes:
        steps: The ops, first to last.
        recorded: Whether autograd sees the chain: the grad mode in which it runs.
        several: Whether it is one of several results of an op, for autograd's checks.
        from_no_grad: Whether it sees the chain as one that starts at a view made in no_grad.
    """

    steps: Steps
    recorded: bool
    from_no_grad: bool = False
    several: bool = False

    @cached_property
    def together(self) -> View | None:
        """All results of the last op, if that has several; else None."""
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, ViewStep) or last.item is None:
            return None
        return replace(self, steps=(*self.steps[:-1], replace(last, item=None)))

    @property
    def item(self) -> int:
        """Which of the results of the last op it is."""
        last = self.steps[-1]
        return (last.item or 0) if isinstance(last, ViewStep) else 0

    @property
    def is_alias(self) -> bool:
        """Whether it is a new object with nothing changed, as autograd sees it too."""
        usual = self.recorded and not (self.from_no_grad or self.several)
        return usual and all(step.is_alias and not step.is_detach for step in self.steps)

    def __call__(self, base: torch.Tensor) -> Any:
        """Apply the chain."""
        if self.from_no_grad:
            with torch.no_grad():
                base = SAME(base)
            with torch.enable_grad():
                return self._replay(base)
        if self.recorded == torch.is_grad_enabled():
            return self._replay(base)
        with torch.set_grad_enabled(self.recorded):
            return self._replay(base)

    def _replay(self, base: torch.Tensor) -> Any:
        made: Any = base
        for step in self.steps:
            made = step(made)
        for piece in made if isinstance(made, list | tuple) else (made,):
            if self.several and piece._is_view():
                autograd.set_creation_meta(piece, autograd.CreationMeta.MULTI_OUTPUT_NODE)
        return made

    def __str__(self) -> str:
        """``t().slice(0, 1, 3)`` style."""
        return ".".join(map(str, self.steps)) + ("" if self.recorded else " (no_grad)")


def chain(base: fx.Node, result: fx.Node) -> tuple[ViewStep, ...] | None:
    """The view ops that lead from one node to another, or None if there is no such chain.

    The two may have been made apart from the same node: then the steps to the base must be the
    first steps to the result.
    """
    root = graphs.view_root(base)
    if graphs.view_root(result) is not root:
        return None
    to_base, to_result = _path(root, base), _path(root, result, stop=base)
    if to_base is None or to_result is None:
        return None
    steps, met_base = to_result
    return steps if met_base else _remainder(to_base[0], steps)


def shown_from(node: fx.Node) -> tuple[fx.Node, View] | None:
    """The node whose memory a node shows, and the view that shows it to a wrapper's class.

    None for what shows its own, and where open sizes decide what is seen. A class makes wrappers
    below autograd, so nothing of the view is recorded but that of integers.
    """
    root, value = node, graphs.value_of(node)
    while not is_part(root) and (source := graphs.view_source(root)) is not None:
        root = source
    if root is node or not isinstance(value, torch.Tensor):
        return None
    whole = graphs.value_of(root)
    if type(whole) is not type(value) or whole.layout is not torch.strided:
        return None
    path = _path(root, node)
    steps = None if path is None else path[0]
    if _place(whole) == _place(value):
        alone = any(step.is_detach for step in steps or ())
        steps = (DETACHED if alone and value.is_floating_point() else SAME,)
    elif steps is None or not all(map(_is_closed, steps)):
        return None
    return root, View(steps, recorded=not value.is_floating_point())


def _place(value: torch.Tensor) -> tuple[Any, ...]:
    """What is seen of a storage, and how."""
    numbers = ragged.numbers_of((*value.shape, *value.stride(), value.storage_offset()))
    return value.dtype, value.is_conj(), value.is_neg(), *numbers


def _is_closed(step: ViewStep) -> bool:
    """Whether a step says the same in every call."""
    kinds = (int, float, bool, type(None), torch.dtype)
    values = tree_flatten((step.arguments, step.keywords))[0]
    return all(isinstance(value, kinds) for value in values)


def _path(
    root: fx.Node, result: fx.Node, stop: fx.Node | None = None
) -> tuple[tuple[ViewStep, ...], bool] | None:
    """Steps from a node, or from ``stop`` if it is on the way, and whether it is."""
    steps: list[ViewStep] = []
    node = result
    while node is not root and node is not stop:
        item = None
        op: Any = node
        if not graphs.is_view(node) and graphs.view_source(node) is not None:
            item = int(node.args[1])  # type: ignore[arg-type]
            op = node.args[0]
        source = graphs.view_source(op)
        if source is None or any(map(_is_tensor_node, op.args[1:])):
            return None
        arguments, keywords = op.args[1:], tuple(op.kwargs.items())
        if len(op.all_input_nodes) > 1:
            arguments, keywords = fx.map_arg((arguments, keywords), _open_size)
        steps.append(ViewStep(op.target, tuple(arguments), tuple(keywords), item))
        node = source
    return tuple(reversed(steps)), node is stop


def _is_tensor_node(value: Any) -> bool:
    return isinstance(value, fx.Node) and not graphs.is_size(value)


def _open_size(node: fx.Node) -> Any:
    """A size that is open, as an expression; calls put numbers in its place."""
    return shapes.expression_of(graphs.value_of(node))


def _remainder(
    first: tuple[ViewStep, ...], steps: tuple[ViewStep, ...]
) -> tuple[ViewStep, ...] | None:
    """What follows in ``steps`` after the steps in ``first``, whatever aliases are in between."""
    position = 0
    for wanted in first:
        if wanted.is_alias:
            position += position < len(steps) and steps[position] == wanted
            continue
        while position < len(steps) and steps[position].is_alias:
            position += 1
        if position == len(steps) or steps[position] != wanted:
            return None
        position += 1
    return steps[position:]


def strided(base: torch.Tensor, view: torch.Tensor) -> tuple[StridedStep, ...]:
    """The one step that makes a view of a tensor out of anything that shares its storage."""
    offset = shapes.expression_of(view.storage_offset() - base.storage_offset())
    shape, stride = map(shapes.expression_of, view.shape), map(shapes.expression_of, view.stride())
    return (StridedStep(tuple(shape), tuple(stride), offset),)
