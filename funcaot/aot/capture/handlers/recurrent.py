"""Recurrent layers: what eager's fused kernels give under autocast.

A capture takes the ops that such a kernel stands for, and a graph has no autocast. So an LSTM under
autocast is computed from what oneDNN's kernel is given, to what it gives.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.tensors import recurrent
from funcaot._torch.tensors.guards import without_autocast
from funcaot._torch.tensors.pytree import tree_map
from funcaot._torch.tracing.tracing import disable_current_modes
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.tape.known.premises import numbers_in
from funcaot.base.scopes import untraced


def run(call: Call, capture: InProgress) -> Any:
    """Run a recurrent layer by kernels that record what a backward needs."""
    data, *others = call.args
    packed = _integers(others[0]) if others else None
    if packed is not None:
        with disable_current_modes():
            sizes = torch.tensor(packed)
        with untraced(), recurrent.without_fused_recurrence():
            return call.func(data, sizes, *others[1:], **call.kwargs)
    lowered = _lowered_dtype(call.func, call.args)
    with untraced(), recurrent.without_fused_recurrence():
        if lowered is None:
            return call.run()
        with without_autocast():

            def rounded(value: Any) -> Any:
                floating = isinstance(value, torch.Tensor) and value.is_floating_point()
                return value.to(lowered).float() if floating else value

            results = call.func(*tree_map(rounded, call.args), **call.kwargs)
            return tuple(result.to(lowered) for result in results)


def leave_apart(call: Call, capture: InProgress) -> Any:
    """Weights of a layer on a GPU, which torch would put side by side in memory, for speed."""
    return call.args[0][0]


def pack_padded(call: Call, capture: InProgress) -> Any:
    """Sequences that lie side by side, step after step, and how many go on at each."""
    x, lengths, batch_first = call.args
    steps = _integers(lengths)
    if call.kwargs or not steps or x.dim() < 2 or x.numel() == 0:
        return NotImplemented
    rows = x.transpose(0, 1) if batch_first else x
    if steps != sorted(steps, reverse=True) or steps[-1] < 1 or len(steps) != rows.shape[1]:
        return NotImplemented  # torch says what is wrong
    parts, sizes = [], []
    for begin, end in itertools.pairwise(sorted({0, *steps})):
        size = sum(length > begin for length in steps)
        part = rows[begin:end, :size].contiguous()
        parts.append(part.view((end - begin) * size, *rows.shape[2:]))
        sizes += [size] * (end - begin)
    return torch.cat(parts), torch.tensor(sizes)


def pad_packed(call: Call, capture: InProgress) -> Any:
    """The sequences of a packed one side by side, as torch puts them, and how long each is."""
    data, batch_sizes, batch_first, padding, least = call.args
    sizes = _integers(batch_sizes)
    if call.kwargs or not sizes or (least > 0 and least < len(sizes)):
        return NotImplemented
    rest = data.shape[1:]
    padded = torch.full(
        (max(least, len(sizes)), sizes[0], *rest), padding, dtype=data.dtype, device=data.device
    )
    begin = step = 0
    for size, equal in itertools.groupby(sizes):
        steps = len(list(equal))
        part = data[begin : begin + size * steps].view(steps, size, *rest)
        padded[step : step + steps, :size].copy_(part)
        begin, step = begin + size * steps, step + steps
    lengths = torch.tensor([sum(size > place for size in sizes) for place in range(sizes[0])])
    return (padded.transpose(0, 1) if batch_first else padded), lengths


def _integers(value: Any) -> list[int] | None:
    """Lengths, or how many sequences go on at each step; None if it isn't that, or isn't known."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.int64:
        return None
    numbers = numbers_in(value)
    return None if numbers is NotImplemented else list(numbers)


def _lowered_dtype(func: Callable[..., Any], args: tuple[Any, ...]) -> torch.dtype | None:
    """The dtype that oneDNN's LSTM computes in under autocast, if eager takes it."""
    if func is not recurrent.LSTM or not torch.is_autocast_enabled("cpu"):
        return None
    if not (torch.backends.mkldnn.is_available() and recurrent.mkldnn_enabled()):
        return None
    first, states = args[0], args[1]
    # A packed sequence has its batch sizes here, and isn't for oneDNN; nor are projections.
    if isinstance(states, torch.Tensor) or states[0].shape[-1] != states[1].shape[-1]:
        return None
    if first.device.type != "cpu" or first.numel() == 0 or first.dtype is torch.float64:
        return None
    return torch.get_autocast_dtype("cpu")
