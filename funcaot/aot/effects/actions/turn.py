"""A wrapper among the inputs gets another shape in place, by the methods that the function called.

Its class says what that does to the tensors inside, so nothing else is known to replay it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from funcaot.aot.effects.actions.action import Action, Made
from funcaot.aot.graph.tensor_spec import TensorSpec


@dataclass(frozen=True)
class Turn(Action):
    """``t_``, ``transpose_``, ``squeeze_``, ``unsqueeze_``.

    Attributes:
        calls: The methods, with their arguments.
        with_grad: Whether autograd is to record them; else it is told of the whole afterwards.
    """

    reshapes: ClassVar[bool] = True

    calls: tuple[tuple[str, tuple[Any, ...]], ...]
    with_grad: bool

    def changes_looks(self, spec: TensorSpec) -> bool:
        """It does."""
        return True

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Call them."""
        with torch.set_grad_enabled(self.with_grad):
            for name, arguments in self.calls:
                getattr(target, name)(*arguments)

    def __str__(self) -> str:
        """``t_()`` style."""
        return "".join(f".{name}({', '.join(map(str, given))})" for name, given in self.calls)
