"""Smaller things to keep: booleans that say as much as the floats that autograd saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot._torch.tensors.numbered_draws import DRAWN
from funcaot._torch.tracing import fake_values
from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import is_dense, spec_of
from funcaot.aot.tape.memory import views

aten = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Mask:
    """A condition on each element of a saved tensor, all that a backward wants to know of it.

    Attributes:
        kind: ``"blocked"`` where no gradient passes, ``"positive"`` where it passes unscaled.
        bounds: Values that the elements are compared with.
    """

    kind: str
    bounds: tuple[float, ...]


# What is demanded by each autograd node that only looks where its saved tensor lies.
_DEMANDS: dict[str, Callable[[Any], Mask]] = {
    "ReluBackward0": lambda function: Mask("blocked", (0,)),
    "ThresholdBackward0": lambda function: Mask("blocked", (function._saved_threshold,)),
    "ThresholdBackwardBackward0": lambda function: Mask("blocked", (function._saved_threshold,)),
    "LeakyReluBackward0": lambda function: Mask("positive", (0,)),
    "LeakyReluBackwardBackward0": lambda function: Mask("positive", (0,)),
    "HardtanhBackward0": lambda function: Mask(
        "blocked", (function._saved_min_val, function._saved_max_val)
    ),
    "HardtanhBackwardBackward0": lambda function: Mask(
        "blocked", (function._saved_min_val, function._saved_max_val)
    ),
}


def mask_of(function: Any) -> Mask | None:
    """What an autograd node asks of the tensor that it saved, None for the tensor itself."""
    make = _DEMANDS.get(function.name())
    return None if make is None else make(function)


def mask_node(node: fx.Node, mask: Mask) -> fx.Node | None:
    """The node that computes a mask, made right after its tensor's at first use.

    Returns:
        The node, or None if the mask is no smaller than the tensor.
    """
    value = graphs.value_of(node)
    if not isinstance(value, torch.Tensor) or value.element_size() < 2:
        return None
    made: dict[Mask, fx.Node] = node.meta.setdefault("masks", {})
    if mask not in made:
        made[mask] = _make_mask(node, mask)
        made[mask].meta["mask_of"] = node
        graphs.view_root(node).meta.setdefault("masked views", []).append(node)
    return made[mask]


def _found_mask(saved: fx.Node, mask: Mask) -> fx.Node | None:
    """The mask of a saved tensor, which may be a view that is made anew whenever it is read."""
    saved = graphs.without_aliases(saved)
    for node in (saved, *graphs.view_root(saved).meta.get("masked views", ())):
        found = node.meta.get("masks", {}).get(mask)
        if found is not None and (node is saved or _is_same(node, saved)):
            return found
    return None


def _is_same(node: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes are made of one by the same views."""
    steps = views.chain(node, other)
    return steps is not None and all(step.is_alias for step in steps)


def _make_mask(node: fx.Node, mask: Mask) -> fx.Node:
    graph, after = node.graph, node

    def add(target: Any, *arguments: Any) -> fx.Node:
        nonlocal after
        with graph.inserting_after(after):
            after = graph.call_function(target, arguments)
        after.meta = _as_booleans(node)
        return after

    if mask.kind == "positive":
        return add(aten.gt.Scalar, node, mask.bounds[0])
    below = add(aten.le.Scalar, node, mask.bounds[0])
    if len(mask.bounds) == 1:
        return below
    return add(aten.logical_or.default, below, add(aten.ge.Scalar, node, mask.bounds[1]))


def _as_booleans(node: fx.Node) -> dict[str, Any]:
    """The description of a node, for booleans of its shape and layout."""
    meta = {**node.meta, "val": fake_values.fake_like(graphs.value_of(node), torch.bool)}
    meta.pop("masks", None)
    meta.pop("masked views", None)
    meta.pop("mask_of", None)
    return meta


def use_kept_masks(graph: fx.Graph, since: fx.Node, kept: Iterable[fx.Node]) -> None:
    """Make a newly traced backward read the masks that its forward kept.

    Args:
        graph: The tape's graph.
        since: The last node before the new ones.
        kept: The residuals.
    """
    available = set(kept)
    node = since.next
    while node.op != "root":
        following = node.next
        rewrite = _BACKWARDS.get(node.target) if node.op == "call_function" else None
        if rewrite is not None:
            rewrite(node, available)
        node = following


def _blocked(node: fx.Node, mask: Mask, kept: set[fx.Node]) -> None:
    gradient, saved = node.args[:2]
    found = _found_mask(saved, mask)  # type: ignore[arg-type]
    if found in kept:
        node.target, node.args = aten.where.ScalarSelf, (found, 0, gradient)


def _threshold_backward(node: fx.Node, kept: set[fx.Node]) -> None:
    _blocked(node, Mask("blocked", (node.args[2],)), kept)  # type: ignore[arg-type]


def _hardtanh_backward(node: fx.Node, kept: set[fx.Node]) -> None:
    _blocked(node, Mask("blocked", (node.args[2], node.args[3])), kept)  # type: ignore[arg-type]


def _leaky_relu_backward(node: fx.Node, kept: set[fx.Node]) -> None:
    gradient, saved, slope, is_result = node.args
    found = _found_mask(saved, Mask("positive", (0,)))  # type: ignore[arg-type]
    if found not in kept or is_result:
        return
    with node.graph.inserting_before(node):
        scaled = node.graph.call_function(aten.mul.Tensor, (gradient, slope))
    scaled.meta = dict(node.meta)
    node.target, node.args = aten.where.self, (found, gradient, scaled)


_BACKWARDS: dict[Any, Callable[[fx.Node, set[fx.Node]], None]] = {
    aten.threshold_backward.default: _threshold_backward,
    aten.hardtanh_backward.default: _hardtanh_backward,
    aten.leaky_relu_backward.default: _leaky_relu_backward,
}


def _draws_booleans(node: fx.Node) -> bool:
    if node.target is DRAWN:
        return node.args[1] == "bernoulli_"
    return node.target in (aten.bernoulli.p, aten.bernoulli.default)


def compact_random(node: fx.Node) -> fx.Node | None:
    """Store zeros and ones as booleans: redefine a drawn tensor as a cast of them.

    The node stays what everything else refers to; only how it is computed changes.

    Returns:
        The node of the booleans, or None if the tensor holds something else.
    """
    if not _draws_booleans(node) or "booleans" in node.meta:
        return None
    value = graphs.value_of(node)
    spec = spec_of(value)
    if value.element_size() < 2 or not is_dense(spec.shape, spec.stride):
        return None
    graph = node.graph
    with graph.inserting_before(node):
        op: Any = node.target
        drawn = graph.call_function(op, node.args, node.kwargs)
        drawn.meta = {**node.meta, "booleans": True}
        booleans = graph.call_function(aten._to_copy.default, (drawn,), {"dtype": torch.bool})
    # A checkpointed region keeps what it drew.
    booleans.meta = {**_as_booleans(node), "region": None, "drawn": True}
    node.target, node.args = aten._to_copy.default, (booleans,)
    node.kwargs = {"dtype": value.dtype}
    return booleans
