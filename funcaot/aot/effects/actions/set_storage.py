"""The input gets another storage (``set_``, or an assignment to ``.data``)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class SetStorage(Action):
    """The storage, shape and strides of another tensor.

    Attributes:
        source: The tensor.
        assigned: Whether ``.data`` is assigned to, which counts no version.
    """

    source: Origin
    assigned: bool = False

    @property
    def origins(self) -> tuple[Origin, ...]:
        """The tensor."""
        return (self.source,)

    def changes_looks(self, spec: TensorSpec) -> bool:
        """It may have another shape."""
        return True

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Autograd doesn't see it."""
        source = made.origin(self.source)
        if self.assigned:
            target.data = source.detach()
            return
        with torch.no_grad():
            target.set_(source)  # pyright: ignore[reportArgumentType]

    def __str__(self) -> str:
        """As the plan shows it."""
        return f"{'.data = ' if self.assigned else 'set to '}{self.source}"
