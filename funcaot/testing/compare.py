"""Compare what ran with what was expected, and say how far apart they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from funcaot.testing.records import describe_value

TOLERANCES = {
    torch.float64: (1e-6, 1e-7),
    torch.complex128: (1e-6, 1e-7),
    torch.float32: (1e-3, 1e-4),
    torch.complex64: (1e-3, 1e-4),
    torch.bfloat16: (5e-2, 5e-2),
    torch.float16: (1e-2, 1e-2),
}


@dataclass(frozen=True)
class Difference:
    """How two results differ.

    Attributes:
        largest: The largest absolute difference of any element.
        message: What is different, or None when the results agree.
    """

    largest: float
    message: str | None


def compare(
    actual: Sequence[Tensor],
    expected: Sequence[Tensor],
    tolerance: tuple[float, float] | None = None,
) -> Difference:
    """Compares two tuples of tensors: number, shapes, dtypes and values.

    Args:
        actual: What the code under test returned.
        expected: What the oracle returned.
        tolerance: ``(rtol, atol)`` instead of the defaults of each dtype.

    Returns:
        The largest difference and, if it is too large, a message about the first output.
    """
    if len(actual) != len(expected):
        return Difference(
            float("inf"), f"{len(actual)} tensors came back, expected {len(expected)}"
        )
    largest, message = 0.0, None
    for index, (left, right) in enumerate(zip(actual, expected, strict=True)):
        found = compare_one(left.detach(), right.detach(), tolerance)
        largest = max(largest, found.largest)
        if found.message is not None and message is None:
            message = f"result {index}: {found.message}"
    return Difference(largest, message)


def plain(tensor: Tensor) -> Tensor:
    """A dense tensor of a dtype that can be subtracted."""
    # A Function may return a sparse gradient where the oracle's is dense.
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    wide = {torch.complex32: torch.complex64}.get(dense.dtype, dense.dtype)
    if dense.is_floating_point() and dense.dtype not in TOLERANCES:
        wide = torch.float32
    return dense.resolve_conj().resolve_neg().to(wide)


def compare_one(
    actual: Tensor, expected: Tensor, tolerance: tuple[float, float] | None
) -> Difference:
    """Compares two tensors."""
    if actual.shape != expected.shape or actual.dtype != expected.dtype:
        shapes = f"{describe_value(actual)} came back, expected {describe_value(expected)}"
        return Difference(float("inf"), shapes)
    actual, expected = plain(actual), plain(expected)
    if actual.numel() == 0:
        return Difference(0.0, None)
    if not (actual.is_floating_point() or actual.is_complex()):
        wrong = int((actual != expected).sum())
        message = f"{wrong} of {actual.numel()} elements differ" if wrong else None
        return Difference(float(wrong), message)
    relative, absolute = tolerance or TOLERANCES[actual.dtype]
    distance = (actual - expected).abs()
    same = torch.isclose(actual, expected, rtol=relative, atol=absolute, equal_nan=True)
    largest = float(distance.nan_to_num(0.0 if bool(same.all()) else float("inf")).max())
    if bool(same.all()):
        return Difference(largest, None)
    place = tuple((~same).nonzero()[0].tolist())
    return Difference(
        largest,
        f"largest difference {largest:.3g}; at {list(place)}: "
        f"got {actual[place].item():.6g}, expected {expected[place].item():.6g}",
    )
