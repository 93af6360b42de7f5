"""A tensor inside of an input gets new data, or counts that what it wraps itself does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from funcaot._torch.autograd import autograd
from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.subclasses.structure import inside


@dataclass(frozen=True)
class OverwriteInside(Action):
    """New data from a result.

    Attributes:
        path: The attributes that lead to the tensor.
        value: The result.
        versions: In-place changes that the tensor's own version counts; a class's dispatch, which
            runs below autograd, counts none.
    """

    writes: ClassVar[bool] = True

    path: tuple[str, ...]
    value: int
    versions: int

    @property
    def results(self) -> tuple[int, ...]:
        """The new data."""
        return (self.value,)

    def counted_with(self, target: torch.Tensor) -> int:
        """The changes, if the input counts them as its own: a jagged view of a tensor does."""
        return self.versions if autograd.shares_version(target, inside(target, self.path)) else 0

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Copy it."""
        target = inside(target, self.path)
        version = None if target.is_inference() else target._version + self.versions
        with torch.no_grad():
            target.copy_(made.result(self.value))
        if version is not None:
            autograd.set_version(target, version)

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"{'.'.join(self.path)} = result {self.value}"


@dataclass(frozen=True)
class CountInside(Action):
    """A wrapper inside of a wrapper was written to; what is inside of it gets its data by itself.

    Attributes:
        path: The attributes that lead to the wrapper.
        versions: In-place changes that its version counts.
    """

    path: tuple[str, ...]
    versions: int

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Count them."""
        target = inside(target, self.path)
        if not target.is_inference():
            autograd.set_version(target, target._version + self.versions)

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"version of {'.'.join(self.path)} +{self.versions}"
