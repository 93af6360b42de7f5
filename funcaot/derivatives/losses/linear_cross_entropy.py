"""``linear_cross_entropy`` in chunks: derivatives after the first, and forward mode.

Torch computes the gradient beside the loss, or again in chunks, and takes it for a constant when it
is differentiated. The first derivative stays torch's; later ones are those of the whole logits.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.autograd.autograd import gradients_are_differentiated
from funcaot.derivatives.table import Derivative, register
from funcaot.derivatives.ways import gradients_at, transposed

Maybe = Tensor | None
# Of the operands that have a gradient: input, weight of the layer, bias of the layer.
_PLACES = (0, 1, 3)


def _of_the_whole(
    x: Tensor,
    layer: Tensor,
    target: Tensor,
    bias: Maybe,
    weight: Maybe,
    *rest: Any,
) -> Tensor:
    settings: Any = (*rest, 0.0)  # The number for smoothing may be left out.
    reduction, ignore_index, label_smoothing = settings[:3]
    return torch.nn.functional.cross_entropy(
        torch.nn.functional.linear(x, layer, bias),
        target,
        weight=weight,
        reduction=reduction,
        ignore_index=ignore_index,
        label_smoothing=label_smoothing,
    )


def _of_each(
    x: Tensor,
    layer: Tensor,
    target: Tensor,
    bias: Maybe,
    weight: Maybe,
    ignore_index: int,
    *_: Any,
) -> Tensor:
    return _of_the_whole(x, layer, target, bias, weight, "none", ignore_index)


def _vjp(
    cotangents: Sequence[Maybe], *args: Any, results: Sequence[Tensor], wanted: Sequence[bool]
) -> list[Maybe]:
    arriving = cotangents[0]
    found: list[Maybe] = [None] * 4
    if arriving is None:
        return found
    places = [place for place in _PLACES if wanted[place]]
    if not gradients_are_differentiated():
        for place, result in zip(_PLACES, results[1:], strict=True):
            found[place] = result * arriving if place in places else None
        return found

    gradients = gradients_at(places, _of_the_whole, args, [arriving])
    for place, gradient in gradients.items():
        found[place] = gradient
    return found


# Torch makes the ops when the function is first called, and not each version has them.
with contextlib.suppress(ImportError):
    importlib.import_module("torch.nn.modules.linear_cross_entropy")
_namespace = torch.ops.torch_nn
if hasattr(_namespace, "_linear_cross_entropy_batch_chunked"):
    register(
        Derivative(
            _namespace._linear_cross_entropy_batch_chunked.default,
            vjp=_vjp,
            jvp=transposed(_of_the_whole),
            selective=True,
            reads_results=True,
        )
    )
if hasattr(_namespace, "_linear_cross_entropy_batch_chunked_no_reduction"):
    register(
        Derivative(
            _namespace._linear_cross_entropy_batch_chunked_no_reduction.default,
            _of_each,
            jvp=transposed(_of_each),
            later=True,
        )
    )
