"""Measured derivatives of a black box, with error bars: what the rows about derivatives trust.

A stencil on a ladder of steps says how fast each output changes along a direction, and how sure
that is: by how much two steps disagree, and what rounding does. An error of a rule is only what
lies outside of the bar, so that it can be small and still be found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from funcaot.testing.generator import seed
from funcaot.testing.records import copied_tensor

TensorFunction = Callable[..., tuple[Tensor, ...]]
# The slope of an output, and whether it moves.
Slopes = tuple[Tensor, Tensor]
LADDER = 8.0
LEVELS = 6
# A bar that is this small against its slope needs no smaller step.
SURE = 1e-9


@dataclass(frozen=True)
class Slope:
    """How fast each output changes along a direction.

    Attributes:
        values: One tensor per output, zero where the dtype carries no derivative.
        bars: How far each element may be off; infinite where nothing could be measured.
    """

    values: tuple[Tensor, ...]
    bars: tuple[Tensor, ...]


def evaluate(function: TensorFunction, primals: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The outputs on copies of the primals, with the random numbers of every other evaluation."""
    seed()
    outputs = function(*[apart(primal) for primal in primals])
    return tuple(output.detach().clone() for output in outputs)


def apart(primal: Tensor) -> Tensor:
    """A copy with the same strides, also where elements share memory."""
    copy = primal.clone()
    return copy if copy.stride() == primal.stride() else copied_tensor(primal)


def central(
    function: TensorFunction, primals: Sequence[Tensor], directions: Mapping[int, Tensor]
) -> Slope:
    """The slope by fourth-order differences to both sides.

    Args:
        function: Any function of tensors; it is called some dozen times.
        primals: Where.
        directions: Which primals move, and along what; a real multiple of it is added.

    Returns:
        The slope of each output.
    """

    def at(step: float) -> list[Slopes]:
        ahead = _moved(function, primals, directions, step)
        behind = _moved(function, primals, directions, -step)
        return [
            ((8 * (near - near_behind) - (far - far_behind)) / (12 * step), _differ(near, far))
            for near, far, near_behind, far_behind in zip(*ahead, *behind, strict=True)
        ]

    return _on_a_ladder(function, primals, at, 3 * _resolution(primals, directions) ** 0.2)


def one_sided(
    function: TensorFunction,
    primals: Sequence[Tensor],
    directions: Mapping[int, Tensor],
    side: float,
) -> Slope:
    """The slope to one side: ``side`` is 1 for what lies along the direction, -1 for behind."""
    here = [_differentiable(output) for output in evaluate(function, primals)]

    def at(step: float) -> list[Slopes]:
        near, far = _moved(function, primals, directions, side * step)
        return [
            (side * (4 * one - 3 * zero - two) / (2 * step), _differ(one, two))
            for zero, one, two in zip(here, near, far, strict=True)
        ]

    return _on_a_ladder(function, primals, at, _resolution(primals, directions) ** 0.25)


def _moved(
    function: TensorFunction,
    primals: Sequence[Tensor],
    directions: Mapping[int, Tensor],
    step: float,
) -> tuple[list[Tensor], list[Tensor]]:
    found = []
    for multiple in (1, 2):
        shifted = list(primals)
        for index, direction in directions.items():
            shifted[index] = primals[index] + multiple * step * direction
        found.append([_differentiable(output) for output in evaluate(function, shifted)])
    return found[0], found[1]


def _differentiable(output: Tensor) -> Tensor:
    """An output in a wide dtype; one that carries no derivative counts as constant."""
    if output.is_complex():
        return output.to(torch.complex128)
    if output.is_floating_point():
        return output.to(torch.float64)
    return torch.zeros(output.shape, dtype=torch.float64)


def _resolution(primals: Sequence[Tensor], directions: Mapping[int, Tensor]) -> float:
    return max(torch.finfo(primals[index].dtype).eps for index in directions)


def _on_a_ladder(
    function: TensorFunction,
    primals: Sequence[Tensor],
    at: Callable[[float], list[Slopes]],
    first: float,
) -> Slope:
    """Smaller and smaller steps, and for each element the one with the smallest bar."""
    magnitudes = [_differentiable(output).abs() for output in evaluate(function, primals)]
    resolution = max(torch.finfo(primal.dtype).eps for primal in primals if _has_eps(primal))
    previous, moves = map(list, zip(*at(first), strict=True)) if magnitudes else ([], [])
    values = [torch.zeros_like(value) for value in previous]
    bars = [torch.full(value.shape, float("inf"), dtype=torch.float64) for value in previous]
    step = first
    for _ in range(LEVELS):
        step /= LADDER
        found = at(step)
        slopes = [slope for slope, _ in found]
        for place, (slope, coarse) in enumerate(zip(slopes, previous, strict=True)):
            # An even function has a slope of zero at zero, which rounding hides near it.
            moves[place] = moves[place] | found[place][1] | (slope != 0)
            # One that didn't move at all may have one that the first step was too small for.
            width = torch.where(moves[place], step, first)
            bar = (slope - coarse).abs() + 4 * resolution * magnitudes[place] / width
            better = bar < bars[place]  # false where something isn't finite
            values[place] = torch.where(better, slope, values[place])
            bars[place] = torch.where(better, bar, bars[place])
        if all(_is_sure(value, bar) for value, bar in zip(values, bars, strict=True)):
            break
        previous = slopes
    return Slope(tuple(values), tuple(bars))


def _differ(one: Tensor, other: Tensor) -> Tensor:
    """Whether an output moves, element by element."""
    return one != other


def _is_sure(value: Tensor, bar: Tensor) -> bool:
    scale = value.abs().max() if value.numel() else value.abs().sum()
    return bool((bar <= SURE * (value.abs() + 1e-3 * scale)).all())


def _has_eps(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()
