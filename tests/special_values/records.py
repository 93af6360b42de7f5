"""A case as data, and the operands that hold the special values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]

FLOAT32, FLOAT64 = "float32", "float64"
FLOAT16, BFLOAT16 = "float16", "bfloat16"
COMPLEX64 = "complex64"
FLOATS = (FLOAT32, FLOAT64)
NARROW = (FLOAT16, BFLOAT16)

# How operands lie in memory. Few elements are computed one by one, where many are vectors.
CONTIGUOUS, TRANSPOSED, CHANNELS_LAST = "contiguous", "transposed", "channels last"
FEW, APART = "few", "apart"


@dataclass(frozen=True)
class Case:
    """One call of an op.

    Attributes:
        name: How the page calls it.
        operands: The name of the operands that it is given.
        function: The call, of these operands.
        dtypes: The dtypes that it is measured for.
        differentiable: Whether gradients are measured too.
    """

    name: str
    operands: str
    function: Function = field(repr=False)
    dtypes: tuple[str, ...] = FLOATS
    differentiable: bool = True


@dataclass(frozen=True)
class Group:
    """Cases of one kind, and the layouts that their operands come in."""

    title: str
    layouts: tuple[str, ...]
    cases: tuple[Case, ...]


def specials(dtype: torch.dtype) -> list[float]:
    """The values that one op or another treats in a way of its own."""
    info = torch.finfo(dtype)
    edges = [info.max, -info.max, info.tiny, info.smallest_normal / 4, -info.smallest_normal / 4]
    # A half, and the two around it, are where rounding decides.
    ordinary = [1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.0, -7.0, 1e-6, -1e-4, 1e4, 40.0, 0.1]
    return [math.nan, math.inf, -math.inf, 0.0, -0.0, *edges, *ordinary]


def operands(kind: str, dtype_name: str, layout: str) -> tuple[Tensor, ...]:
    """The operands of a kind, made anew."""
    dtype = getattr(torch, dtype_name)
    made = _MAKERS[kind](dtype)
    if layout == FEW:
        return tuple(value.flatten()[:7] if _is_data(value) else value for value in made)
    return tuple(_laid_out(value, layout) if _is_data(value) else value for value in made)


def _is_data(value: Tensor) -> bool:
    return value.is_floating_point() or value.is_complex()


def _laid_out(value: Tensor, layout: str) -> Tensor:
    if layout == APART:
        return torch.stack([value, value], -1)[..., 0]
    if layout == TRANSPOSED and value.dim() > 1:
        return value.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == CHANNELS_LAST and value.dim() == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value


def _unary(dtype: torch.dtype) -> tuple[Tensor, ...]:
    values = _numbers(dtype)
    return (torch.stack([values, values.flip(0), values.roll(5)]),)


def _numbers(dtype: torch.dtype) -> Tensor:
    if not dtype.is_complex:
        return torch.tensor(specials(dtype), dtype=dtype)
    real = dtype.to_real()
    parts = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5]
    pairs = torch.tensor(list(itertools.product(parts, parts)), dtype=real)
    return torch.view_as_complex(pairs)


def _binary(dtype: torch.dtype) -> tuple[Tensor, ...]:
    values = _numbers(dtype)
    first, second = torch.meshgrid(values, values, indexing="ij")
    return first.contiguous(), second.contiguous()


def _ternary(dtype: torch.dtype) -> tuple[Tensor, ...]:
    values = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5, 0.5], dtype=dtype)
    grids = torch.meshgrid(values, values, values, indexing="ij")
    return tuple(grid.reshape(8, 64).contiguous() for grid in grids)


def _rows(dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Rows of 37 with ties, zeros of both signs, NaN at some place, infinities of both signs."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randint(-2, 3, (24, 37), generator=generator).to(torch.float64)
    base[4] = 0.0
    base[4, ::3] = -0.0
    base[5] = -0.0
    base[6, 7] = base[6, 20] = math.nan
    base[7] = math.nan
    base[8, 3] = base[8, 30] = math.inf
    base[9, 3] = base[9, 30] = -math.inf
    base[10, 36], base[10, 2] = math.inf, -math.inf
    base[11, 36] = math.nan
    base[12] = -math.inf
    base[13] = math.inf
    base[14, 0], base[14, 1] = math.inf, math.nan
    base[15] = -math.inf
    base[15, 35] = math.nan
    base[16, 1:] = torch.finfo(dtype).smallest_normal / 4
    base[17] = 1.0
    return (base.to(dtype),)


def _image(dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(1)
    values = torch.randint(-2, 3, (2, 4, 8, 8), generator=generator).to(dtype)
    values[0, 0] = 0.0
    values[0, 0, ::2, 1::3] = -0.0
    values[0, 1, 2, 2] = values[0, 1, 5, 6] = math.nan
    values[0, 2] = -math.inf
    values[0, 2, 7, 7] = math.nan
    values[0, 3, ::3] = math.inf
    values[1, 0] = math.nan
    values[1, 1] = 1.0
    values[1, 2, 4] = -math.inf
    return (values,)


def _products(dtype: torch.dtype) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(2)
    first = torch.randint(-2, 3, (8, 8), generator=generator).to(dtype)
    second = torch.randint(-2, 3, (8, 8), generator=generator).to(dtype)
    bias = torch.full((8, 8), math.nan, dtype=dtype)
    first[1] = 0.0
    first[2] = -0.0
    first[3, 3] = math.nan
    first[4, 0] = math.inf
    second[:, 5] = 0.0
    second[6, 2] = math.inf
    second[7, 7] = -math.inf
    return first, second, bias


_MAKERS: dict[str, Callable[[torch.dtype], tuple[Tensor, ...]]] = {
    "unary": _unary,
    "binary": _binary,
    "ternary": _ternary,
    "rows": _rows,
    "image": _image,
    "products": _products,
}
