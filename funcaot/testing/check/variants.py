"""Other samples made of one that a Function takes: other values, layouts and shapes.

A mistake sits where nobody looked: below zero, at zero, where two numbers are equal, far out. So
each of these is tried, and kept where the Function takes it; what it doesn't take is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from funcaot.testing.records import Sample

# Values at which a derivative may jump, or that are too extreme for a chain of transforms.
KINKS = frozenset({"zeros", "ties"})
EXTREMES = frozenset({"large", "large positive", "tiny", "tiny positive"})
# Layouts and shapes: one row about the gradient tries them, and the transforms do.
LAYOUTS = frozenset({"non-contiguous", "empty", "broadcasting", "broadcasting rows"})

Change = Callable[[Tensor, int], Tensor]


@dataclass(frozen=True)
class Variant:
    """A change of the differentiated tensors of a sample.

    Attributes:
        name: Of the sample that it makes.
        change: From a tensor and its position among the tensors to another.
        instead_of: A variant that this one is for where that one wasn't taken.
        least: How many tensors a sample needs.
    """

    name: str
    change: Change
    instead_of: str = ""
    least: int = 1


def explored(
    base: Sample, problem_of: Callable[[Sequence[Any]], str | None]
) -> tuple[list[Sample], list[str]]:
    """The variants of a sample that a Function takes, and why it doesn't take the others.

    Args:
        base: A sample that it takes.
        problem_of: Why a call with some arguments is no use, or None.

    Returns:
        Samples, and a line for each variant that was left out.
    """
    taken: list[Sample] = []
    left_out: dict[str, str] = {}
    tensors = sum(is_varied(value) for value in base.values)
    for variant in VARIANTS:
        if tensors < variant.least or (variant.instead_of and variant.instead_of not in left_out):
            continue
        sample = changed(base, variant)
        problem = problem_of(sample.values)
        if problem is None:
            taken.append(sample)
        else:
            left_out[variant.name] = problem
    return taken, [f"{name}: not taken ({problem})" for name, problem in left_out.items()]


def is_varied(value: Any) -> bool:
    """Whether a variant changes this argument."""
    return isinstance(value, Tensor) and value.is_floating_point()


def changed(base: Sample, variant: Variant) -> Sample:
    """A sample with the change made to each floating-point tensor."""
    position = 0
    values = []
    for value in base.values:
        if is_varied(value):
            made = variant.change(value.detach(), position).to(value.dtype)
            value = made.requires_grad_(value.requires_grad)
            position += 1
        values.append(value)
    return replace(base, input=values[0], args=tuple(values[1:]), name=variant.name)


def _placed(numbers: Tensor, like: Tensor, position: int) -> Tensor:
    """Numbers in a tensor's shape, in another order for each position."""
    count = like.numel()
    order = [(7 * place + 3 * position) % count for place in range(count)] if count else []
    if len(set(order)) < count:
        order = [(place + position) % count for place in range(count)]
    return numbers.to(torch.float64)[order].reshape(like.shape)


def signed(tensor: Tensor, position: int) -> Tensor:
    """Both signs, to four in size."""
    count = tensor.numel()
    numbers = torch.linspace(-4.1, 3.9, count) if count > 1 else torch.tensor([-2.7])
    return _placed(numbers, tensor, position)


def _magnitudes(tensor: Tensor, position: int, low: float, high: float) -> Tensor:
    numbers = torch.logspace(low, high, max(1, tensor.numel()), dtype=torch.float64)
    return _placed(numbers, tensor, position)


def _alternating(tensor: Tensor, position: int, low: float, high: float) -> Tensor:
    sizes = _magnitudes(tensor, position, low, high).reshape(-1)
    signs = torch.tensor([1.0 if place % 2 else -1.0 for place in range(tensor.numel())])
    return (sizes * signs).reshape(tensor.shape)


def zeros(tensor: Tensor, position: int) -> Tensor:
    """Zeros among numbers of both signs."""
    values = signed(tensor, position).reshape(-1).clone()
    values[position % 2 :: 2] = 0.0
    return values.reshape(tensor.shape)


def ties(tensor: Tensor, position: int) -> Tensor:
    """One number everywhere, in every argument."""
    return torch.full(tensor.shape, 0.7, dtype=torch.float64)


