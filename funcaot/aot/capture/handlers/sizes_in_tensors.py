"""Tensors of one whole number that are given as sizes: ``torch.zeros(count, 3)``, ``x[:count]``.

Torch reads such a number in C++. Read here it is one that the call brings, as ``count.item()`` is,
so that it stays open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.handlers.python_values import known_number, whole_number

__all__ = ["INDEXING", "SIZED", "is_size", "with_numbers", "with_numbers_in_slices"]


class _Sizes(NamedTuple):
    """Which arguments are sizes: those from one position to before another, and some keywords."""

    first: int
    end: int | None
    keywords: tuple[str, ...]


_ALL = _Sizes(0, None, ("size",))
_NEW = _Sizes(1, None, ("size",))
SIZED = {
    **dict.fromkeys(("zeros", "ones", "empty", "rand", "randn"), _ALL),
    **dict.fromkeys(("new_zeros", "new_ones", "new_empty"), _NEW),
    **dict.fromkeys(("reshape", "view"), _Sizes(1, None, ("shape", "size"))),
    **dict.fromkeys(("expand", "broadcast_to"), _Sizes(1, None, ("size", "sizes"))),
    **dict.fromkeys(("repeat", "tile"), _Sizes(1, None, ("repeats", "dims"))),
    "full": _Sizes(0, 1, ("size",)),
    "new_full": _Sizes(1, 2, ("size",)),
    "arange": _Sizes(0, None, ("start", "end", "step")),
    "eye": _Sizes(0, 2, ("n", "m")),
    **dict.fromkeys(("linspace", "logspace"), _Sizes(2, 3, ("steps",))),
    "narrow": _Sizes(2, None, ("start", "length")),
    "topk": _Sizes(1, 2, ("k",)),
    "pad": _Sizes(1, 2, ("pad",)),
}
# What else takes sizes and places, which only numbers are.
_PLACES = {
    **dict.fromkeys(("__getitem__", "__setitem__"), _Sizes(1, 2, ())),
    **dict.fromkeys(("select", "select_scatter"), _Sizes(2, None, ("index",))),
    "roll": _Sizes(1, 2, ("shifts",)),
    **dict.fromkeys(("tril", "triu"), _Sizes(1, None, ("diagonal",))),
    "diagonal": _Sizes(1, 2, ("offset",)),
    "one_hot": _Sizes(1, None, ("num_classes",)),
    "split": _Sizes(1, 2, ("split_size", "split_size_or_sections")),
    "unfold": _Sizes(2, None, ("size", "step")),
}
INDEXING = (torch.Tensor.__getitem__, torch.Tensor.__setitem__)


def is_size(name: str, place: int | str) -> bool:
    """Whether an argument of a function is a size or a place.

    Args:
        name: The function's name.
        place: The argument's position, or its keyword.
    """
    sizes = SIZED.get(name) or _PLACES.get(name)
    if sizes is None or isinstance(place, str):
        return sizes is not None and place in sizes.keywords
    return place >= sizes.first and (sizes.end is None or place < sizes.end)


def with_numbers(call: Call, capture: InProgress) -> Any:
    """The call with numbers in place of tensors that are sizes."""
    sizes = SIZED[call.name]
    args = tuple(
        _number(arg, capture) if is_size(call.name, place) else arg
        for place, arg in enumerate(call.args)
    )
    kwargs = {
        name: _number(arg, capture) if name in sizes.keywords else arg
        for name, arg in call.kwargs.items()
    }
    same = all(map(_is, (*args, *kwargs.values()), (*call.args, *call.kwargs.values())))
    return NotImplemented if same else replace(call, args=args, kwargs=kwargs)


def with_numbers_in_slices(call: Call, capture: InProgress) -> Any:
    """An index with numbers in place of tensors that begin or end its slices.

    A tensor of one number that is made of numbers selects as that number does.
    """
    source, key, *value = call.args
    parts = key if type(key) is tuple else (key,)
    found = tuple(_part(part, capture) for part in parts)
    if all(map(_is, found, parts)):
        return NotImplemented
    return call.given((source, found if type(key) is tuple else found[0], *value))


def _part(part: Any, capture: InProgress) -> Any:
    if isinstance(part, slice):
        return _slice(part, capture)
    if not isinstance(part, torch.Tensor) or part.dim():
        return part
    known = known_number(part, capture)
    return part if known is None else known


def _slice(part: slice, capture: InProgress) -> slice:
    ends = (part.start, part.stop, part.step)
    found = tuple(_number(end, capture) for end in ends)
    return part if all(map(_is, found, ends)) else slice(*found)


def _number(given: Any, capture: InProgress) -> Any:
    """The number in a tensor, also in a list or tuple of sizes; anything else as it is."""
    if isinstance(given, (list, tuple)):
        found = [_number(each, capture) for each in given]
        return given if all(map(_is, found, given)) else tuple(found)
    if not isinstance(given, torch.Tensor) or given.dim():
        return given
    number = whole_number(given, capture)
    return given if number is NotImplemented else number


def _is(first: Any, second: Any) -> bool:
    return first is second
