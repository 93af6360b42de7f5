"""Where a captured function found tensors that aren't arguments, whatever is there in a call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot.aot.closure.environment import Environment
from funcaot.aot.reader.reader_source import EnvironmentWriter


@dataclass(frozen=True, eq=False)
class ReachedTensors:
    """Tensors that a function reaches, parameters left out.

    Attributes:
        read: Takes ``(function, *leaves)``, the leaves being those at ``positions``.
        positions: Leaves of the arguments through which it reaches them.
        shapes: What they looked like when it was captured.
    """

    read: Callable[[tuple[Any, ...]], tuple[Any, ...] | None]
    positions: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]

    def find(
        self, function: Callable[..., Any], leaves: Sequence[Any]
    ) -> tuple[torch.Tensor, ...] | None:
        """Those of a call; None if something else is in the place of one."""
        if max(self.positions, default=0) >= len(leaves):
            return None
        try:
            found = self.read((function, *[leaves[index] for index in self.positions]))
        except (AttributeError, LookupError, TypeError):
            return None
        if found is None or len({id(value) for value in found}) < len(found):
            return None
        fits = all(
            isinstance(value, torch.Tensor) and value.dim() == len(shape)
            for value, shape in zip(found, self.shapes, strict=True)
        )
        return found if fits else None


def reached_tensors(
    environment: Environment,
    root: tuple[Any, ...],
    positions: tuple[int, ...],
    tensors: Sequence[torch.Tensor],
) -> ReachedTensors | None:
    """What finds tensors again; None if there is none whose size could be another.

    Args:
        environment: Where they were found.
        root: The function, and the leaves at ``positions``.
        positions: Those leaves.
        tensors: All that the function reaches.
    """
    wanted = [
        tensor
        for tensor in tensors
        if type(tensor) is torch.Tensor and tensor.dim() and environment.places.get(id(tensor))
    ]
    if not wanted:
        return None
    finder = EnvironmentWriter(environment, root)
    values = [finder.at(environment.places[id(tensor)][0]) for tensor in wanted]
    shapes = tuple(tuple(tensor.shape) for tensor in wanted)
    return ReachedTensors(finder.build(values), positions, shapes)
