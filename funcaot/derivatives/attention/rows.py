"""Derivatives of attention for some rows of the queries; ``operators`` runs them block by block.

Every function takes tensors of three dimensions (batch and heads together, rows, features) and is
written in ops that have derivatives, so that it also is the formula for the orders after it.
With ``P`` the weights, ``S`` the scores and ``g`` what arrives at the output ``P v``, the backward
is ``dP = g v^T``, ``dS = P (dP - sum(P dP))``, and the gradients of query, key, value and bias
are ``scale dS k``, ``scale dS^T q``, ``P^T g`` and ``dS``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

Maybe: TypeAlias = Tensor | None


@dataclass(frozen=True)
class Attention:
    """Which attention it is, for some rows.

    Attributes:
        batch: Sizes of batch and heads, which the scores have apart where a bias is added.
        bias: What is added to the scores of these rows, of four dimensions.
        causal: Whether a row sees no later key.
        scale: What the scores are multiplied by.
        first: The number of the first row.
    """

    batch: tuple[int, int]
    bias: Maybe
    causal: bool
    scale: float
    first: int = 0

    def apart(self, scores: Tensor) -> Tensor:
        """Batch and heads as two dimensions."""
        return scores.unflatten(0, self.batch)

    def weights(self, query: Tensor, key: Tensor) -> Tensor:
        """The weights of the rows; zeros where a row sees no key."""
        scores = torch.bmm(query * self.scale, key.transpose(1, 2))
        if self.bias is not None:
            scores = self.apart(scores).add(self.bias).flatten(0, 1)
        if self.causal:
            rows = torch.arange(query.shape[1], device=query.device) + self.first
            columns = torch.arange(key.shape[1], device=query.device)
            scores = scores.masked_fill(columns > rows[:, None], -torch.inf)
        if self.bias is None:
            return torch.softmax(scores, -1)
        blind = scores.isneginf().all(-1, keepdim=True)
        return torch.softmax(scores.masked_fill(blind, 0.0), -1).masked_fill(blind, 0.0)

    def pushed_scores(
        self, query: Tensor, key: Tensor, moved_query: Maybe, moved_key: Maybe, moved_bias: Maybe
    ) -> Maybe:
        """How scores change with query, key and bias, None if they don't."""
        scores = None
        if moved_query is not None:
            scores = torch.bmm(moved_query * self.scale, key.transpose(1, 2))
        if moved_key is not None:
            scores = _plus_product(scores, query * self.scale, moved_key.transpose(1, 2))
        if moved_bias is not None:
            size = (*self.batch, query.shape[1], key.shape[1])
            moved = moved_bias.expand(size).flatten(0, 1)
            scores = moved if scores is None else scores + moved
        return scores


def _plus_product(total: Maybe, left: Tensor, right: Tensor) -> Tensor:
    return torch.bmm(left, right) if total is None else torch.baddbmm(total, left, right)


def _plus(total: Maybe, term: Tensor) -> Tensor:
    return term if total is None else total + term


def along(weights: Tensor, change: Tensor) -> Tensor:
    """The derivative of softmax, which is its own transpose."""
    return weights * (change - (weights * change).sum(-1, keepdim=True))


def pushforward(
    this: Attention, primals: Sequence[Tensor], tangents: Sequence[Maybe], moved_bias: Maybe
) -> Maybe:
    """The tangent of the output along those of query, key and value."""
    query, key, value = primals
    moved_query, moved_key, moved_value = tangents
    weights, result = this.weights(query, key), None
    scores = this.pushed_scores(query, key, moved_query, moved_key, moved_bias)
    if scores is not None:
        result = torch.bmm(along(weights, scores), value)
    if moved_value is not None:
        result = _plus_product(result, weights, moved_value)
    return result


