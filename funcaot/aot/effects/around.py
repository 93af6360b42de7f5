"""Wrappers that no graph gives: ``made_again`` asks how the epilogue makes one.

A class may wrap a tensor that autograd knows without being differentiated itself: ``y.inner`` leads
to the leaves, though ``y`` doesn't. Or it wraps an argument that is written to, or is a leaf. A
graph's node has new tensors as results only, so the wrapper is made around these, outside of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from funcaot._torch.tensors.sizes.ragged import number_of
from funcaot._torch.tensors.sizes.shapes import is_expression, value_at
from funcaot.aot.effects.jagged import Finder
from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.subclasses.carried import Carried, origins_of
from funcaot.aot.subclasses.structure import Structure, paths_inside
from funcaot.aot.tape.wrappers import is_wrapper

__all__ = ["holds_recorded", "keep_histories", "made_around"]


@dataclass(frozen=True, eq=False)
class Around:
    """Makes a wrapper around tensors as autograd knows them.

    Attributes:
        structure: What it consists of.
        numbers: Its sizes, then its strides.
        carried: The objects among its metadata that inputs bring.
        leaf: Whether it is a leaf that requires grad.
        sizes: The open sizes of the call, if there are any.
    """

    structure: Structure
    numbers: tuple[tuple[Any, ...], tuple[Any, ...]]
    carried: Carried | None
    leaf: bool
    sizes: Mapping[Any, int] | None = None

    def at_sizes(self, sizes: Mapping[Any, int]) -> Around:
        """The same for a call of some open sizes."""
        return replace(self, sizes=dict(sizes))

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The wrapper of its parts, after which come inputs that bring objects."""
        count = len(self.structure.names)
        parts, given, again = tensors[:count], tensors[count:], {}
        shape, stride = (tuple(map(self._number, each)) for each in self.numbers)
        bring = None
        if self.carried is not None:
            bring = partial(self.carried, given=given, again=again)
        made = self.structure.made_of(parts, shape, stride, bring)
        return made.requires_grad_() if self.leaf else made

    def _number(self, number: Any) -> Any:
        found = number_of(number)
        return value_at(found, self.sizes or {}) if is_expression(found) else number

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"{self.structure.kind.__name__}()"


def made_around(finder: Finder, value: torch.Tensor) -> Origin | None:
    """How the epilogue makes a wrapper that no graph's node can have as its result.

    Args:
        finder: Finds where outputs come from.
        value: What the function returns.

    Returns:
        None for anything else.
    """
    if not finder.wrapped.is_made_around(value):
        return keep_histories(finder, value)
    finder.wrapped.refuse_shared(value)
    return _origin(finder, value)


def keep_histories(finder: Finder, value: torch.Tensor) -> None:
    """Let what is inside of a wrapper have its own history: as a result of its own it gets it."""
    for part in _recorded_by_itself(finder, value):
        if not part.is_leaf:
            finder.results.of(part)
        elif not part._is_view() and finder.capture.tape.node_of(part) is not None:
            finder.refuse_used_leaf(part)


def _recorded_by_itself(finder: Finder, value: torch.Tensor) -> list[torch.Tensor]:
    """What is inside of a wrapper with a history and has another one."""
    if not is_wrapper(value) or not value.requires_grad or value.is_leaf:
        return []
    if any(value is slot.tensor for slot in finder.capture.slots):
        return []
    given = [*(s.tensor for s in finder.capture.slots), *(part for _, part in finder.wrapped.parts)]
    parts = [part for _, part in paths_inside(value) if part.requires_grad]
    return [part for part in parts if not (part.is_leaf and any(part is one for one in given))]


def is_own_leaf(value: torch.Tensor) -> bool:
    """Whether it is a leaf that requires grad."""
    return value.requires_grad and value.is_leaf


def holds_recorded(value: torch.Tensor, known: Sequence[torch.Tensor]) -> bool:
    """Whether a wrapper without a gradient is around something that has one, or is a leaf.

    Args:
        value: What the function returns, which is no input.
        known: What the function was given, and what is inside.
    """
    if value.requires_grad:
        return value.is_leaf
    graded = [part for _, part in paths_inside(value) if part.requires_grad]
    # A leaf passes through the node as itself; what leads to one comes in without its history.
    return any(not part.is_leaf or not any(part is each for each in known) for part in graded)


def _origin(finder: Finder, value: torch.Tensor) -> Origin:
    """How a tensor is made that is inside of such a wrapper, or the wrapper."""
    inside = any(part is value for _, part in finder.wrapped.parts)
    if inside or not is_wrapper(value) or any(value is s.tensor for s in finder.capture.slots):
        return finder.origin(value)
    structure = spec_of(value).structure
    leaf = is_own_leaf(value)
    if (value.requires_grad and not leaf) or structure is None:
        return Origin(result=finder.results.of(value))
    if leaf:
        finder.refuse_used_leaf(value)
    known = finder.origins.get(id(value))
    if known is None:
        slots = [s.tensor for s in finder.capture.slots if is_wrapper(s.tensor)]
        first, *others = [_origin(finder, part) for part in structure.parts(value)]
        carried = Carried.by(structure, origins_of(enumerate(slots)))
        numbers = tuple(value.shape), tuple(value.stride())
        view: Any = Around(structure, numbers, carried, leaf)
        beside = (*others, *map(finder.origin, slots))
        known = finder.origins[id(value)] = Origin(parent=first, view=view, beside=beside)
    return known
