"""Losses and padding with an open number, as the ops that torch makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from funcaot.aot.capture.numbers.formulas import by_formula, held, is_plain, is_positive
from funcaot.aot.capture.numbers.given import Rule, is_real

__all__ = ["RULES"]

Maybe: TypeAlias = torch.Tensor | None
_REDUCTIONS = ("none", "mean", "sum")
_MEAN, _SUM = 1, 2


def _reduced(loss: torch.Tensor, reduction: int) -> torch.Tensor:
    if reduction == _MEAN:
        return loss.mean()
    return loss.sum() if reduction == _SUM else loss


def _near(difference: torch.Tensor, limit: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The size of a difference, where it is below a limit, and the difference there alone."""
    size = difference.abs()
    below = size < limit
    return size, below, torch.where(below, difference, 0.0)


def _huber_loss(input: Any, target: Any, reduction: int = _MEAN, delta: Any = 1.0) -> Maybe:
    if not is_plain(input, target) or not is_positive(delta):
        return None
    if (limit := held(delta, input.dtype)) is None:
        return None
    size, below, near = _near(input - target, limit)
    far = limit * (size - 0.5 * limit)
    return _reduced(torch.where(below, 0.5 * near * near, far), reduction)


def _smooth_l1_loss(input: Any, target: Any, reduction: int = _MEAN, beta: Any = 1.0) -> Maybe:
    if not is_plain(input, target) or not is_positive(beta):
        return None
    if (limit := held(beta, input.dtype)) is None:
        return None
    size, below, near = _near(input - target, limit)
    loss = torch.where(below, 0.5 * near * near / limit, size - 0.5 * limit)
    return _reduced(loss, reduction)


def _margin_ranking_loss(
    input1: Any, input2: Any, target: Any, margin: Any = 0.0, reduction: int = _MEAN
) -> Maybe:
    if not is_plain(input1, input2) or not isinstance(target, torch.Tensor):
        return None
    if (held_margin := held(margin, input1.dtype)) is None:
        return None
    return _reduced((-target * (input1 - input2) + held_margin).clamp_min(0), reduction)


def _hinge_embedding_loss(
    input: Any, target: Any, margin: Any = 1.0, reduction: int = _MEAN
) -> Maybe:
    if not is_plain(input) or not isinstance(target, torch.Tensor):
        return None
    if (held_margin := held(margin, input.dtype)) is None:
        return None
    beyond = torch.where(target != 1, (held_margin - input).clamp_min(0), 0.0)
    return _reduced(beyond + torch.where(target != -1, input, 0.0), reduction)


def _triplet_margin_loss(
    anchor: Any,
    positive: Any,
    negative: Any,
    margin: Any = 1.0,
    *others: Any,
    **named: Any,
) -> Maybe:
    """The loss of a triplet by its distances, all of whose other numbers are plain."""
    names = ("p", "eps", "swap", "reduction")
    given = {"p": 2.0, "eps": 1e-6, "swap": False, "reduction": _MEAN}
    given |= dict(zip(names, others, strict=False)) | named
    if not is_plain(anchor, positive, negative) or len(given) != len(names):
        return None
    if {type(value) for value in given.values()} - {int, float, bool}:
        return None
    if (held_margin := held(margin, anchor.dtype)) is None:
        return None

    def distance(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return torch.pairwise_distance(first, second, given["p"], given["eps"])

    to_negative = distance(anchor, negative)
    if given["swap"]:
        to_negative = torch.min(to_negative, distance(positive, negative))
    loss = (held_margin + distance(anchor, positive) - to_negative).clamp_min(0)
    return _reduced(loss, int(given["reduction"]))


def _cross_entropy_loss(
    input: Any,
    target: Any,
    weight: Any = None,
    reduction: int = _MEAN,
    ignore_index: Any = -100,
    label_smoothing: Any = 0.0,
) -> Maybe:
    """Of classes without weights, whose labels are smoothed."""
    if not is_plain(input) or weight is not None or not isinstance(target, torch.Tensor):
        return None
    if target.is_floating_point() or not (0 < label_smoothing <= 1):
        return None
    dim = 0 if input.dim() == 1 else 1
    logarithms = torch.log_softmax(input, dim, dtype=input.dtype)
    ignored = target == ignore_index
    smooth = (-logarithms.sum(dim)).masked_fill(ignored, 0.0)
    if reduction == _MEAN:
        smooth = smooth.sum() / (~ignored).sum()
    elif reduction == _SUM:
        smooth = smooth.sum()
    hard = F.nll_loss(
        logarithms, target, ignore_index=ignore_index, reduction=_REDUCTIONS[reduction]
    )
    part = held(label_smoothing / input.shape[dim], hard.dtype)
    rest = held(1 - label_smoothing, hard.dtype)
    return None if part is None or rest is None else rest * hard + smooth * part


def _constant_pad_nd(input: Any, pad: Sequence[int], value: Any = 0) -> Maybe:
    """Padded with zeros, and filled where it was."""
    if not is_real(input) or input.is_nested or (filling := held(value, input.dtype)) is None:
        return None
    inside = torch.zeros(input.shape, dtype=torch.bool, device=input.device)
    outside = torch.constant_pad_nd(inside, pad, True)
    return torch.constant_pad_nd(input, pad, 0).masked_fill(outside, filling)


def _pad(input: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Maybe:
    return _constant_pad_nd(input, pad, value) if mode == "constant" else None


RULES: dict[str, Rule] = {
    "huber_loss": by_formula(_huber_loss),
    "smooth_l1_loss": by_formula(_smooth_l1_loss),
    "margin_ranking_loss": by_formula(_margin_ranking_loss),
    "hinge_embedding_loss": by_formula(_hinge_embedding_loss),
    "triplet_margin_loss": by_formula(_triplet_margin_loss),
    "cross_entropy_loss": by_formula(_cross_entropy_loss),
    "constant_pad_nd": by_formula(_constant_pad_nd),
    "pad": by_formula(_pad),
}
