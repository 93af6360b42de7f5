"""Reverse mode made from a forward rule: the transpose of the map from tangents to tangents."""

from __future__ import annotations

from typing import Any

import torch

from funcaot.classes.context import OverlayContext
from funcaot.rules.generated.linearity import check_linear
from funcaot.rules.generated.transposed import transposing
from funcaot.rules.metadata import CallMetadata

__all__ = ["backward_from_jvp"]


def backward_from_jvp(function: type, ctx: Any, cotangents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Apply the conjugate transpose of the Jacobian to ``cotangents``, knowing only ``jvp``.

    ``jvp`` computes ``t -> J t``, which is linear in ``t``; its vjp at ``t = 0`` is ``J^H``. This
    holds when ``jvp`` is linear in the tangents, differentiable in them, and doesn't branch on
    their values.

    Args:
        function: The Function, whose ``jvp`` is used.
        ctx: A ctx whose ``_funcaot_call`` describes the call.
        cotangents: One cotangent or None per output.

    Returns:
        One gradient or None per input.
    """
    call: CallMetadata = ctx._funcaot_call
    # The rule runs several times, and a checkpoint around allows to read them once.
    ctx = OverlayContext(ctx, saved_tensors=ctx.saved_tensors)
    given = [
        j
        for j, (cotangent, ok) in enumerate(zip(cotangents, call.differentiable, strict=False))
        if cotangent is not None and ok
    ]
    where = [
        i
        for i, metadata in enumerate(call.inputs)
        if metadata is not None and metadata.is_differentiable and ctx.needs_input_grad[i]
    ]
    dirty = {i for i, _ in call.dirty}
    kept: list[int] = []

    def output_tangents(*tangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full: list[Any] = [
            metadata.zeros()
            if metadata is not None and metadata.is_differentiable and call.materialize
            else None
            for metadata in call.inputs
        ]
        for i, tangent in zip(where, tangents, strict=True):
            # jvp of an in-place Function changes its tangent, which here is a leaf
            full[i] = tangent.clone() if i in dirty else tangent
        with transposing(tangents):
            result = function.jvp(ctx, *full)
        result = result if isinstance(result, tuple) else (result,)
        kept[:] = [j for j in given if result[j] is not None]
        return tuple(result[j] for j in kept)

    gradients: list[Any] = [None] * len(call.inputs)
    if where and given:
        zeros = [metadata.zeros() for i in where if (metadata := call.inputs[i]) is not None]
        at_zero, transpose = torch.func.vjp(output_tangents, *zeros)
        if kept:
            check_linear(function, output_tangents, zeros, at_zero, transpose)
            result = transpose(tuple(cotangents[j] for j in kept))
            for i, gradient in zip(where, result, strict=True):
                gradients[i] = gradient
    return tuple(gradients)
