"""A function at a point, and how fast it changes there: along one element, or along tangents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from funcaot.testing.check.probes.slopes import Slope, central, evaluate, one_sided
from funcaot.testing.program import TensorFunction, is_differentiable, weights_like

# A value with its bar.
Reading = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Measured:
    """A function of tensors at a point.

    Attributes:
        function: What is measured; it is only called.
        primals: Where.
        outputs: Its outputs there.
    """

    function: TensorFunction
    primals: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @classmethod
    def at(cls, function: TensorFunction, primals: Sequence[Tensor]) -> Measured:
        """Calls the function once."""
        return cls(function, tuple(primals), evaluate(function, primals))

    def along(self, directions: Mapping[int, Tensor]) -> Slope:
        """The slope of each output."""
        return central(self.function, self.primals, directions)

    def sides_along(self, directions: Mapping[int, Tensor]) -> tuple[Slope, Slope]:
        """The slopes behind and ahead."""
        behind = one_sided(self.function, self.primals, directions, -1.0)
        return behind, one_sided(self.function, self.primals, directions, 1.0)

    def element(self, index: int, place: int) -> Reading:
        """What the gradient of the weighted sum should be at one element of an argument."""
        primal = self.primals[index]
        scale = self._scale(index, place)
        value, bar = self._contracted(self.along({index: unit(primal, place, scale)}))
        reading = value / scale, bar / scale
        own = float(primal.reshape(-1)[place].abs())
        if 0 < own < 1e-3 and float(reading[1]) > 1e-7 * float(reading[0].abs()):
            # The function may change on the scale of the number itself, as a logarithm does.
            value, bar = self._contracted(self.along({index: unit(primal, place, own)}))
            if bool(bar / own < reading[1]):
                reading = value / own, bar / own
        if not primal.is_complex():
            return reading
        value, bar = self._contracted(self.along({index: unit(primal, place, 1j * scale)}))
        return torch.complex(reading[0], value / scale), reading[1] + bar / scale

    def together(self, along: Mapping[int, Tensor]) -> tuple[Reading, list[Reading]]:
        """The slope of the weighted sum along a direction, in the middle and to both sides."""
        middle = self._contracted(self.along(along))
        return middle, [self._contracted(slope) for slope in self.sides_along(along)]

    def sides_of_element(self, index: int, place: int) -> list[Reading]:
        """The same to both sides."""
        scale = self._scale(index, place)
        directions = {index: unit(self.primals[index], place, scale)}
        readings = [self._contracted(slope) for slope in self.sides_along(directions)]
        return [(value / scale, bar / scale) for value, bar in readings]

    def _scale(self, index: int, place: int) -> float:
        return max(1.0, float(self.primals[index].reshape(-1)[place].abs()))

    def _contracted(self, slope: Slope) -> Reading:
        """The slope of the weighted sum of the outputs."""
        value, bar = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for moved, unsure, output in zip(slope.values, slope.bars, self.outputs, strict=True):
            if is_differentiable(output):
                weights = weights_like(output).to(moved.dtype)
                term = (weights * moved).sum()
                value = value + (term.real if term.is_complex() else term)
                bar = bar + (weights.abs() * unsure).sum()
        return value, bar


def unit(primal: Tensor, place: int, size: complex) -> Tensor:
    """A direction along one element."""
    direction = torch.zeros(primal.numel(), dtype=primal.dtype)
    direction[place] = torch.tensor(size, dtype=primal.dtype)
    return direction.reshape(primal.shape)
