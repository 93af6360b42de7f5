"""``flex_attention`` as the formula that it stands for, which has every derivative.

A capture runs this in place of torch's operator (``aot.capture.grad_effects`` asks for it). Torch
computes the same when nothing is compiled: all scores at once, each changed by the user's function
under ``vmap``. Its operator has a gradient on some devices, and nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from funcaot._torch.tensors.guards import without_autocast
from funcaot._torch.tensors.pytree import tree_flatten

__all__ = ["flexible_attention"]

Modified = Callable[..., Tensor]


class _Indexing(TorchFunctionMode):
    """``table[head]`` looks up, where Python would ask the index for its number."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is torch.Tensor.__getitem__:
            table, places = args[0], tree_flatten(args[1])[0]
            if all(isinstance(place, Tensor | int) for place in places):
                found = [
                    place if isinstance(place, Tensor) else torch.tensor(place, device=table.device)
                    for place in places
                ]
                return torch.ops.aten.index.Tensor(table, found)
        return func(*args, **(kwargs or {}))


def flexible_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Modified,
    block_mask: tuple[Any, ...],
    *rest: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """What torch's operator computes.

    Args:
        query: Of shape ``(batch, heads, rows, features)``.
        key: Of shape ``(batch or 1, heads or a divisor, columns, features)``.
        value: Like ``key``, with features of its own.
        score_mod: Makes a score of one and of its four indices.
        block_mask: Ends with a function of the indices that says what is seen.
        rest: The scale; options of kernels, which mean nothing here; and what is given to
            ``score_mod`` and to the mask after the indices.

    Returns:
        The output, and the rows' logarithms of sums and their maxima, to the base 2.
    """
    scale, _, *others = rest
    of_scores, of_mask = (*others, (), ())[:2]
    device = query.device.type
    if torch.is_autocast_enabled(device):
        query, key, value = (_lowered(x, device) for x in (query, key, value))
    with without_autocast(), _Indexing():
        return _computed(
            query,
            key,
            value,
            lambda *indices: score_mod(*indices, *of_scores),
            lambda *indices: block_mask[-1](*indices, *of_mask),
            scale,
        )


def _lowered(tensor: Tensor, device: str) -> Tensor:
    """What an op under autocast is given."""
    return tensor if tensor.dtype is torch.float64 else tensor.to(torch.get_autocast_dtype(device))


def _computed(
    query: Tensor, key: Tensor, value: Tensor, score_mod: Modified, sees: Modified, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    batch, strides = query.shape[0], query.stride()
    if batch != key.shape[0] and key.shape[0] != 1:
        raise RuntimeError(
            f"Bq and Bkv must broadcast. Got Bq={batch} and Bkv={key.shape[0]}"  # torch's text
        )
    groups = query.shape[1] // key.shape[1]
    key, value = (
        torch.repeat_interleave(x, groups, dim=1).expand(batch, -1, -1, -1) for x in (key, value)
    )
    precise = torch.float64 if query.dtype is torch.float64 else torch.float32
    scores = (query.to(precise) @ key.to(precise).transpose(-2, -1) * scale).to(precise)
    indices = [torch.arange(size, device=scores.device) for size in scores.shape]
    unseen = torch.tensor(-math.inf, dtype=precise, device=scores.device)
    scores = torch.where(
        _of_all(sees)(*indices), _of_all(score_mod, scores=(0,))(scores, *indices), unseen
    )
    # A row that sees nothing is zero and has no derivatives.
    blind = (scores == -math.inf).all(-1, keepdim=True)
    safe = scores.masked_fill(blind, 0)
    weights = safe.softmax(-1).masked_fill(blind, 0)
    sums = safe.logsumexp(-1).masked_fill(blind.squeeze(-1), -math.inf)
    output = weights.to(query.dtype) @ value.to(query.dtype)
    maxima = scores.detach().max(-1).values
    return _laid_out(output, strides), sums / math.log(2), maxima / math.log(2)


def _of_all(function: Modified, scores: tuple[int, ...] = ()) -> Modified:
    """A function of one score, of all; indices come after it."""
    for place in (3, 2, 1, 0):
        chosen = tuple(0 if place == index else None for index in range(4))
        function = torch.vmap(function, in_dims=(*scores, *chosen))
    return function


def _laid_out(output: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The output with its dimensions in memory as the query's, features innermost."""
    # Of equal strides the later dimension is the inner one.
    outwards = sorted(range(4), key=lambda dim: (strides[dim], -dim))
    if outwards[0] != 3:
        outwards = [3, *(dim for dim in outwards if dim != 3)]
    inwards = outwards[::-1]
    laid = output.permute(inwards).clone(memory_format=torch.contiguous_format)
    return laid.permute([inwards.index(dim) for dim in range(4)])