def backward(
    this: Attention, arriving: Tensor, primals: Sequence[Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and scores."""
    query, key, value = primals
    weights = this.weights(query, key)
    scores = along(weights, torch.bmm(arriving, value.transpose(1, 2)))
    return (
        torch.bmm(scores, key) * this.scale,
        torch.bmm(scores.transpose(1, 2), query) * this.scale,
        torch.bmm(weights.transpose(1, 2), arriving),
        scores,
    )


def backward_pushforward(
    this: Attention,
    arriving: Tensor,
    primals: Sequence[Tensor],
    moved_arriving: Maybe,
    tangents: Sequence[Maybe],
    moved_bias: Maybe,
) -> tuple[Maybe, Maybe, Maybe, Maybe]:
    """The tangents of what ``backward`` returns."""
    query, key, value = primals
    moved_query, moved_key, moved_value = tangents
    weights = this.weights(query, key)
    sent = torch.bmm(arriving, value.transpose(1, 2))
    mean = (weights * sent).sum(-1, keepdim=True)
    scores = weights * (sent - mean)
    moved_scores = this.pushed_scores(query, key, moved_query, moved_key, moved_bias)
    moved_sent: Maybe = None
    if moved_arriving is not None:
        moved_sent = torch.bmm(moved_arriving, value.transpose(1, 2))
    if moved_value is not None:
        moved_sent = _plus_product(moved_sent, arriving, moved_value.transpose(1, 2))
    moved_weights = None if moved_scores is None else along(weights, moved_scores)
    turned: Maybe = None  # the change of `scores`
    if moved_weights is not None:
        turned = moved_weights * (sent - mean)
        turned = turned - weights * (moved_weights * sent).sum(-1, keepdim=True)
    if moved_sent is not None:
        turned = _plus(turned, along(weights, moved_sent))
    to_query = to_key = to_value = None
    if turned is not None:
        to_query = torch.bmm(turned, key)
        to_key = torch.bmm(turned.transpose(1, 2), query)
    if moved_key is not None:
        to_query = _plus_product(to_query, scores, moved_key)
    if moved_query is not None:
        to_key = _plus_product(to_key, scores.transpose(1, 2), moved_query)
    if moved_weights is not None:
        to_value = torch.bmm(moved_weights.transpose(1, 2), arriving)
    if moved_arriving is not None:
        to_value = _plus_product(to_value, weights.transpose(1, 2), moved_arriving)
    scale = this.scale
    return (
        None if to_query is None else to_query * scale,
        None if to_key is None else to_key * scale,
        to_value,
        turned,
    )


def backward_pullback(
    this: Attention,
    arriving: Tensor,
    primals: Sequence[Tensor],
    cotangents: Sequence[Maybe],
    of_scores: Maybe,
    wanted: Sequence[bool],
) -> tuple[Maybe, Maybe, Maybe, Maybe, Maybe]:
    """What ``backward`` hands back for cotangents of its results.

    Args:
        this: The attention.
        arriving: What arrives at the output.
        primals: Query, key and value.
        cotangents: Of the gradients of query, key and value.
        of_scores: The cotangent of the gradient of the bias, of four dimensions.
        wanted: Which results are asked for.

    Returns:
        The gradients of ``arriving``, query, key, value and scores; None for zeros, and for what
        isn't wanted.
    """
    query, key, value = primals
    by_query, by_key, by_value = cotangents
    weights = this.weights(query, key)
    sent = torch.bmm(arriving, value.transpose(1, 2))
    mean = (weights * sent).sum(-1, keepdim=True)
    turned = this.pushed_scores(query, key, by_query, by_key, of_scores)
    to_arriving = to_query = to_key = to_value = to_weights = to_scores = None
    if turned is not None:
        turned_mean = (weights * turned).sum(-1, keepdim=True)
        if wanted[0] or wanted[3]:
            to_sent = weights * (turned - turned_mean)
            to_arriving = torch.bmm(to_sent, value) if wanted[0] else None
            to_value = torch.bmm(to_sent.transpose(1, 2), arriving) if wanted[3] else None
        to_weights = torch.addcmul(turned * (sent - mean), turned_mean, sent, value=-1)
    if by_value is not None:
        to_weights = _plus_product(to_weights, arriving, by_value.transpose(1, 2))
        if wanted[0]:
            to_arriving = _plus_product(to_arriving, weights, by_value)
    if not (wanted[1] or wanted[2] or wanted[4]):
        return to_arriving, None, None, to_value, None
    if to_weights is not None:
        to_scores = along(weights, to_weights)
        to_query = torch.bmm(to_scores, key) if wanted[1] else None
        to_key = torch.bmm(to_scores.transpose(1, 2), query) if wanted[2] else None
    scores = None
    if (wanted[1] and by_key is not None) or (wanted[2] and by_query is not None):
        scores = weights * (sent - mean)
    if wanted[1] and by_key is not None and scores is not None:
        to_query = _plus_product(to_query, scores, by_key)
    if wanted[2] and by_query is not None and scores is not None:
        to_key = _plus_product(to_key, scores.transpose(1, 2), by_query)
    scale = this.scale
    return (
        to_arriving,
        None if to_query is None else to_query * scale,
        None if to_key is None else to_key * scale,
        to_value,
        to_scores,
    )
