"""Ops that update running statistics and don't say so; ``TapeFunctionalMode`` asks here.

A graph keeps what an op declares. Of cuDNN's batch normalization it would keep the result, and
Inductor, which computes it otherwise, would leave the update out without a word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from funcaot.errors import UnsupportedError

__all__ = ["SILENT", "as_declared"]

aten = torch.ops.aten

# They update the statistics that they are given, and their schemas don't say so.
_BY_CUDNN = aten.cudnn_batch_norm.default
_BY_MIOPEN = aten.miopen_batch_norm.default
SILENT = frozenset(
    {
        _BY_CUDNN,
        _BY_MIOPEN,
        aten.batch_norm_gather_stats.default,
        aten.batch_norm_gather_stats_with_counts.default,
        aten.batch_norm_update_stats.default,
    }
)


def as_declared(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What such an op returns, by torch's own kernel, whose writes are known.

    Args:
        func: One of ``SILENT``, below autograd.
        args: Its arguments.
        kwargs: Its keywords.

    Returns:
        Its results, or ``NotImplemented`` if it writes to nothing.

    Raises:
        UnsupportedError: Autograd expects this kernel's backward, or there is no other kernel.
    """
    names = [argument.name for argument in func._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    mean, variance = given.get("running_mean"), given.get("running_var")
    if not given.get("training", True) or (mean is None and variance is None):
        return NotImplemented
    if func not in (_BY_CUDNN, _BY_MIOPEN) or torch.is_grad_enabled():
        raise UnsupportedError(
            f"{func._schema.name.split('::')[1]} updates running statistics without a word, so no "
            "graph would keep it.",
            remedy="call torch.nn.functional.batch_norm.",
        )
    image, weight, bias = args[:3]
    factors = (given["exponential_average_factor"], given["epsilon"])
    made = aten._native_batch_norm_legit.default(
        image, weight, bias, mean, variance, True, *factors
    )
    if func is _BY_MIOPEN:
        return made
    return (*made, torch.empty(0, dtype=torch.uint8, device=image.device))
