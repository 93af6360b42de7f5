"""Ops of funcaot's own: the derivatives of attention that torch's kernels don't have.

``fused`` calls them. As ops they are one node of a graph, which no compiler unrolls: the blocks
are made when they run. Their own derivatives are those of the same formula with a single block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import Library, register_fake

from funcaot.classes.opaque import current_captor
from funcaot.derivatives.attention import blocks
from funcaot.derivatives.attention.blocks import ROWS, Problem
from funcaot.derivatives.attention.folding import folded
from funcaot.derivatives.attention.rows import Maybe
from funcaot.derivatives.table import Derivative, register

__all__ = [
    "attention_backward",
    "attention_backward_pushforward",
    "attention_pushforward",
    "backward_vjp",
    "pull_back_pushforward",
]

_PRIMALS = "Tensor query, Tensor key, Tensor value, Tensor? bias, bool causal, float scale"
_MOVED = "Tensor? moved_query, Tensor? moved_key, Tensor? moved_value, Tensor? moved_bias"

_library = Library("funcaot", "FRAGMENT")


def _pushforward(problem: Problem, *moved: Maybe) -> Tensor:
    return blocks.pushforward(problem, moved[:3], moved[3])


def _backward_pushforward(
    problem: Problem, arriving: Tensor, moved_arriving: Maybe, *moved: Maybe
) -> tuple[Tensor, ...]:
    return blocks.backward_pushforward(problem, arriving, moved_arriving, moved[:3], moved[3])


def _backward_pullback(
    problem: Problem, arriving: Tensor, *cotangents_and_wanted: Any
) -> tuple[Tensor, ...]:
    *cotangents, wanted = cotangents_and_wanted
    return blocks.backward_pullback(problem, arriving, cotangents[:3], cotangents[3], wanted)


def _define(
    name: str,
    schema: str,
    function: Callable[..., Any],
    fake: Callable[..., Any],
    vjp: Callable[..., Any] | None = None,
) -> Any:
    """Define an op that runs block by block; its formula is the same in one block."""
    _library.define(f"{name}({schema}")

    def run(*args: Any) -> Any:
        with torch.no_grad():
            return function(Problem(*args[:6], step=ROWS), *args[6:])

    def formula(*args: Any) -> Any:
        return function(Problem(*args[:6]), *args[6:])

    _library.impl(name, run, "CompositeExplicitAutograd")
    register_fake(f"funcaot::{name}", fake, lib=_library)
    op = getattr(torch.ops.funcaot, name).default
    register(Derivative(op, formula, vjp, selective=vjp is not None, batched=folded(op)))
    return op


def _like(tensor: Tensor) -> Tensor:
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def _fake_pushforward(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return query.new_empty((*query.shape[:3], value.shape[3]))


def _fake_backward_pushforward(
    query: Tensor, key: Tensor, value: Tensor, bias: Maybe, *_: Any
) -> tuple[Tensor, ...]:
    last = query.new_empty(0) if bias is None else _like(bias)
    return _like(query), _like(key), _like(value), last


def _fake_backward_pullback(*args: Any) -> tuple[Tensor, ...]:
    query, key, value, bias, _, _, arriving, *_, wanted = args
    last = query.new_empty(0) if bias is None else _like(bias)
    made = (_like(arriving), _like(query), _like(key), _like(value), last)
    pairs = zip(made, wanted, strict=True)
    return tuple(result if asked else query.new_empty(0) for result, asked in pairs)


def backward_vjp(
    operands: Sequence[Any], arriving: Tensor, cotangents: Sequence[Maybe], wanted: Sequence[bool]
) -> tuple[Maybe, ...]:
    """The gradients of what a backward was given, from cotangents of its four results.

    A backward is linear in what arrives, so the gradient of that is the tangent of the output
    along the cotangents. It is computed by itself where the transpose must be seen not to depend
    on what arrives.

    Returns:
        For what arrives, query, key, value and bias; None for what isn't wanted.
    """
    captor = current_captor()
    alone = not any(wanted[1:]) or (captor is not None and captor.transposes)
    results: list[Maybe] = [None] * 5
    if wanted[0] and alone:
        results[0] = attention_pushforward(*operands, *cotangents)
    rest = [bool(wanted[0]) and not alone, *wanted[1:]]
    if any(rest):
        found = attention_backward_pullback(*operands, arriving, *cotangents, rest)
        for index, (is_asked, result) in enumerate(zip(rest, found, strict=True)):
            results[index] = result if is_asked else results[index]
    return tuple(results)


def _own_backward_vjp(
    cotangents: Sequence[Maybe], *args: Any, wanted: Sequence[bool]
) -> tuple[Maybe, ...]:
    *operands, arriving = args
    of_bias = None if operands[3] is None else cotangents[3]
    asked = (wanted[6], *wanted[:4])
    first, *primals = backward_vjp(operands, arriving, (*cotangents[:3], of_bias), asked)
    return (*primals, None, None, first)


def pull_back_pushforward(
    backward: Callable[..., Any],
    backward_pullback: Callable[..., Any],
    args: Sequence[Any],
    arriving: Maybe,
    wanted: Sequence[bool],
    moved: int,
) -> tuple[Maybe, ...]:
    """What arrives at a pushforward goes to tangents by a backward, to primals by its pullback.

    Args:
        backward: The op that gives gradients of the primals for what arrives.
        backward_pullback: The op that gives what its arguments get.
        args: Of the pushforward: primals first, tangents of the first of them last.
        arriving: The cotangent of its result.
        wanted: For each argument whether its cotangent is asked for.
        moved: How many primals have tangents.

    Returns:
        A cotangent for each argument, None where it isn't asked for.
    """
    if arriving is None:
        return (None,) * len(args)
    count = len(args) - moved
    primals: Sequence[Maybe] = (None,) * moved
    tangents: Sequence[Maybe] = (None,) * moved
    if any(wanted[:moved]):
        asked = [False, *wanted[:moved]]
        primals = backward_pullback(*args[:count], arriving, *args[count:], asked)[1:]
    if any(wanted[count:]):
        tangents = backward(*args[:count], arriving)
    found = (*primals, *(None,) * (count - moved), *tangents)
    return tuple(v if asked else None for v, asked in zip(found, wanted, strict=True))


def _pushforward_vjp(
    cotangents: Sequence[Maybe], *args: Any, wanted: Sequence[bool]
) -> tuple[Maybe, ...]:
    ops = attention_backward, attention_backward_pullback
    return pull_back_pushforward(*ops, args, cotangents[0], wanted, 4)


_ARRIVING = "Tensor arriving"

attention_pushforward = _define(
    "attention_pushforward",
    f"{_PRIMALS}, {_MOVED}) -> Tensor",
    _pushforward,
    _fake_pushforward,
    _pushforward_vjp,
)
attention_backward = _define(
    "attention_backward",
    f"{_PRIMALS}, {_ARRIVING}) -> (Tensor, Tensor, Tensor, Tensor bias)",
    blocks.backward,
    _fake_backward_pushforward,
    _own_backward_vjp,
)
attention_backward_pushforward = _define(
    "attention_backward_pushforward",
    f"{_PRIMALS}, {_ARRIVING}, Tensor? moved_arriving, {_MOVED}) "
    "-> (Tensor, Tensor, Tensor, Tensor bias)",
    _backward_pushforward,
    _fake_backward_pushforward,
)
attention_backward_pullback = _define(
    "attention_backward_pullback",
    f"{_PRIMALS}, {_ARRIVING}, Tensor? by_query, Tensor? by_key, Tensor? by_value, "
    "Tensor? by_bias, bool[5] wanted) -> (Tensor, Tensor, Tensor, Tensor, Tensor bias)",
    _backward_pullback,
    _fake_backward_pullback,
)
