"""Ops of funcaot's own: attention of jagged batches, row by row of a batch, and its derivatives.

A capture calls the first where torch would go through strided nested tensors, whose lengths no
graph has. As ops they are one node of a graph each, which reads the lengths when it runs, so one
program serves all batches. Every tensor is packed: tokens of all rows, heads, features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from funcaot._torch.tensors.sizes.ragged_attention import by_math_kernel
from funcaot.derivatives.attention import blocks
from funcaot.derivatives.attention import rows as of_rows
from funcaot.derivatives.attention.blocks import Problem
from funcaot.derivatives.attention.operators import pull_back_pushforward
from funcaot.derivatives.attention.rows import Attention, Maybe
from funcaot.derivatives.table import Derivative, register

__all__ = ["jagged_attention"]

_PRIMALS = (
    "Tensor query, Tensor key, Tensor value, "
    "Tensor query_offsets, Tensor key_offsets, Tensor value_offsets, float? scale"
)
_COUNT = 7
_MOVED = "Tensor? moved_query, Tensor? moved_key, Tensor? moved_value"
_THREE = "(Tensor query, Tensor key, Tensor value)"

_library = Library("funcaot", "FRAGMENT")


@dataclass(frozen=True)
class _Packed:
    """The operands of one of the ops."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_offsets: Tensor
    key_offsets: Tensor
    value_offsets: Tensor
    scale: float | None

    @property
    def factor(self) -> float:
        """What scores are multiplied by."""
        return 1 / math.sqrt(self.query.shape[-1]) if self.scale is None else self.scale

    def rows(self) -> Iterator[_Row]:
        """The rows of the batch."""
        this = Attention((1, self.query.shape[1]), None, causal=False, scale=self.factor)
        queries, keys = self.query_offsets.tolist(), self.key_offsets.tolist()
        for index in range(len(queries) - 1):
            yield _Row(this, slice(*queries[index : index + 2]), slice(*keys[index : index + 2]))

    def dense(self) -> Problem:
        """The same attention of one long row, of which each token sees those of its own row."""
        rows, columns = (
            torch.bucketize(
                torch.arange(tensor.shape[0], device=offsets.device), offsets[1:], right=True
            )
            for tensor, offsets in (
                (self.query, self.query_offsets),
                (self.key, self.key_offsets),
            )
        )
        mask = (rows[:, None] == columns)[None, None]
        operands = (_long(self.query), _long(self.key), _long(self.value))
        return Problem(*operands, mask, causal=False, scale=self.factor)


@dataclass(frozen=True)
class _Row:
    this: Attention
    queries: slice
    keys: slice

    def of_queries(self, tensor: Maybe) -> Any:
        return None if tensor is None else _apart(tensor[self.queries])

    def of_keys(self, tensor: Maybe) -> Any:
        return None if tensor is None else _apart(tensor[self.keys])

    def primals(self, packed: _Packed) -> tuple[Tensor, Tensor, Tensor]:
        return self.of_queries(packed.query), self.of_keys(packed.key), self.of_keys(packed.value)

    def moved(self, tangents: Sequence[Maybe]) -> tuple[Maybe, Maybe, Maybe]:
        return (
            self.of_queries(tangents[0]),
            self.of_keys(tangents[1]),
            self.of_keys(tangents[2]),
        )

    def put(self, results: Sequence[Tensor], parts: Sequence[Maybe]) -> None:
        """Write the gradients of query, key and value to their places."""
        places = (self.queries, self.keys, self.keys)
        for result, part, place in zip(results, parts, places, strict=True):
            if part is not None and result.numel():
                result[place] = part.transpose(0, 1)


def _apart(tensor: Tensor) -> Tensor:
    """Heads first, in enough precision."""
    tensor = tensor.transpose(0, 1)
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _long(tensor: Tensor) -> Tensor:
    return tensor.transpose(0, 1)[None]


def _short(tensor: Tensor) -> Tensor:
    return tensor[0].transpose(0, 1).contiguous() if tensor.dim() == 4 else tensor  # not asked for


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor, memory_format=torch.contiguous_format)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _output(packed: _Packed) -> Tensor:
    return packed.query.new_zeros((*packed.query.shape[:2], packed.value.shape[2]))