def transposed(tensor: Tensor, position: int) -> Tensor:
    """The same values, the last dimension of the largest stride, at an offset."""
    if tensor.dim() == 0:
        return torch.stack([tensor, tensor])[1]
    order = tuple(reversed(range(tensor.dim())))
    turned = tensor.permute(order).contiguous()
    return torch.stack([turned, turned], -1)[..., 1].permute(order)


def empty(tensor: Tensor, position: int) -> Tensor:
    """No elements; a scalar stays."""
    return tensor[:0].clone() if tensor.dim() else tensor.clone()


def broadcast(tensor: Tensor, position: int) -> Tensor:
    """Every second argument lacks a dimension and is of size one in another."""
    if position % 2 == 0 or tensor.dim() == 0:
        return tensor.clone()
    return tensor[0][..., :1].clone() if tensor.dim() > 1 else tensor[:1].clone()


def broadcast_rows(tensor: Tensor, position: int) -> Tensor:
    """The same the other way: every first argument lacks a dimension, and has no size of one."""
    return tensor[0].clone() if position % 2 == 0 and tensor.dim() > 1 else tensor.clone()


VARIANTS = (
    Variant("signed", signed),
    Variant("zeros", zeros),
    Variant("ties", ties),
    Variant("large", lambda tensor, at: _alternating(tensor, at, 1.0, 3.0)),
    Variant("large positive", lambda tensor, at: _magnitudes(tensor, at, 1.0, 3.0), "large"),
    Variant("tiny", lambda tensor, at: _alternating(tensor, at, -8.0, -3.0)),
    Variant("tiny positive", lambda tensor, at: _magnitudes(tensor, at, -8.0, -3.0), "tiny"),
    Variant("non-contiguous", transposed),
    Variant("empty", empty),
    Variant("broadcasting", broadcast, least=2),
    Variant("broadcasting rows", broadcast_rows, least=2),
)


def ordinary(samples: Sequence[Sample]) -> list[Sample]:
    """Those at which a chain of derivatives means something."""
    return [sample for sample in samples if sample.name not in KINKS | EXTREMES]


def plain(samples: Sequence[Sample]) -> list[Sample]:
    """The ordinary ones of usual layouts and shapes, or all of them if there is no other."""
    kept = [sample for sample in ordinary(samples) if sample.name not in LAYOUTS]
    return kept or list(samples)


def smallest(samples: Sequence[Sample]) -> list[Sample]:
    """The ordinary one with the fewest elements, not empty, and the one with both signs."""
    chosen = [sample for sample in ordinary(samples) if count_of(sample)]
    chosen.sort(key=count_of)
    with_signs = [sample for sample in chosen if sample.name == "signed"]
    return [*chosen[:1], *(sample for sample in with_signs if sample is not chosen[0])]


def count_of(sample: Sample) -> int:
    """How many elements the varied tensors have."""
    return sum(value.numel() for value in sample.values if is_varied(value))


def described(sample: Sample) -> str:
    """A sample on one line with the range of its values."""
    numbers = [
        value.detach().abs() if value.is_complex() else value.detach()
        for value in sample.values
        if isinstance(value, Tensor) and value.numel() and value.dtype is not torch.bool
    ]
    floating = [number for number in numbers if number.is_floating_point()]
    if not floating:
        return repr(sample)
    lowest = min(float(number.min()) for number in floating)
    highest = max(float(number.max()) for number in floating)
    return f"{sample!r}, values {lowest:.3g} to {highest:.3g}"


def range_of(samples: Sequence[Sample]) -> str:
    """What the values of all samples have among them, in words."""
    flat = [
        value.detach().reshape(-1).to(torch.float64)
        for sample in samples
        for value in sample.values
        if is_varied(value) and value.numel()
    ]
    if not flat:
        return "no real numbers"
    together = torch.cat(flat)
    signs = "negatives" if bool((together < 0).any()) else "no negatives"
    none = "zeros" if bool((together == 0).any()) else "no zeros"
    span = f"{float(together.min()):.3g} to {float(together.max()):.3g}"
    return f"values {span}, {signs}, {none}"
