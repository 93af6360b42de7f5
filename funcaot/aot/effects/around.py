"""Wrappers around tensors with a history: ``made_again`` asks how the epilogue makes one.

A class may wrap a tensor that autograd knows without being differentiated itself: ``y.inner`` leads
to the leaves, though ``y`` doesn't. A graph's node has tensors of its own as results only, so the
wrapper is made around these, outside of the node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from funcaot._torch.tensors.sizes.ragged import number_of
from funcaot._torch.tensors.sizes.shapes import is_expression, value_at
from funcaot.aot.effects.effects import Output
from funcaot.aot.effects.jagged import Finder
from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.subclasses.carried import Carried, origins_of
from funcaot.aot.subclasses.structure import Structure, paths_inside
from funcaot.aot.tape.wrappers import is_wrapper

__all__ = ["around_recorded", "holds_recorded"]


@dataclass(frozen=True, eq=False)
class Around:
    """Makes a wrapper around tensors as autograd knows them.

    Attributes:
        structure: What it consists of.
        numbers: Its sizes, then its strides.
        carried: The objects among its metadata that inputs bring.
        sizes: The open sizes of the call, if there are any.
    """

    structure: Structure
    numbers: tuple[tuple[Any, ...], tuple[Any, ...]]
    carried: Carried | None
    sizes: Mapping[Any, int] | None = None

    def at_sizes(self, sizes: Mapping[Any, int]) -> Around:
        """The same for a call of some open sizes."""
        return replace(self, sizes=dict(sizes))

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The wrapper of its parts, after which come inputs that bring objects."""
        count = len(self.structure.names)
        parts, given, again = tensors[:count], tensors[count:], {}
        shape, stride = (tuple(map(self._number, each)) for each in self.numbers)
        carried = self.carried
        if carried is None:
            return self.structure.made_of(parts, shape, stride)
        bring = lambda pair: carried(pair, given, again)  # noqa: E731 (of this call)
        return self.structure.made_of(parts, shape, stride, bring)

    def _number(self, number: Any) -> Any:
        found = number_of(number)
        return value_at(found, self.sizes or {}) if is_expression(found) else number

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"{self.structure.kind.__name__}()"


def around_recorded(finder: Finder, value: torch.Tensor) -> Output | None:
    """How the epilogue makes a wrapper that holds what autograd recorded in the function.

    Args:
        finder: Finds where outputs come from.
        value: What the function returns.

    Returns:
        None for anything else.
    """
    slots = [slot.tensor for slot in finder.capture.slots]
    if not holds_recorded(value, [*slots, *(part for _, part in finder.wrapped.parts)]):
        return None
    finder.wrapped.refuse_shared(value)
    return Output(origin=_origin(finder, value))


def holds_recorded(value: Any, known: Sequence[torch.Tensor]) -> bool:
    """Whether a value is a wrapper without a gradient around something that has one.

    Args:
        value: What the function returns.
        known: What the function was given, and what is inside.
    """
    if not is_wrapper(value) or value.requires_grad or value.layout is not torch.strided:
        return False
    if value._base is not None:
        return False
    recorded = [part for _, part in paths_inside(value) if part.grad_fn is not None]
    return any(not any(part is each for each in known) for part in recorded)


def _origin(finder: Finder, value: torch.Tensor) -> Origin:
    """How a tensor is made that is inside of such a wrapper, or the wrapper."""
    inside = any(part is value for _, part in finder.wrapped.parts)
    if inside or not is_wrapper(value) or any(value is s.tensor for s in finder.capture.slots):
        return finder.origin(value)
    structure = spec_of(value).structure
    if value.requires_grad or structure is None:
        return Origin(result=finder.results.of(value))
    known = finder.origins.get(id(value))
    if known is None:
        slots = [s.tensor for s in finder.capture.slots if is_wrapper(s.tensor)]
        first, *others = [_origin(finder, part) for part in structure.parts(value)]
        carried = Carried.by(structure, origins_of(enumerate(slots)))
        view: Any = Around(structure, (tuple(value.shape), tuple(value.stride())), carried)
        beside = (*others, *map(finder.origin, slots))
        known = finder.origins[id(value)] = Origin(parent=first, view=view, beside=beside)
    return known
