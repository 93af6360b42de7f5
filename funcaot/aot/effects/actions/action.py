"""What ``epilogue`` asks of an action, and what an action asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch

from funcaot.aot.effects.origin import Origin
from funcaot.aot.graph.tensor_spec import TensorSpec


class Made(Protocol):
    """What the graph and the epilogue made in this call."""

    def result(self, position: int) -> torch.Tensor:
        """A result of the graph."""
        ...

    def origin(self, origin: Origin) -> torch.Tensor:
        """A tensor that is made of inputs and results, once in each call."""
        ...

    def copied(self, value: Any) -> Any:
        """A value that a function made, as another call would make it."""
        ...


@dataclass(frozen=True)
class Action:
    """One change to an input. Actions of an input are replayed in their order.

    Attributes:
        before_graph: Whether it comes before the graph runs; then it can be taken back.
        writes: Whether it overwrites memory of the input.
        reshapes: Whether the input gets another shape in place.
        is_last: Whether it comes after the input's versions are counted, where plans are shown.
    """

    before_graph: ClassVar[bool] = False
    writes: ClassVar[bool] = False
    reshapes: ClassVar[bool] = False
    is_last: ClassVar[bool] = False

    @property
    def results(self) -> tuple[int, ...]:
        """Positions of the results that it names."""
        return ()

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Tensors that the epilogue makes for it."""
        return ()

    def changes_looks(self, spec: TensorSpec) -> bool:
        """Whether the input has another spec afterwards."""
        return False

    def counted_with(self, target: torch.Tensor) -> int:
        """In-place changes of what is inside of the input that the input counts as its own."""
        return 0

    def replay(self, target: torch.Tensor, made: Made) -> None:
        """Do to an input what the function did."""
        raise NotImplementedError

    def undo(self, target: torch.Tensor) -> None:
        """Take it back, for a call that leaves before its graph has run."""
        raise NotImplementedError
