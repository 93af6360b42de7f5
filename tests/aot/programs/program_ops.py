"""The ops of random programs, by what they do with their operands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def _item(tensor: torch.Tensor, index: int) -> torch.Tensor:
    return tensor.unbind(0)[index]


VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "flatten": lambda x: x.reshape(-1),
    "view": lambda x: x.view(-1),
    "t": lambda x: x.transpose(0, -1),
    "select": lambda x, i: x.select(0, i),
    "narrow": lambda x, i, n: x.narrow(0, i, n),
    "step": lambda x: x[::2],
    "unsqueeze": lambda x: x.unsqueeze(0),
    "squeeze": lambda x: x.squeeze(),
    "diagonal": lambda x: x.diagonal(),
    "item": _item,
    "split": lambda x: x.split(1)[-1],
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
    "expand": lambda x: x.unsqueeze(0).expand(2, *x.shape),
    "view_as": lambda x: x.view_as(x),
    "alias": lambda x: x[...],
}

PURE: dict[str, Callable[..., torch.Tensor]] = {
    "sin": lambda x: x.sin(),
    "mul": lambda x, y: x * y,
    "scale": lambda x: x * 0.5,
    "clone": lambda x: x.clone(),
    "sum": lambda x: x.sum(),
}

WRITES: dict[str, Callable[..., Any]] = {
    "mul_": lambda x: x.mul_(1.25),
    "sin_": lambda x: x.sin_(),
    "zero_": lambda x: x.zero_(),
    "add_": lambda x, y: x.add_(y),
    "copy_": lambda x, y: x.copy_(y),
    "times_": lambda x, y: x.mul_(y),
    "setitem": lambda x: x.__setitem__(0, 3.0),
}

METADATA: dict[str, Callable[..., Any]] = {
    "transpose_": lambda x: x.transpose_(0, -1),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(),
    "detach_": lambda x: x.detach_(),
    "requires_grad_": lambda x: x.requires_grad_(),
}

WIDE_VIEWS: dict[str, Callable[..., torch.Tensor]] = {
    "as integers": lambda x: x.view(torch.int64),
    "as halves": lambda x: x.view(torch.int32),
    "as bytes": lambda x: x.view(torch.uint8),
    "as floats": lambda x: x.view(torch.float64),
    "chunk": lambda x, i: x.chunk(2)[i],
    "unsafe_split": lambda x, i: x.unsafe_split(1)[i],
    "unsafe_chunk": lambda x, i: x.unsafe_chunk(2)[i],
    "tensor_split": lambda x, i: x.tensor_split(2)[i],
    "split_with_sizes": lambda x, i: x.split_with_sizes([1, x.shape[0] - 1])[i],
    "hsplit": lambda x, i: x.hsplit(2)[i],
    "unfold": lambda x: x.unfold(0, 2, 1),
    "movedim": lambda x: x.movedim(0, -1),
    "mT": lambda x: x.mT,
    "as_strided": lambda x: x.as_strided((2,), (1,)),
    "placed": lambda x, i: x.as_strided((2,), (1,), i),
    "by index": lambda x, i: x[i],
    "mixed": lambda x: x[..., None, 1:],
    "unflatten": lambda x: x.unflatten(-1, (2, -1)),
    "broadcast": lambda x: x.broadcast_to(2, *x.shape),
}

WIDE_PURE: dict[str, Callable[..., torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "reshape": lambda x: x.reshape(-1),
    "to the same": lambda x: x.to(x.dtype),
    "compare": lambda x: x > 1,
    "cat": lambda x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    "like": lambda x: torch.zeros_like(x),
    "sort": lambda x: x.sort(dim=0)[0],
}

WIDE_WRITES: dict[str, Callable[..., Any]] = {
    "fill_": lambda x: x.fill_(0.75),
    "clamp_": lambda x: x.clamp_(0.4, 1.4),
    "masked_fill_": lambda x: x.masked_fill_(x > 1, 0.25),
    "index_fill_": lambda x: x.index_fill_(0, torch.tensor([0]), 0.5),
    "index_put_": lambda x: x.__setitem__(torch.tensor([0]), 0.5),
    "index_add_": lambda x: x.index_add_(0, torch.tensor([0]), torch.ones_like(x[:1])),
    "slice = value": lambda x: x.__setitem__(slice(0, 1), 2.0),
    "row = row": lambda x: x.__setitem__(0, x[1].clone()),
    "out": lambda x: torch.add(x.detach(), 1.0, out=x.detach()),
    "foreach": lambda x: torch._foreach_mul_([x], 1.5),
    "foreach of two": lambda x, y: torch._foreach_add_([x, y], 1.0),
    "+=": lambda x: x.__iadd__(1),
    "squared": lambda x: x.mul_(x),
    "copy of a clone": lambda x, y: x.copy_(y.clone()),
    "data *=": lambda x: x.data.mul_(2),
    "swap": lambda x: x.copy_(x.flip(0)),
    "relu_": lambda x: torch.relu_(x),
    "cumsum_": lambda x: x.cumsum_(0),
    "by name": lambda x: torch.nn.functional.elu_(x),
}

WIDE_METADATA: dict[str, Callable[..., Any]] = {
    "resize_": lambda x: x.resize_(2),
    "resize_ larger": lambda x: x.resize_(13).zero_(),
    "set_": lambda x, y: x.set_(y),
    "as_strided_": lambda x: x.as_strided_((2,), (1,)),
    "swapaxes_": lambda x: x.swapaxes_(0, -1),
    "requires_grad_(False)": lambda x: x.requires_grad_(False),
}

# By whether the narrow table was VIEWS, PURE or WRITES.
WIDE = {
    (True, False, False): WIDE_VIEWS,
    (False, True, False): WIDE_PURE,
    (False, False, True): WIDE_WRITES,
    (False, False, False): WIDE_METADATA,
}
SPLITS = ("chunk", "unsafe_split", "unsafe_chunk", "tensor_split", "split_with_sizes")
INDEXED = frozenset(("select", "item", "by index", "hsplit", *SPLITS))


def _written(write: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Write a part of a tensor, then copy all of it."""

    def run(x: torch.Tensor) -> torch.Tensor:
        write(x)
        return x.clone()

    return run


