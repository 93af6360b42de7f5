"""Which views that are returned autograd takes for views of others that are; ``aliases`` asks.

``h = x.t()``, ``return h, h[0]``: both are views of ``x``, and a gradient by ``h[0]`` passes
through ``h``, where somebody may look at it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.autograd.nodes import has_grad_fn
from funcaot._torch.tensors.classes.own_functions import is_own_class
from funcaot._torch.tracing.own_classes import class_of
from funcaot.aot.tape.wrappers import is_wrapper

__all__ = ["named", "views_above", "whole_of"]


def whole_of(value: torch.Tensor) -> torch.Tensor:
    """The base of a view; itself if that is a wrapper, whose parts hold the memory."""
    return value if value._base is None or is_wrapper(value._base) else value._base


def views_above(outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> dict[int, torch.Tensor]:
    """For each view, by its id, the nearest other one that its gradient passes through."""
    found: dict[int, torch.Tensor] = {}
    for each in _alike(outputs, inputs):
        places = {(other.grad_fn, other.output_nr): other for other in each}
        for view in each:
            above = _next(view, places)
            if above is not None and above is not view:
                found[id(view)] = above
    return found


def named(outputs: Sequence[Any], above: Mapping[int, torch.Tensor]) -> set[int]:
    """The ids of tensors that are returned more than once, or that have views of their own."""
    returned = Counter(id(value) for value in outputs if isinstance(value, torch.Tensor))
    return {key for key, count in returned.items() if count > 1}.union(map(id, above.values()))


def _alike(outputs: Sequence[Any], inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Outputs that are views with a history, by the tensor that they are views of."""
    given = set(map(id, inputs))
    by_base: dict[int, dict[int, torch.Tensor]] = {}
    for value in outputs:
        is_view = isinstance(value, torch.Tensor) and value._is_view() and not is_wrapper(value)
        if is_view and id(value) not in given and not is_own_class(class_of(value)):
            by_base.setdefault(id(value._base), {})[id(value)] = value
    alike = [[*views.values()] for views in by_base.values() if len(views) > 1]
    return [[view for view in views if has_grad_fn(view)] for views in alike]


def _next(view: torch.Tensor, places: dict[tuple[Any, int], torch.Tensor]) -> torch.Tensor | None:
    """The first of some tensors that a gradient passes through, if there is one way only."""
    node: Any = view.grad_fn
    while node is not None and len(node.next_functions) == 1:
        edge = node.next_functions[0]
        if edge in places:
            return places[edge]
        node = edge[0]
    return None
