"""Compare a derivative that a rule gave with one that was measured, kinks included."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from funcaot.testing.check.probes.probe import PASSES, WARNS, WRONG, Finding

# Relative errors of double precision; single precision can't be measured better than this.
NOTED, TOLERATED = 1e-6, 1e-4
TOLERATED_IN_SINGLE = 1e-2
FLOOR = 1e-9


def relative_errors(actual: Tensor, value: Tensor, bar: Tensor) -> Tensor:
    """How far each element lies outside of its bar, relative to its size."""
    wide = actual.to(value.dtype) if value.is_complex() or not actual.is_complex() else actual
    distance = (wide - value).abs()
    outside = (distance - bar).clamp(min=0)
    largest = value.abs().max() if value.numel() else torch.zeros((), dtype=torch.float64)
    size = torch.maximum(value.abs(), (1e-3 * largest).clamp(min=FLOOR))
    error = outside / size
    # A bar without an end measured nothing; a NaN of the rule where there is a slope is wrong.
    error = torch.where(distance.isnan() | distance.isinf(), torch.inf, error)
    return torch.where(bar.isinf(), torch.zeros_like(error), error)


def judged(
    actual: Tensor,
    value: Tensor,
    bar: Tensor,
    sides_at: Callable[[int], Sequence[tuple[Tensor, Tensor]]],
) -> tuple[Tensor, int]:
    """The relative error of each element, zero where a kink allows what the rule gave.

    Args:
        actual: What the rule gave.
        value: What was measured.
        bar: How sure that is.
        sides_at: The slopes to both sides of an element with their bars, by its place in the
            flattened tensor.

    Returns:
        The errors, and the number of elements that couldn't be measured.
    """
    errors = relative_errors(actual, value, bar).reshape(-1)
    flat = actual.reshape(-1)
    for place in (errors > NOTED).nonzero().reshape(-1).tolist():
        if is_between(flat[place], sides_at(place)):
            errors[place] = 0.0
    return errors.reshape(actual.shape), int(bar.isinf().sum())


def is_between(actual: Tensor, sides: Sequence[tuple[Tensor, Tensor]]) -> bool:
    """Whether a number is a slope between those to both sides of a kink, or the only one there is.

    Where both sides agree, they overrule the middle, which may have reached over a kink beside it.
    Where the function isn't defined to one side, the other side's slope counts; where neither could
    be measured, nothing is held against the rule.
    """
    measured = [(value, bar) for value, bar in sides if not bool(bar.isinf())]
    if not measured:
        return True
    if bool(torch.isnan(actual)) or actual.is_complex():
        return False
    numbers = [value.real if value.is_complex() else value for value, _ in measured]
    slack = max(
        float(bar) + NOTED * float(value.abs())
        for value, (_, bar) in zip(numbers, measured, strict=True)
    )
    if len(numbers) == 2 and float((numbers[0] - numbers[1]).abs()) <= 2 * slack:
        # No kink here, but perhaps one so near that only a step to one side stays clear of it.
        sure = slack <= 4 * NOTED * max(float(value.abs()) for value in numbers)
        return sure and all(float((actual - value).abs()) <= slack for value in numbers)
    lowest, highest = min(map(float, numbers)), max(map(float, numbers))
    return lowest - slack <= float(actual) <= highest + slack


def verdict(
    largest: float, detail: str, dtype: torch.dtype, remedies: tuple[str, str]
) -> Finding | None:
    """A finding for the largest relative error of a sample.

    Args:
        largest: The error.
        detail: Where it is and what came and was expected there.
        dtype: Of the sample, which says how small an error can be seen.
        remedies: What to do where it is wrong, and where it is only imprecise.
    """
    double = dtype in (torch.float64, torch.complex128)
    if largest > (TOLERATED if double else TOLERATED_IN_SINGLE):
        return Finding(detail, remedies[0], largest, WRONG)
    if double and largest > NOTED:
        return Finding(detail, remedies[1], largest, WARNS)
    return Finding(largest_error=largest, status=PASSES)
