"""Derivatives of a function of tensors in either mode: what the rows about orders are made of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcaot.testing.derivatives import differentiable_views
from funcaot.testing.program import TensorFunction, is_differentiable, weighted_sum, weights_like


def in_reverse(function: TensorFunction, argnums: Sequence[int]) -> TensorFunction:
    """The gradient of the weighted sum of the outputs by autograd, differentiable again."""

    def gradient(*primals: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            inner = differentiable_views(primals, argnums)
            outputs = [
                output
                for output in function(*inner)
                if is_differentiable(output) and output.requires_grad
            ]
            wanted = [inner[index] for index in argnums]
            if not outputs:
                return tuple(torch.zeros_like(primal) for primal in wanted)
            cotangents = [weights_like(output.detach()).conj() for output in outputs]
            return torch.autograd.grad(
                outputs, wanted, cotangents, create_graph=True, materialize_grads=True
            )

    return gradient


def in_reverse_by_levels(function: TensorFunction, argnums: Sequence[int]) -> TensorFunction:
    """The same by ``torch.func.grad``, which forward mode may be taken of."""

    def gradient(*primals: Tensor) -> tuple[Tensor, ...]:
        def scalar(*inner: Tensor) -> Tensor:
            return weighted_sum(function(*inner))

        return torch.func.grad(scalar, argnums=tuple(argnums))(*primals)

    return gradient


def in_forward(
    function: TensorFunction, argnums: Sequence[int], tangents: Sequence[Tensor]
) -> TensorFunction:
    """The tangents of the outputs by ``torch.func.jvp``; zero where a dtype has none."""

    def pushed(*primals: Tensor) -> tuple[Tensor, ...]:
        def active_only(*active: Tensor) -> tuple[Tensor, ...]:
            filled = list(primals)
            for index, value in zip(argnums, active, strict=True):
                filled[index] = value
            return tuple(function(*filled))

        active = tuple(primals[index] for index in argnums)
        outputs, results = torch.func.jvp(active_only, active, tuple(tangents))
        return tuple(
            result if is_differentiable(output) else torch.zeros_like(output)
            for output, result in zip(outputs, results, strict=True)
        )

    return pushed