def _forward(packed: _Packed) -> Tensor:
    """Exactly what torch's kernel gives."""
    offsets = (packed.query_offsets, packed.key_offsets, packed.value_offsets)
    operands = zip((packed.query, packed.key, packed.value), offsets, strict=True)
    return by_math_kernel(*operands, scale=packed.scale).view(_output(packed).shape)


def _pushforward(packed: _Packed, *moved: Maybe) -> Tensor:
    result = _output(packed)
    for row in packed.rows():
        part = of_rows.pushforward(row.this, row.primals(packed), row.moved(moved), None)
        if part is not None:
            result[row.queries] = part.transpose(0, 1)
    return result


def _backward(packed: _Packed, arriving: Tensor) -> tuple[Tensor, ...]:
    results = tuple(map(_zeros, (packed.query, packed.key, packed.value)))
    for row in packed.rows():
        sent = row.of_queries(arriving)
        row.put(results, of_rows.backward(row.this, sent, row.primals(packed))[:3])
    return results


def _backward_pushforward(
    packed: _Packed, arriving: Tensor, moved_arriving: Maybe, *moved: Maybe
) -> tuple[Tensor, ...]:
    results = tuple(map(_zeros, (packed.query, packed.key, packed.value)))
    for row in packed.rows():
        parts = of_rows.backward_pushforward(
            row.this,
            row.of_queries(arriving),
            row.primals(packed),
            row.of_queries(moved_arriving),
            row.moved(moved),
            None,
        )
        row.put(results, parts[:3])
    return results


def _backward_pullback(
    packed: _Packed, arriving: Tensor, *cotangents_and_wanted: Any
) -> tuple[Tensor, ...]:
    *cotangents, wanted = cotangents_and_wanted
    to_arriving = _zeros(arriving)
    results = tuple(map(_zeros, (packed.query, packed.key, packed.value)))
    for row in packed.rows():
        first, *parts = of_rows.backward_pullback(
            row.this,
            row.of_queries(arriving),
            row.primals(packed),
            row.moved(cotangents),
            None,
            [*wanted, False],
        )
        if first is not None:
            to_arriving[row.queries] = first.transpose(0, 1)
        row.put(results, parts[:3])
    return _asked(packed, (to_arriving, *results), wanted)


def _asked(packed: _Packed, results: Sequence[Tensor], wanted: Sequence[bool]) -> Any:
    return tuple(
        result if asked else packed.query.new_empty(0)
        for result, asked in zip(results, wanted, strict=True)
    )


def _longer(tensors: Sequence[Maybe]) -> list[Any]:
    return [None if tensor is None else _long(tensor) for tensor in tensors]


def _dense_pushforward(packed: _Packed, *moved: Maybe) -> Tensor:
    return _short(blocks.pushforward(packed.dense(), _longer(moved), None))


def _dense_backward(packed: _Packed, arriving: Tensor) -> tuple[Tensor, ...]:
    found = blocks.backward(packed.dense(), _long(arriving))
    return tuple(map(_short, found[:3]))


def _dense_backward_pushforward(packed: _Packed, *given: Maybe) -> tuple[Tensor, ...]:
    arriving, moved_arriving, *moved = _longer(given)
    found = blocks.backward_pushforward(packed.dense(), arriving, moved_arriving, moved, None)
    return tuple(map(_short, found[:3]))


def _dense_backward_pullback(packed: _Packed, *given: Any) -> tuple[Tensor, ...]:
    *tensors, wanted = given
    arriving, *cotangents = _longer(tensors)
    found = blocks.backward_pullback(packed.dense(), arriving, cotangents, None, [*wanted, False])
    return _asked(packed, tuple(map(_short, found[:4])), wanted)


def _forward_vjp(
    cotangents: Sequence[Maybe], *args: Any, wanted: Sequence[bool]
) -> tuple[Maybe, ...]:
    if cotangents[0] is None:
        return (None,) * len(args)
    found = jagged_attention_backward(*args, cotangents[0])
    return (*_if_wanted(found, wanted[:3]), *(None,) * (_COUNT - 3))


