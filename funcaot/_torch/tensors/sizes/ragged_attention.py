"""Which kernel torch takes for the attention of jagged tensors, and that kernel."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn.attention import SDPBackend

__all__ = ["RaggedAttention", "asked", "by_math_kernel"]

Packed: TypeAlias = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class RaggedAttention:
    """An attention of jagged tensors by the MATH kernel.

    Attributes:
        operands: Query, key and value: batch, heads, ragged, features.
        scale: Of the scores, if one is given.
        dropout: The probability that a weight is dropped.
    """

    operands: tuple[Any, Any, Any]
    scale: float | None
    dropout: float


def asked(args: Sequence[Any], kwargs: Mapping[str, Any]) -> RaggedAttention | None:
    """What a call asks for; None if it isn't the MATH kernel, or not of heads side by side.

    Raises:
        ValueError: If torch takes no such operands.
    """
    from torch.nested._internal import sdpa

    given = inspect.signature(sdpa.jagged_scaled_dot_product_attention).bind(*args, **kwargs)
    given.apply_defaults()
    query, key, value, mask, dropout, causal, scale, grouped = given.arguments.values()
    query, key, value, mask = sdpa._autocast(query, key, value, mask)
    sdpa._validate_sdpa_input(query, key, value, mask, dropout, causal, scale)
    if any(each.dim() != 4 or _ragged_dim(each) != 2 for each in (query, key, value)):
        return None
    alike = query.shape[:2] == key.shape[:2] == value.shape[:2]
    if not alike or query.shape[3] != key.shape[3]:
        return None  # torch says what is wrong
    kernel = sdpa._select_sdp_backend(query, key, value, mask, dropout, causal, grouped)
    if kernel is not SDPBackend.MATH:
        return None
    return RaggedAttention((query, key, value), scale, dropout)


def _ragged_dim(jagged: Any) -> int:
    return jagged._ragged_idx


def by_math_kernel(
    query: Packed, key: Packed, value: Packed, *, scale: float | None
) -> torch.Tensor:
    """What torch's kernel gives for packed tensors, each with its offsets: the packed values.

    Raises:
        RuntimeError: Torch's own, if the lengths are others.
    """
    operands = (_strided(query), _strided(key), _strided(value))
    found = torch._scaled_dot_product_attention_math(*operands, scale=scale)[0]
    return found.transpose(1, 2).contiguous().values()


def _strided(packed: Packed) -> torch.Tensor:
    values, offsets = packed
    parts = values.split(offsets.diff().tolist())
    return torch.nested.as_nested_tensor(list(parts)).transpose(1, 2).contiguous()
