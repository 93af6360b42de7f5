"""Activations with an open number, as formulas whose derivatives are those of torch's kernels.

What one branch of a formula computes beside the other has no infinite derivative, so that zero
times it is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from funcaot._torch.tensors.sizes.narrow_numbers import HALF
from funcaot.aot.capture.numbers.formulas import (
    Formula,
    by_formula,
    held,
    in_place,
    is_finite,
    is_plain,
    is_positive,
)
from funcaot.aot.capture.numbers.given import Rule

__all__ = ["RULES"]

Maybe: TypeAlias = torch.Tensor | None
Link: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def _bent(x: torch.Tensor) -> torch.Tensor:
    """The tensor itself, with a gradient that depends on it, by zero, as of an op with a kink."""
    return F.leaky_relu(x, 1.0)


def _itself(x: torch.Tensor) -> torch.Tensor:
    """What is written to isn't kept for a gradient."""
    return x


def _leaky_relu(link: Link, *, to_write: bool = False) -> Formula:
    def leaky_relu(input: Any, negative_slope: Any = 0.01) -> Maybe:
        if not isinstance(input, torch.Tensor) or not is_finite(negative_slope):
            return None
        is_half = input.dtype in HALF
        if not (is_half or is_plain(input)):
            return None
        dtype = torch.float32 if is_half else input.dtype
        # One in place goes by the sign of its result, and torch refuses a negative slope there.
        if (to_write and not negative_slope > 0) or (slope := held(negative_slope, dtype)) is None:
            return None
        factor = torch.where(input > 0, 1.0, slope)
        return (link(input).to(dtype) * factor).to(input.dtype)

    return leaky_relu


def _elu(input: Any, alpha: Any = 1.0, scale: Any = 1, input_scale: Any = 1) -> Maybe:
    if not is_plain(input) or (scale, input_scale) != (1, 1) or not is_positive(alpha):
        return None
    factor = held(alpha, input.dtype)
    return None if factor is None else F.elu(input) * torch.where(input <= 0, factor, 1.0)


def _softplus(input: Any, beta: Any = 1, threshold: Any = 20) -> Maybe:
    if not is_plain(input) or type(threshold) not in (int, float) or not is_finite(beta):
        return None
    if beta == 0 or (factor := held(beta, input.dtype)) is None:
        return None
    scaled = input * factor
    return torch.where(scaled > threshold, input, F.softplus(scaled, 1, threshold) / factor)


def _hardtanh(link: Link) -> Formula:
    def hardtanh(input: Any, min_val: Any = -1, max_val: Any = 1) -> Maybe:
        limits = _limits_of(input, (min_val, max_val))
        if limits is None:
            return None
        cut = input.detach().clamp(*limits)
        return torch.where((input <= limits[0]) | (input >= limits[1]), cut, link(input))

    return hardtanh


def _limits_of(x: Any, numbers: Sequence[Any]) -> list[torch.Tensor] | None:
    """Numbers as tensors; None if one isn't a number."""
    if not is_plain(x) or any(number != number for number in numbers):
        return None
    found = [held(number, x.dtype) for number in numbers]
    if any(each is None for each in found):
        return None
    return [torch.as_tensor(each, dtype=x.dtype, device=x.device) for each in found]


def _threshold(link: Link) -> Formula:
    def formula(input: Any, threshold: Any, value: Any) -> Maybe:
        found = _limits_of(input, (threshold, value))
        return None if found is None else torch.where(input <= found[0], found[1], link(input))

    return formula


def _hardshrink(input: Any, lambd: Any = 0.5) -> Maybe:
    found = _limits_of(input, (lambd,))
    if found is None:
        return None
    return torch.where((input >= -found[0]) & (input <= found[0]), 0.0, _bent(input))


def _softshrink(input: Any, lambd: Any = 0.5) -> Maybe:
    if not is_plain(input) or not (lambd >= 0 and is_finite(lambd)):
        return None
    if (found := _limits_of(input, (lambd,))) is None:
        return None
    (most,) = found
    shift = torch.where(input > most, -most, torch.where(input < -most, most, 0.0))
    inside = (input >= -most) & (input <= most)
    return torch.where(inside, 0.0, _bent(input) + shift)


RULES: dict[str, Rule] = {
    "leaky_relu": by_formula(_leaky_relu(_bent)),
    "leaky_relu_": in_place(_leaky_relu(_itself, to_write=True)),
    "elu": by_formula(_elu),
    "softplus": by_formula(_softplus),
    "hardtanh": by_formula(_hardtanh(_bent)),
    "hardtanh_": in_place(_hardtanh(_itself)),
    "threshold": by_formula(_threshold(_bent)),
    "threshold_": in_place(_threshold(_itself)),
    "hardshrink": by_formula(_hardshrink),
    "softshrink": by_formula(_softshrink),
}
