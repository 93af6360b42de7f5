"""The input starts to require grad, as a leaf, before the function computes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class StartRequiringGrad(Action):
    """``requires_grad_()``."""

    before_graph: ClassVar[bool] = True

    def changes_looks(self, spec: TensorSpec) -> bool:
        """It does."""
        return True

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """The graph's node then has the input as its next one."""
        target.requires_grad_()

    def undo(self, target: torch.Tensor) -> None:
        """The program that the call takes instead does it again."""
        target.requires_grad_(False)

    def __str__(self) -> str:
        """As the plan shows it."""
        return "requires_grad_ before the call"
