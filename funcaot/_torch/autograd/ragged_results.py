"""Jagged tensors around computed values, differentiated to any order; handlers of attention ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import torch

from funcaot._torch.autograd.autograd import native_apply

__all__ = ["around"]

Beside: TypeAlias = Mapping[str, torch.Tensor]


class _Around(torch.autograd.Function):
    """A jagged tensor of values. Torch's own op has no second derivative."""

    @staticmethod
    def forward(values: torch.Tensor, beside: Beside) -> torch.Tensor:
        from torch.nested._internal.nested_tensor import NestedTensor

        # As the class makes the results of its ops: nobody else has these values.
        names = {"min_seqlen": "_min_seqlen_tensor", "max_seqlen": "_max_seqlen_tensor"}
        known = {name: beside[key] for name, key in names.items() if key in beside}
        return NestedTensor(
            values.detach(),
            offsets=beside["_offsets"],
            lengths=beside.get("_lengths"),
            _metadata_cache=known,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.beside = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return native_apply(_Values)(gradient, ctx.beside), None


class _Values(torch.autograd.Function):
    """The transpose of that."""

    @staticmethod
    def forward(jagged: Any, beside: Beside) -> torch.Tensor:
        return torch._nested_get_values(jagged)  # type: ignore[attr-defined]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.beside = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return around(gradient, ctx.beside), None


def around(values: torch.Tensor, beside: Beside) -> Any:
    """A jagged tensor, ragged after the batch.

    Args:
        values: What it holds.
        beside: The other tensors that a jagged tensor holds, by the names of its attributes.
    """
    return native_apply(_Around)(values, beside)