def _pushforward_vjp(
    cotangents: Sequence[Maybe], *args: Any, wanted: Sequence[bool]
) -> tuple[Maybe, ...]:
    ops = jagged_attention_backward, jagged_attention_backward_pullback
    return pull_back_pushforward(*ops, args, cotangents[0], wanted, 3)


def _backward_vjp(
    cotangents: Sequence[Maybe], *args: Any, wanted: Sequence[bool]
) -> tuple[Maybe, ...]:
    """Of what arrives the tangent of the output, by itself if nothing else is asked for."""
    *operands, arriving = args
    asked = [bool(wanted[_COUNT]), *map(bool, wanted[:3])]
    if not any(asked[1:]):
        first, primals = jagged_attention_pushforward(*operands, *cotangents), [None] * 3
    else:
        found = jagged_attention_backward_pullback(*operands, arriving, *cotangents, asked)
        first, *primals = _if_wanted(found, asked)
    return (*primals, *(None,) * (_COUNT - 3), first)


def _if_wanted(found: Sequence[Maybe], wanted: Sequence[bool]) -> list[Maybe]:
    return [each if asked else None for each, asked in zip(found, wanted, strict=True)]


def _forward_jvp(tangents: Sequence[Maybe], *args: Any) -> Tensor:
    return jagged_attention_pushforward(*args, *tangents[:3])


def _backward_jvp(tangents: Sequence[Maybe], *args: Any) -> Any:
    return jagged_attention_backward_pushforward(*args, tangents[_COUNT], *tangents[:3])


def _define(
    name: str,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    **rules: Any,
) -> Any:
    """Define an op that runs row by row; a formula is that of one long row with a mask."""
    _library.define(f"{name}({_PRIMALS}{schema}")

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return function(_Packed(*args[:_COUNT]), *args[_COUNT:])

    def shape(*args: Any) -> Any:
        return fake(_Packed(*args[:_COUNT]), *args[_COUNT:])

    dense = rules.pop("dense", None)

    def formula(*args: Any) -> Any:
        return dense(_Packed(*args[:_COUNT]), *args[_COUNT:])

    _library.impl(name, run, "CompositeExplicitAutograd")
    register_fake(f"funcaot::{name}", shape, lib=_library)
    op = getattr(torch.ops.funcaot, name).default
    selective = "vjp" in rules
    register(Derivative(op, None if dense is None else formula, selective=selective, **rules))
    return op


def _fake_three(packed: _Packed, *_: Any) -> tuple[Tensor, ...]:
    return _like(packed.query), _like(packed.key), _like(packed.value)


def _fake_pullback(packed: _Packed, arriving: Tensor, *given: Any) -> tuple[Tensor, ...]:
    return _asked(packed, (_like(arriving), *_fake_three(packed)), given[-1])


jagged_attention = _define(
    "jagged_attention",
    ") -> Tensor",
    _forward,
    _output,
    vjp=_forward_vjp,
    jvp=_forward_jvp,
)
jagged_attention_pushforward = _define(
    "jagged_attention_pushforward",
    f", {_MOVED}) -> Tensor",
    _pushforward,
    lambda packed, *_: _output(packed),
    dense=_dense_pushforward,
    vjp=_pushforward_vjp,
)
jagged_attention_backward = _define(
    "jagged_attention_backward",
    f", Tensor arriving) -> {_THREE}",
    _backward,
    _fake_three,
    dense=_dense_backward,
    vjp=_backward_vjp,
    jvp=_backward_jvp,
)
jagged_attention_backward_pushforward = _define(
    "jagged_attention_backward_pushforward",
    f", Tensor arriving, Tensor? moved_arriving, {_MOVED}) -> {_THREE}",
    _backward_pushforward,
    _fake_three,
    dense=_dense_backward_pushforward,
)
jagged_attention_backward_pullback = _define(
    "jagged_attention_backward_pullback",
    ", Tensor arriving, Tensor? by_query, Tensor? by_key, Tensor? by_value, bool[4] wanted)"
    " -> (Tensor arriving, Tensor query, Tensor key, Tensor value)",
    _backward_pullback,
    _fake_pullback,
    dense=_dense_backward_pullback,
)