def _read(write: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Copy a tensor, then write over what was copied."""

    def run(x: torch.Tensor) -> torch.Tensor:
        before = x.clone()
        write(x)
        return before

    return run


def _backwards(x: torch.Tensor) -> torch.Tensor:
    """Indices of the rows from the last to the first, as many as there are elements."""
    rows = torch.arange(len(x) - 1, -1, -1)
    return rows.view(-1, *[1] * (x.dim() - 1)).expand(x.shape)


# What a compiler may take for its operand: it has the same elements.
EQUAL: dict[str, Callable[..., torch.Tensor]] = {
    "clone": lambda x: x.clone(),
    "clone twice": lambda x: x.clone().clone(),
    "cat of one": lambda x: torch.cat([x]),
    "cat of one and nothing": lambda x: torch.cat([x, x[:0]]),
    "stack of one": lambda x: torch.stack([x])[0],
    "pad by 0": lambda x: torch.nn.functional.pad(x, (0, 0)),
    "plus 0": lambda x: x + 0,
    "plus zeros": lambda x: x + torch.zeros_like(x),
    "zeros plus": lambda x: torch.zeros_like(x) + x,
    "minus 0": lambda x: x - 0,
    "minus zeros": lambda x: x - torch.zeros_like(x),
    "times 1": lambda x: x * 1,
    "times ones": lambda x: x * torch.ones_like(x),
    "ones times": lambda x: torch.ones_like(x) * x,
    "by 1": lambda x: x / 1,
    "by ones": lambda x: x / torch.ones_like(x),
    "to the power of 1": lambda x: x**1,
    "positive": lambda x: +x,
    "to a copy": lambda x: x.to(x.dtype, copy=True),
    "to float64": lambda x: x.double(),
    "repeated once": lambda x: x.repeat(*[1] * x.dim()),
    "rolled by 0": lambda x: x.roll(0, 0),
    "flipped twice": lambda x: x.flip(0).flip(0),
    "all rows": lambda x: x[torch.arange(len(x))],
    "same where": lambda x: torch.where(torch.ones_like(x, dtype=torch.bool), x, 0.0),
    "copied into": lambda x: torch.empty_like(x).copy_(x),
    "in a slice": lambda x: x.clone().slice_scatter(x),
    "sum of one": lambda x: x.unsqueeze(0).sum(0),
    "clamped to all": lambda x: x.clamp(min=-1e9),
    "expanded": lambda x: x.expand(x.shape),
    "viewed": lambda x: x.view(x.shape),
    "reshaped": lambda x: x.reshape(x.shape),
    "all of it": lambda x: x[:],
    "permuted": lambda x: x.permute(*range(x.dim())),
    "transposed twice": lambda x: x.transpose(0, -1).transpose(0, -1),
    "flat and back": lambda x: x.reshape(-1).view(x.shape),
    "detached": lambda x: x.detach(),
    "detached clone": lambda x: x.detach().clone(),
}

# Partial writes beside copies, and writes that read what they overwrite.
OVERWRITES: dict[str, Callable[..., Any]] = {
    "row, clone": _written(lambda x: x.__setitem__(0, 2.0)),
    "last row, clone": _written(lambda x: x.__setitem__(-1, x.sum())),
    "rows, clone": _written(lambda x: x.__setitem__(slice(1, None), 0.75)),
    "by index, clone": _written(lambda x: x.__setitem__(torch.tensor([0]), 0.5)),
    "added to, clone": _written(lambda x: x[:1].add_(1.0)),
    "clone, zero_": _read(lambda x: x.zero_()),
    "clone, row": _read(lambda x: x.__setitem__(0, 2.0)),
    "clone, mul_": _read(lambda x: x.mul_(1.5)),
    "shift": lambda x: x.__setitem__(slice(1, None), x[:-1].clone()),
    "shift back": lambda x: x.__setitem__(slice(None, -1), x[1:].clone()),
    "halves": lambda x: x[: len(x) // 2].copy_(x[len(x) - len(x) // 2 :].clone()),
    "rotate": lambda x: x.copy_(torch.cat([x[1:], x[:1]])),
    "reversed by index": lambda x: x.__setitem__(torch.arange(len(x) - 1, -1, -1), x.clone()),
    "scattered": lambda x: x.scatter_(0, _backwards(x), x.clone()),
    "scattered sum": lambda x: x.scatter_add_(0, _backwards(x), x.clone()),
    "index_copy_": lambda x: x.index_copy_(0, torch.tensor([0]), x[-1:].clone()),
    "where flipped": lambda x: x.copy_(torch.where(x > 1, x.flip(0), x)),
    "own clone added": lambda x: x.add_(x.clone()),
    "reversed sums": lambda x: x.copy_(x.flip(0).cumsum(0)),
    "into the first": lambda x, y: x[:1].copy_(y.reshape(-1)[:1].clone()),
}

OPS: dict[str, Callable[..., Any]] = {
    **VIEWS,
    **PURE,
    **WRITES,
    **METADATA,
    **WIDE_VIEWS,
    **WIDE_PURE,
    **WIDE_WRITES,
    **WIDE_METADATA,
    **EQUAL,
    **OVERWRITES,
}
