"""``ctc_loss``: its recursion in differentiable ops.

Torch's backward is that of the loss after a ``log_softmax``: it adds the probabilities to the
gradient of the recursion, which the normalisation takes away again. So does this.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import gradient_of, transposed

aten = torch.ops.aten
_SIGNATURE = inspect.signature(torch.nn.functional.ctc_loss)
_IMPOSSIBLE = -1e30  # finite, so that no derivative is infinity minus infinity


def _padded(targets: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """One row of labels for each example, also where torch was given one list of all."""
    if targets.dim() == 2:
        return targets
    starts = (lengths.cumsum(0) - lengths).unsqueeze(1)
    places = starts + torch.arange(longest, device=targets.device)
    return targets[places.clamp(max=max(targets.shape[0] - 1, 0))]


def _shifted(alpha: Tensor, by: int) -> Tensor:
    return torch.nn.functional.pad(alpha[:, : alpha.shape[1] - by], (by, 0), value=_IMPOSSIBLE)


def _loss(log_probs: Tensor, labels: Tensor, steps: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """The negative log-likelihood of each example."""
    examples, longest = labels.shape
    states = labels.new_full((examples, 2 * longest + 1), blank)
    states[:, 1::2] = labels
    skips = torch.zeros_like(states, dtype=torch.bool)
    skips[:, 2:] = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    start = torch.arange(states.shape[1], device=labels.device) < 2
    alpha = torch.where(start, log_probs[0].gather(1, states), _IMPOSSIBLE)
    for step in range(1, log_probs.shape[0]):
        from_two = torch.where(skips, _shifted(alpha, 2), _IMPOSSIBLE)
        ways = torch.stack([alpha, _shifted(alpha, 1), from_two])
        moved = torch.logsumexp(ways, 0) + log_probs[step].gather(1, states)
        alpha = torch.where((step < steps).unsqueeze(1), moved, alpha)
    last = alpha.gather(1, 2 * lengths.unsqueeze(1)).squeeze(1)
    before = alpha.gather(1, (2 * lengths.unsqueeze(1) - 1).clamp(min=0)).squeeze(1)
    before = torch.where(lengths > 0, before, _IMPOSSIBLE)
    return -torch.logaddexp(last, before)


def _backward(
    arriving: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    *rest: Any,
) -> Tensor:
    negative_log_likelihood, _, blank, *options = rest
    zero_infinity = bool(options and options[0])
    device = log_probs.device
    longest = targets.shape[-1]
    if isinstance(target_lengths, Sequence) and targets.dim() == 1:
        longest = max(target_lengths, default=0)
    steps = torch.as_tensor(input_lengths, device=device).to(torch.int64)
    lengths = torch.as_tensor(target_lengths, device=device).to(torch.int64)
    labels = _padded(targets.to(torch.int64), lengths, longest)
    if zero_infinity:
        impossible = negative_log_likelihood.isposinf()
        arriving = torch.where(impossible, torch.zeros_like(arriving), arriving)

    def loss(log_probs: Tensor) -> Tensor:
        return _loss(log_probs, labels, steps, lengths, blank)

    running = torch.arange(log_probs.shape[0], device=device).unsqueeze(1) < steps
    normalised = log_probs.exp() * (arriving * running).unsqueeze(2)
    return normalised + gradient_of(loss, log_probs, arriving)


def in_differentiable_ops(*args: Any, **kwargs: Any) -> Tensor | None:
    """The loss without the op, whose results' sizes depend on values.

    Its gradient is that of torch, which adds the probabilities to that of the recursion.

    Args:
        args: What ``torch.nn.functional.ctc_loss`` is given.
        kwargs: What it is given by name.

    Returns:
        None where all labels are in one row.
    """
    bound = _SIGNATURE.bind(*args, **kwargs)
    bound.apply_defaults()
    log_probs, targets, *counts, blank, reduction, zero_infinity = bound.arguments.values()
    alone = log_probs.dim() == 2
    steps, lengths = [
        torch.as_tensor(count, device=log_probs.device).to(torch.int64).reshape(-1)
        for count in counts
    ]
    if alone:
        log_probs, targets = log_probs.unsqueeze(1), targets.unsqueeze(0)
    if targets.dim() != 2:
        return None
    losses = _loss(log_probs, targets.to(torch.int64), steps, lengths, blank)
    running = torch.arange(log_probs.shape[0], device=log_probs.device).unsqueeze(1) < steps
    added = (log_probs.exp() * running.unsqueeze(2)).sum((0, 2))
    losses = losses + (added - added.detach())
    losses = torch.where(losses > -_IMPOSSIBLE / 2, 0.0 if zero_infinity else torch.inf, losses)
    if reduction in ("mean", 1):
        return (losses / lengths.clamp(min=1)).mean()
    if reduction in ("sum", 2):
        return losses.sum()
    return losses.squeeze(0) if alone else losses


for _forward, _op in (
    (aten._ctc_loss.default, aten._ctc_loss_backward.default),
    (aten._ctc_loss.Tensor, aten._ctc_loss_backward.Tensor),
):
    register(Derivative(_forward, jvp=transposed(_forward), reverse=False))
    register(Derivative(_op, _backward, constant=frozenset({"neg_log_likelihood_", "log_alpha_"})))
