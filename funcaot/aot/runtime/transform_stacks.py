"""Transforms on top of one another, straight over a function: what tells such a stack apart."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

from funcaot._torch.dynamo.transform_calls import Transform, transform_of


class NotCapturedError(Exception):
    """A stack of transforms isn't captured whole for this call; each level by itself may be."""


@dataclass(frozen=True)
class Stack:
    """Transforms from the outermost to the innermost.

    Attributes:
        transforms: With their arguments.
        key: Equal for stacks that do the same.
    """

    transforms: tuple[Transform, ...]
    key: Hashable

    @property
    def in_chunks(self) -> bool:
        """Whether a batch is to be computed part by part."""
        return any(each.options.get("chunk_size") is not None for each in self.transforms)

    def over(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The transforms of a function."""
        for transform in reversed(self.transforms):
            function = transform.over(function)
        return function

    def named(self, name: str) -> str:
        """What is transformed, as one would write it."""
        names = [transform.name for transform in self.transforms]
        return f"{'('.join([*names, name])}{')' * len(names)}"


def stack_of(outermost: Transform) -> tuple[Stack, Callable[..., Any]] | None:
    """The stack that begins with a transform, and what it stands on; None if it can't be told."""
    transforms = [outermost]
    while (inner := transform_of(transforms[-1].function)) is not None:
        transforms.append(inner)
    try:
        key = tuple((each.name, _hashable(each.options)) for each in transforms)
    except TypeError:
        return None
    return Stack(tuple(transforms), key), transforms[-1].function


def _hashable(value: Any) -> Hashable:
    """Arguments of transforms, which are numbers and names in containers."""
    if isinstance(value, dict):
        return dict, tuple((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        return type(value), tuple(map(_hashable, value))
    if value is None or isinstance(value, (int, str)):
        return type(value), value
    raise TypeError(f"{type(value).__name__} in a transform's arguments")
