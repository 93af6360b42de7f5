"""The input gets new data, in the shape that it has; autograd doesn't see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from funcaot.aot.effects.actions.action import Action, Made


@dataclass(frozen=True)
class Overwrite(Action):
    """New data from a result.

    Attributes:
        value: The result.
        by: What the function wrote through: ``data``, which counts no version; tensors ``detached``
            from the input, so that it keeps the tangent that it has; or the input itself.
    """

    writes: ClassVar[bool] = True

    value: int
    by: Literal["itself", "data", "detached"] = "itself"

    @property
    def results(self) -> tuple[int, ...]:
        """The new data."""
        return (self.value,)

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Copy it."""
        value = made.result(self.value)
        if self.by == "data":
            target.data.copy_(value)
        elif self.by == "detached":
            target.detach().copy_(value)
        else:
            with torch.no_grad():
                target.copy_(value)

    def __str__(self) -> str:
        """As the plan shows it."""
        how = {"itself": "", "data": " by .data", "detached": " by detach"}[self.by]
        return f"= result {self.value}{how}"
