"""Derivatives of attention over all rows, a block of rows at a time; called by ``operators``.

What is as large as queries times keys exists for one block only, so memory grows with the length
and not with its square. Without a step there is one block, and the result can be differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from funcaot.derivatives.attention import rows as of_rows
from funcaot.derivatives.attention.rows import Attention, Maybe

ROWS = 128
_LOW_PRECISION = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Problem:
    """The operands of an attention, four dimensions each, as they came.

    Attributes:
        query: Batch, heads, rows, features.
        key: Batch, heads (or a divisor of their number), columns, features.
        value: Like ``key``, with features of its own.
        bias: Added to the scores (or a mask of what is seen), if there is one.
        causal: Whether row ``i`` sees columns up to ``i`` only.
        scale: Of the scores.
        step: Rows of a block; None for a single one.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    bias: Maybe
    causal: bool
    scale: float
    step: int | None = None

    @property
    def groups(self) -> int:
        """How many heads of the query share one of the keys."""
        return self.query.shape[1] // self.key.shape[1]

    def row_operand(self, tensor: Maybe) -> Maybe:
        """Something shaped like queries or outputs, in three dimensions and enough precision."""
        return None if tensor is None else _precise(tensor).flatten(0, 1)

    def column_operand(self, tensor: Maybe) -> Maybe:
        """Something shaped like keys or values, for each head of the query."""
        if tensor is None:
            return None
        if self.groups > 1:
            tensor = tensor.repeat_interleave(self.groups, 1)
        return _precise(tensor).flatten(0, 1).contiguous()

    @property
    def primals(self) -> tuple[Maybe, Maybe, Maybe]:
        """Query, key and value as operands."""
        return (
            self.row_operand(self.query),
            self.column_operand(self.key),
            self.column_operand(self.value),
        )

    def full_bias(self, bias: Maybe) -> Maybe:
        """A bias in four dimensions; a mask as what is added to the scores."""
        if bias is None:
            return None
        if bias.dtype is torch.bool:
            zeros = torch.zeros(bias.shape, dtype=self.query.dtype, device=bias.device)
            bias = zeros.masked_fill(~bias, -torch.inf)
        return _precise(bias)[(None,) * (4 - bias.dim())]

    def blocks(self, *, all_columns: bool = False) -> Iterator[Block]:
        """The blocks of rows, in order."""
        batch = (self.query.shape[0], self.query.shape[1])
        length, columns = self.query.shape[2], self.key.shape[2]
        bias = self.full_bias(self.bias)
        start, step = 0, length if self.step is None else self.step
        while start < length:
            stop = min(length, start + step)
            seen = min(columns, stop) if self.causal and not all_columns else columns
            part = part_of_bias(bias, start, stop, seen)
            this = Attention(batch, part, self.causal, self.scale, start)
            yield Block(start, stop, seen, self.step is None, this)
            start = stop

    def column_result(self, tensor: Maybe, like: Tensor) -> Tensor:
        """A gradient of key or value, of its shape and dtype; zeros for None."""
        if tensor is None:
            return torch.zeros_like(like, memory_format=torch.contiguous_format)
        result = tensor.unflatten(0, (like.shape[0], -1))
        if self.groups > 1:
            result = result.unflatten(1, (like.shape[1], self.groups)).sum(2)
        return result.to(like.dtype)

    def row_result(self, parts: Sequence[Maybe], like: Tensor) -> Tensor:
        """The parts of something shaped like queries, as one tensor; zeros for None."""
        known = [part for part in parts if part is not None]
        if not known:
            return torch.zeros_like(like, memory_format=torch.contiguous_format)
        whole = known[0] if len(known) == 1 else torch.cat(known, 1)
        return whole.unflatten(0, (like.shape[0], -1)).to(like.dtype)

    def bias_result(self, parts: Sequence[Maybe]) -> Tensor:
        """The gradient of the bias from those of the blocks' scores, already of its width."""
        if self.bias is None:
            return self.query.new_empty(0)
        known = [part for part in parts if part is not None]
        if not known:
            return torch.zeros_like(self.bias, memory_format=torch.contiguous_format)
        bias = self.full_bias(self.bias)
        if bias is not None and bias.shape[2] == 1:
            whole = sum(known[1:], start=known[0])
        else:
            whole = known[0] if len(known) == 1 else torch.cat(known, 2)
        return whole.reshape(self.bias.shape).to(self.bias.dtype)


@dataclass(frozen=True)
class Block:
    """Some rows, and the columns that they see."""

    start: int
    stop: int
    seen: int
    whole: bool
    this: Attention

    def rows(self, tensor: Any) -> Any:
        """These rows of an operand."""
        if tensor is None or self.whole:
            return tensor
        return tensor[:, self.start : self.stop]

    def columns(self, tensor: Any) -> Any:
        """The columns of an operand that these rows see."""
        return None if tensor is None else tensor[:, : self.seen]

    def of_bias(self, bias: Maybe) -> Maybe:
        """The part of a bias for these rows and columns."""
        return part_of_bias(bias, self.start, self.stop, self.seen)

    def spread(self, total: Maybe, part: Maybe, columns: int) -> Maybe:
        """A sum over blocks of what belongs to columns."""
        if part is None:
            return total
        if total is None and self.seen == columns:
            return part
        if total is None:
            return torch.nn.functional.pad(part, (0, 0, 0, columns - self.seen))
        total[:, : self.seen].add_(part)
        return total

    def bias_part(self, scores: Maybe, bias: Maybe, batch: tuple[int, int]) -> Maybe:
        """What the scores' gradient is for the bias."""
        of_these = self.of_bias(bias)
        if scores is None or of_these is None:
            return None
        return scores.unflatten(0, batch).sum_to_size(of_these.shape)


