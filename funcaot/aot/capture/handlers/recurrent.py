"""Recurrent layers: what eager's fused kernels give under autocast.

A capture takes the ops that such a kernel stands for, and a graph has no autocast. So an LSTM under
autocast is computed from what oneDNN's kernel is given, to what it gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.tensors import recurrent
from funcaot._torch.tensors.guards import without_autocast
from funcaot._torch.tensors.pytree import tree_map
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.base.scopes import untraced


def run(call: Call, capture: InProgress) -> Any:
    """Run a recurrent layer by kernels that record what a backward needs."""
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
