"""Reductions, scans, sorts, normalizations, products, scatters and pooling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.special_values.records import (
    CHANNELS_LAST,
    CONTIGUOUS,
    FLOAT32,
    FLOATS,
    NARROW,
    TRANSPOSED,
    Case,
    Function,
    Group,
)

_ALL = (*FLOATS, *NARROW)
_ROWS = (CONTIGUOUS, TRANSPOSED)

_ALONG: dict[str, Callable[[Tensor, int], Any]] = {
    **{
        name: getattr(torch, name)
        for name in """
amax amin argmax argmin cumprod cumsum logcumsumexp logsumexp log_softmax max mean min nanmean
nansum prod softmax std sum var
""".split()  # noqa: SIM905 - a list of words
    },
    "aminmax": lambda x, dim: torch.aminmax(x, dim=dim),
    "all": torch.all,
    "any": torch.any,
    "count_nonzero": torch.count_nonzero,
    "cummax": torch.cummax,
    "cummin": torch.cummin,
    "var(correction=0)": lambda x, dim: torch.var(x, dim, correction=0),
    "var_mean": torch.var_mean,
    "std_mean": torch.std_mean,
    "norm(0)": lambda x, dim: torch.linalg.vector_norm(x, 0, dim),
    "norm(1)": lambda x, dim: torch.linalg.vector_norm(x, 1, dim),
    "norm(2)": lambda x, dim: torch.linalg.vector_norm(x, 2, dim),
    "norm(3)": lambda x, dim: torch.linalg.vector_norm(x, 3, dim),
    "norm(0.5)": lambda x, dim: torch.linalg.vector_norm(x, 0.5, dim),
    "norm(-1)": lambda x, dim: torch.linalg.vector_norm(x, -1, dim),
    "norm(inf)": lambda x, dim: torch.linalg.vector_norm(x, math.inf, dim),
    "norm(-inf)": lambda x, dim: torch.linalg.vector_norm(x, -math.inf, dim),
    "argmax(keepdim)": lambda x, dim: torch.argmax(x, dim, keepdim=True),
    "sum of squares": lambda x, dim: (x * x).sum(dim),
    "softmin": lambda x, dim: F.softmin(x, dim),
    "normalize": lambda x, dim: F.normalize(x, dim=dim),
    "diff": lambda x, dim: torch.diff(x, dim=dim),
    "trapezoid": lambda x, dim: torch.trapezoid(x, dim=dim),
    "renorm": lambda x, dim: torch.renorm(x, 2, dim, 1.0),
    "glu": lambda x, dim: F.glu(x[:, :36], dim),
    "flip": lambda x, dim: torch.flip(x, (dim,)),
}
_SORTS: dict[str, Callable[[Tensor, int], Any]] = {
    "median": torch.median,
    "nanmedian": torch.nanmedian,
    "mode": torch.mode,
    "kthvalue(3)": lambda x, dim: torch.kthvalue(x, 3, dim),
    "sort(stable)": lambda x, dim: torch.sort(x, dim, stable=True),
    "sort(stable, descending)": lambda x, dim: torch.sort(x, dim, descending=True, stable=True),
    "sort": torch.sort,
    "argsort": torch.argsort,
    "argsort(descending)": lambda x, dim: torch.argsort(x, dim, descending=True),
    "topk(5)": lambda x, dim: torch.topk(x, 5, dim),
    "topk(5, smallest)": lambda x, dim: torch.topk(x, 5, dim, largest=False),
    "quantile(0.3)": lambda x, dim: torch.quantile(x.to(FLOAT[x.dtype]), 0.3, dim),
    "nanquantile(0.3)": lambda x, dim: torch.nanquantile(x.to(FLOAT[x.dtype]), 0.3, dim),
}
FLOAT = {torch.float32: torch.float32, torch.float64: torch.float64}
_WHOLE: dict[str, Function] = {
    **{
        f"{name}()": getattr(torch, name)
        for name in ("argmax", "argmin", "max", "min", "sum", "prod", "mean")
    },
    "median()": torch.median,
    "std()": torch.std,
    "norm()": torch.norm,
    "amax((0, 1))": lambda x: torch.amax(x, (0, 1)),
    "logsumexp((0, 1))": lambda x: torch.logsumexp(x, (0, 1)),
    "all()": torch.all,
    "max of rows 3:6": lambda x: x[3:6].max(),
    "argmax of rows 3:6": lambda x: x[3:6].argmax(),
    "argmin of rows 3:6": lambda x: x[3:6].argmin(),
    "argmax of rows 17:24": lambda x: x[17:].argmax(),
    "argmin of rows 17:24": lambda x: x[17:].argmin(),
    "layer_norm": lambda x: F.layer_norm(x, (37,)),
    "rms_norm": lambda x: F.rms_norm(x, (37,)),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: F.group_norm(x[:, :36], 6),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(24) % 37, reduction="none"),
    "cross_entropy(weight 0)": lambda x: F.cross_entropy(
        x, torch.arange(24) % 2, weight=(torch.arange(37) % 2).to(x.dtype)
    ),
    "nll_loss(ignore_index)": lambda x: F.nll_loss(x, torch.arange(24) % 3, ignore_index=1),
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, torch.arange(24) % 37, reduction="none"),
    "tril": torch.tril,
    "triu": torch.triu,
    "searchsorted": lambda x: torch.searchsorted(x[17:24, :].sort(-1).values, x[:7]),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]).to(x.dtype)),
    "cov": lambda x: torch.cov(x[17:22]),
    "corrcoef": lambda x: torch.corrcoef(x[17:22]),
}


def _index(x: Tensor) -> Tensor:
    return (torch.arange(x.shape[1]) % 5).expand(x.shape[0], -1)


def _scattered(how: str) -> Function:
    return lambda x: x[:, :5].scatter_reduce(1, _index(x), x, how)


_SCATTERS: dict[str, Function] = {
    **{
        f"scatter_reduce({how})": _scattered(how) for how in ("sum", "prod", "mean", "amax", "amin")
    },
    "scatter_reduce(amax, not self)": lambda x: x[:, :5].scatter_reduce(
        1, _index(x), x, "amax", include_self=False
    ),
    "scatter_reduce(prod, not self)": lambda x: x[:, :5].scatter_reduce(
        1, _index(x), x, "prod", include_self=False
    ),
    "scatter_add": lambda x: x[:, :5].scatter_add(1, _index(x), x),
    "index_add": lambda x: x[:, :5].index_add(1, _index(x)[0], x),
    "index_add(alpha=0)": lambda x: x[:, :5].index_add(1, _index(x)[0], x, alpha=0),
    "index_reduce(amax)": lambda x: x[:, :5].index_reduce(1, _index(x)[0], x, "amax"),
    "index_put(accumulate)": lambda x: x.index_put((torch.tensor([0, 0, 1]),), x[:3], True),
    "gather": lambda x: x.gather(1, _index(x)),
    "embedding": lambda x: F.embedding(torch.tensor([0, 4, 4, 7]), x),
    "embedding(padding_idx)": lambda x: F.embedding(torch.tensor([0, 4, 4, 7]), x, padding_idx=4),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x.flip(0)),
    "where(x > 0).sum": lambda x: torch.where(x > 0, x, 0.0).sum(-1),
}
_PRODUCTS: dict[str, Function] = {
    "mm": lambda x, y, b: x @ y,
    "mv": lambda x, y, b: x @ y[:, 5],
    "dot": lambda x, y, b: x[1] @ y[:, 2],
    "mm by a column": lambda x, y, b: x @ y[:, 2:3],
    "row by mm": lambda x, y, b: x[4:5] @ y,
    "bmm": lambda x, y, b: torch.bmm(x[None], y[None]),
    "bmm by a vector": lambda x, y, b: torch.bmm(x[None], y[None, :, 2:3]),
    "addmm(beta=0)": lambda x, y, b: torch.addmm(b, x, y, beta=0),
    "addmm(alpha=0)": lambda x, y, b: torch.addmm(x, x, y, alpha=0),
    "addmm(beta=0, alpha=0)": lambda x, y, b: torch.addmm(b, x, y, beta=0, alpha=0),
    "addmv(beta=0)": lambda x, y, b: torch.addmv(b[0], x, y[:, 2], beta=0),
    "addmv(alpha=0)": lambda x, y, b: torch.addmv(x[0], x, y[:, 2], alpha=0),
    "baddbmm(beta=0)": lambda x, y, b: torch.baddbmm(b[None], x[None], y[None], beta=0),
    "baddbmm(alpha=0)": lambda x, y, b: torch.baddbmm(x[None], x[None], y[None], alpha=0),
    "addbmm(beta=0)": lambda x, y, b: torch.addbmm(b, x[None], y[None], beta=0),
    "addr(beta=0)": lambda x, y, b: torch.addr(b, x[4], y[:, 2], beta=0),
    "addr(alpha=0)": lambda x, y, b: torch.addr(x, x[4], y[:, 2], alpha=0),
    "outer": lambda x, y, b: torch.outer(x[4], y[6]),
    "linear": lambda x, y, b: F.linear(x, y, b[0]),
    "einsum": lambda x, y, b: torch.einsum("ij,kj->ik", x, y),
    "cross": lambda x, y, b: torch.linalg.cross(x[:, :3], y[:, :3]),
    "cdist": lambda x, y, b: torch.cdist(x, y),
    "attention": lambda x, y, b: F.scaled_dot_product_attention(x[None], y[None], y[None]),
    "attention, masked rows": lambda x, y, b: F.scaled_dot_product_attention(
        y[None, :5], y[None, :5], y[None, :5], torch.arange(5)[:, None].expand(5, 5) > 2
    ),
    "mm of zeros": lambda x, y, b: torch.zeros_like(x) @ y,
}
_POOLING: dict[str, Function] = {
    "max_pool2d": lambda x: F.max_pool2d(x, 2, return_indices=True),
    "max_pool2d(3, 1, 1)": lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True),
    "max_pool2d(3, 2, ceil)": lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
    "max_pool2d(dilation)": lambda x: F.max_pool2d(x, 2, 1, dilation=2, return_indices=True),
    "max_pool2d(7)": lambda x: F.max_pool2d(x, 7, 1, return_indices=True),
    "max_pool1d": lambda x: F.max_pool1d(x[0], 3, 1, 1, return_indices=True),
    "max_pool3d": lambda x: F.max_pool3d(x, 2, return_indices=True),
    "adaptive_max_pool2d": lambda x: F.adaptive_max_pool2d(x, 3, return_indices=True),
    "adaptive_max_pool2d(1)": lambda x: F.adaptive_max_pool2d(x, 1, return_indices=True),
    "avg_pool2d": lambda x: F.avg_pool2d(x, 3, 1, 1),
    "avg_pool2d(no pad)": lambda x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=False),
    "avg_pool2d(7)": lambda x: F.avg_pool2d(x, 7, 1),
    "adaptive_avg_pool2d": lambda x: F.adaptive_avg_pool2d(x, 3),
    "lp_pool2d": lambda x: F.lp_pool2d(x, 2, 2),
    "max_unpool2d": lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "interpolate(nearest)": lambda x: F.interpolate(x, scale_factor=2),
    "interpolate(bilinear)": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "interpolate(aligned)": lambda x: F.interpolate(
        x, scale_factor=2, mode="bilinear", align_corners=True
    ),
    "interpolate(bicubic)": lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"),
    "interpolate(half)": lambda x: F.interpolate(x, scale_factor=0.5, mode="bilinear"),
    "grid_sample": lambda x: F.grid_sample(x, _grid(x), align_corners=False),
    "grid_sample(border)": lambda x: F.grid_sample(
        x, _grid(x), padding_mode="border", align_corners=True
    ),
    "grid_sample(nearest)": lambda x: F.grid_sample(
        x, _grid(x), mode="nearest", align_corners=False
    ),
    "grid_sample(grid)": lambda x: F.grid_sample(
        torch.ones_like(x), x[:, :2].permute(0, 2, 3, 1), align_corners=False
    ),
    "unfold": lambda x: F.unfold(x, 3, padding=1),
    "fold": lambda x: F.fold(F.unfold(x, 2), (8, 8), 2),
    "conv2d": lambda x: F.conv2d(x, x.new_zeros(2, 4, 3, 3), padding=1),
    "reflection_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "replication_pad2d": lambda x: F.pad(x, (1, 1, 1, 1), mode="replicate"),
    "instance_norm": F.instance_norm,
    "channel argmax": lambda x: x.argmax(1),
    "argmax of the last": lambda x: x.argmax(-1),
    "channel max": lambda x: x.max(1),
    "local_response_norm": lambda x: F.local_response_norm(x, 2),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x, 2),
}


def _grid(x: Tensor) -> Tensor:
    line = torch.linspace(-1.3, 1.3, 6, dtype=x.dtype)
    grid = torch.stack(torch.meshgrid(line, line, indexing="xy"), -1)
    return grid.expand(2, -1, -1, -1)


def _call_along(function: Callable[[Tensor, int], Any], dim: int, x: Tensor) -> Any:
    return function(x, dim)


def _along(functions: dict[str, Callable[[Tensor, int], Any]]) -> list[tuple[str, Function]]:
    return [
        (f"{name}, dim {dim}", functools.partial(_call_along, function, dim))
        for name, function in functions.items()
        for dim in (0, 1)
    ]


_NOT_NARROW = ("quantile", "nanquantile", "renorm")


def _rows(named: list[tuple[str, Function]], dtypes: tuple[str, ...]) -> list[Case]:
    return [
        Case(name, "rows", function, FLOATS if name.startswith(_NOT_NARROW) else dtypes)
        for name, function in named
    ]


GROUPS = (
    Group("Reductions and scans", _ROWS, tuple(_rows(_along(_ALONG), _ALL))),
    Group("Sorts", _ROWS, tuple(_rows(_along(_SORTS), FLOATS))),
    Group("Whole tensors and normalizations", _ROWS, tuple(_rows(list(_WHOLE.items()), FLOATS))),
    Group("Scatters", _ROWS, tuple(_rows(list(_SCATTERS.items()), FLOATS))),
    Group(
        "Products",
        (CONTIGUOUS,),
        tuple(Case(name, "products", function, FLOATS) for name, function in _PRODUCTS.items()),
    ),
    Group(
        "Pooling and images",
        (CONTIGUOUS, CHANNELS_LAST),
        tuple(Case(name, "image", function, (FLOAT32,)) for name, function in _POOLING.items()),
    ),
)