def part_of_bias(bias: Maybe, start: int, stop: int, seen: int) -> Maybe:
    """Some rows and columns of a bias, where it differs among them."""
    if bias is None:
        return None
    if bias.shape[2] != 1:
        bias = bias[:, :, start:stop]
    return bias if bias.shape[3] == 1 else bias[..., :seen]


def _precise(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype in _LOW_PRECISION else tensor


def pushforward(problem: Problem, tangents: Sequence[Maybe], moved_bias: Maybe) -> Tensor:
    """The tangent of the output."""
    query, key, value = problem.primals
    moved_query = problem.row_operand(tangents[0])
    moved = [problem.column_operand(tangent) for tangent in tangents[1:]]
    moved_bias = problem.full_bias(moved_bias)
    parts = []
    for block in problem.blocks():
        operands = (block.rows(query), block.columns(key), block.columns(value))
        pushed = (block.rows(moved_query), *map(block.columns, moved))
        bias = block.of_bias(moved_bias)
        parts.append(of_rows.pushforward(block.this, operands, pushed, bias))
    like = problem.query.new_empty(()).expand(*problem.query.shape[:3], problem.value.shape[3])
    return problem.row_result(parts, like)


class _Sums:
    """Results for query, key, value and bias, added up block by block."""

    def __init__(self, problem: Problem) -> None:
        self.bias = problem.full_bias(problem.bias)
        self._problem = problem
        self._query: list[Maybe] = []
        self._key: Maybe = None
        self._value: Maybe = None
        self._biases: list[Maybe] = []

    def add(self, block: Block, parts: Sequence[Maybe]) -> None:
        """Add what a block gives for each of the four."""
        columns = self._problem.key.shape[2]
        self._query.append(parts[0])
        self._key = block.spread(self._key, parts[1], columns)
        self._value = block.spread(self._value, parts[2], columns)
        self._biases.append(block.bias_part(parts[3], self.bias, block.this.batch))

    def results(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four, as the problem's operands lie."""
        problem = self._problem
        return (
            problem.row_result(self._query, problem.query),
            problem.column_result(self._key, problem.key),
            problem.column_result(self._value, problem.value),
            problem.bias_result(self._biases),
        )


def backward(problem: Problem, arriving: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value and bias."""
    query, key, value = problem.primals
    sent, sums = problem.row_operand(arriving), _Sums(problem)
    for block in problem.blocks(all_columns=sums.bias is not None):
        operands = (block.rows(query), block.columns(key), block.columns(value))
        sums.add(block, of_rows.backward(block.this, block.rows(sent), operands))
    return sums.results()


def backward_pushforward(
    problem: Problem,
    arriving: Tensor,
    moved_arriving: Maybe,
    tangents: Sequence[Maybe],
    moved_bias: Maybe,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The tangents of the gradients of query, key, value and bias."""
    query, key, value = problem.primals
    sent, moved_sent = problem.row_operand(arriving), problem.row_operand(moved_arriving)
    moved_query = problem.row_operand(tangents[0])
    moved = [problem.column_operand(tangent) for tangent in tangents[1:]]
    moved_bias, sums = problem.full_bias(moved_bias), _Sums(problem)
    for block in problem.blocks(all_columns=sums.bias is not None):
        operands = (block.rows(query), block.columns(key), block.columns(value))
        pushed = (block.rows(moved_query), *map(block.columns, moved))
        parts = of_rows.backward_pushforward(
            block.this,
            block.rows(sent),
            operands,
            block.rows(moved_sent),
            pushed,
            block.of_bias(moved_bias),
        )
        sums.add(block, parts)
    return sums.results()


def backward_pullback(
    problem: Problem,
    arriving: Tensor,
    cotangents: Sequence[Maybe],
    of_bias: Maybe,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of what the backward was given: arriving, query, key, value and bias."""
    query, key, value = problem.primals
    sent, by_query = problem.row_operand(arriving), problem.row_operand(cotangents[0])
    by_columns = [problem.column_operand(cotangent) for cotangent in cotangents[1:]]
    of_bias, sums = problem.full_bias(of_bias), _Sums(problem)
    to_arriving: list[Maybe] = []
    for block in problem.blocks(all_columns=sums.bias is not None and wanted[4]):
        parts = of_rows.backward_pullback(
            block.this,
            block.rows(sent),
            (block.rows(query), block.columns(key), block.columns(value)),
            (block.rows(by_query), *map(block.columns, by_columns)),
            block.of_bias(of_bias),
            wanted,
        )
        to_arriving.append(parts[0])
        sums.add(block, parts[1:])
    results = (problem.row_result(to_arriving, arriving), *sums.results())
    nothing = problem.query.new_empty(0)
    first, second, third, fourth, fifth = (
        result if asked else nothing for result, asked in zip(results, wanted, strict=True)
    )
    return first, second, third, fourth, fifth
