"""Indices with open numbers among them: ``x[n]``, ``x[:, n - 1] = 0``; each of them selects.

Torch would ask such a number for its value.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch

from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.handlers.python_values import assembled

__all__ = ["by_open_sizes"]


def by_open_sizes(call: Call, capture: InProgress) -> Any:
    """What is read or written by an index that a size is part of."""
    tensor, index, *value = call.args
    places = index if type(index) is tuple else (index,)
    places = tuple(_in_tensor(place, tensor) for place in places)
    open_lists = any(map(operator.is_not, places, index if type(index) is tuple else (index,)))
    if torch.SymInt not in map(type, places):
        return call.given((tensor, places, *value)) if open_lists else NotImplemented
    selected = _selection(tensor, places)
    if selected is None:
        return NotImplemented
    if value or selected.places is None:
        return call.given((selected.of(tensor), selected.rest, *value))
    return selected.read(tensor)


@dataclass(frozen=True)
class _Selection:
    """An index with open numbers in it.

    Attributes:
        by: The open numbers, each with the dimension that it selects from.
        rest: The index without them.
        places: The index with all of a dimension in place of each; None if tensors are in it,
            which torch looks at after numbers.
    """

    by: tuple[tuple[int, Any], ...]
    rest: Any
    places: tuple[Any, ...] | None

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the numbers select of a tensor."""
        for dim, number in reversed(self.by):
            tensor = tensor.select(dim, number)
        return tensor

    def read(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the whole index shows, with eager's strides: a new dimension has the next one's."""
        if self.places is None:
            return self.of(tensor)[self.rest]
        if any(place != slice(None) for place in self.places):
            shown = tensor[self.places]
            shift = _shifts(self.places, tensor.dim())
            return _Selection(tuple((shift[dim], n) for dim, n in self.by), ..., None).of(shown)
        return self.of(tensor)


def _selection(tensor: torch.Tensor, index: Any) -> _Selection | None:
    """An index of a tensor that has open numbers in it.

    Returns:
        None if the index has more than the tensor's dimensions, or what isn't known here in it.
    """
    places = index if type(index) is tuple else (index,)
    taken = [_dimensions(place) for place in places]
    if None in taken or sum(place is ... for place in places) > 1:
        return None
    missing = tensor.dim() - sum(filter(None, taken))
    if missing < 0:
        return None
    selected: list[tuple[int, Any]] = []
    dim = 0
    for place, count in zip(places, taken, strict=True):
        if type(place) is torch.SymInt:
            selected.append((dim, place))
        dim += missing if place is ... else count or 0
    rest = tuple(place for place in places if type(place) is not torch.SymInt) or ...
    shown = tuple(slice(None) if type(place) is torch.SymInt else place for place in places)
    tensors = any(isinstance(place, torch.Tensor) for place in places)
    return _Selection(tuple(selected), rest, None if tensors else shown)


def _shifts(places: tuple[Any, ...], dimensions: int) -> dict[int, int]:
    """Where the dimensions of a tensor are in what an index of numbers and slices shows of it."""
    missing = dimensions - sum(place is not None and place is not ... for place in places)
    shifts, source, result = {}, 0, 0
    for place in (*places, *([] if ... in places else [...])):
        if place is None:
            result += 1
        elif type(place) is int:
            source += 1
        else:
            for _ in range(missing if place is ... else 1):
                shifts[source] = result
                source, result = source + 1, result + 1
    return shifts


def _in_tensor(place: Any, tensor: torch.Tensor) -> Any:
    """A list of whole numbers, some of them open, as torch makes a tensor of it."""
    if type(place) is not list or torch.SymInt not in map(type, place):
        return place
    if not {int, torch.SymInt}.issuperset(map(type, place)):
        return place
    return assembled(place, device=tensor.device)


def _dimensions(place: Any) -> int | None:
    """How many of a tensor's dimensions a part of an index is about; None if that isn't known."""
    if place is None or place is ...:
        return 0
    if isinstance(place, torch.Tensor):
        return place.dim() if place.dtype in (torch.bool, torch.uint8) else 1
    return 1 if type(place) in (int, slice, torch.SymInt) else None
