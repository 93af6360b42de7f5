"""Reverse mode: torch.func's transforms, and autograd on plain tensors."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from funcaot.testing.derivatives import differentiable_views
from funcaot.testing.program import (
    Program,
    TensorFunction,
    is_differentiable,
    weighted_sum,
    weights_like,
)
from funcaot.testing.transforms.record import Transform

REVERSE = frozenset({"autograd"})


def weighted_gradient(program: Program) -> TensorFunction:
    """The oracle of a gradient of the weighted sum of the outputs."""

    def expected(*primals: Tensor) -> tuple[Tensor, ...]:
        cotangents = [
            weights_like(output).conj() if is_differentiable(output) else None
            for output in program.example
        ]
        _, grads = program.derivatives.vjp(program.expected, primals, program.argnums, cotangents)
        return grads

    return expected


def grad(program: Program) -> Program:
    """``torch.func.grad`` of the weighted sum of the outputs."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        def scalar(*inner: Tensor) -> Tensor:
            return weighted_sum(program.run(*inner))

        return torch.func.grad(scalar, argnums=program.argnums)(*primals)

    return program.then(run, weighted_gradient(program))


def grad_of_plain_sum(program: Program) -> Program:
    """``torch.func.grad`` of ``sum()``: its cotangent has stride zero."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        def scalar(*inner: Tensor) -> Tensor:
            sums = [out.sum() for out in program.run(*inner) if is_differentiable(out)]
            total = sum(sums[1:], sums[0])
            return total.real if total.is_complex() else total

        return torch.func.grad(scalar, argnums=program.argnums)(*primals)

    def expected(*primals: Tensor) -> tuple[Tensor, ...]:
        ones = [
            torch.ones_like(output) if is_differentiable(output) else None
            for output in program.example
        ]
        return program.derivatives.vjp(program.expected, primals, program.argnums, ones)[1]

    return program.then(run, expected)


def with_cotangents(program: Program, layout: str) -> Program:
    """``torch.func.vjp`` with cotangents of a layout as further inputs."""
    differentiable = [index for index, out in enumerate(program.example) if is_differentiable(out)]
    cotangents = tuple(
        in_layout(weights_like(program.example[index], 0.3), layout) for index in differentiable
    )
    count = len(program.primals)

    def run(*arguments: Tensor) -> tuple[Tensor, ...]:
        primals, given = arguments[:count], arguments[count:]

        def differentiated(*inner: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            filled = list(primals)
            for index, value in zip(program.argnums, inner, strict=True):
                filled[index] = value
            outputs = program.run(*filled)
            return tuple(outputs[index] for index in differentiable), outputs

        active = [primals[index] for index in program.argnums]
        _, pullback, outputs = torch.func.vjp(differentiated, *active, has_aux=True)
        return (*outputs, *pullback(tuple(given)))

    def expected(*arguments: Tensor) -> tuple[Tensor, ...]:
        primals, given = arguments[:count], arguments[count:]
        spread: list[Tensor | None] = [None] * len(program.example)
        for index, cotangent in zip(differentiable, given, strict=True):
            spread[index] = cotangent
        outputs, grads = program.derivatives.vjp(program.expected, primals, program.argnums, spread)
        return (*outputs, *grads)

    return program.then(run, expected, (*program.primals, *cotangents))


def in_layout(tensor: Tensor, layout: str) -> Tensor:
    """The same values, contiguous or with every stride doubled and permuted."""
    if layout == "contiguous" or tensor.dim() == 0:
        return tensor
    order = tuple(reversed(range(tensor.dim())))
    sizes = [2 * size for size in tensor.permute(order).shape]
    padded = torch.zeros(*sizes, dtype=tensor.dtype, device=tensor.device)
    view = padded[tuple(slice(None, None, 2) for _ in order)].permute(order)
    return view.copy_(tensor)


def vjp(program: Program) -> Program:
    """``torch.func.vjp`` with contiguous cotangents."""
    return with_cotangents(program, "contiguous")


def vjp_strided(program: Program) -> Program:
    """``torch.func.vjp`` with permuted, padded cotangents."""
    return with_cotangents(program, "strided")


def autograd(program: Program, *, layout: str = "contiguous") -> Program:
    """``torch.autograd.grad`` with ``create_graph``; composed with itself it is the next order."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            inner = differentiable_views(primals, program.argnums)
            # Only what is computed here: a compiler may trace this.
            outputs = [
                output
                for output in program.run(*inner)
                if is_differentiable(output) and output.requires_grad
            ]
            wanted = [inner[index] for index in program.argnums]
            if not outputs:
                return tuple(torch.zeros_like(primal) for primal in wanted)
            cotangents = [in_layout(weights_like(output).conj(), layout) for output in outputs]
            return torch.autograd.grad(
                outputs, wanted, cotangents, create_graph=True, materialize_grads=True
            )

    return program.then(run, weighted_gradient(program))


TRANSFORMS = (
    Transform("grad", grad, REVERSE, order=1),
    Transform("vjp", vjp, REVERSE, order=1),
    Transform("vjp_strided", vjp_strided, REVERSE, order=1, depth_one=True),
    Transform("grad_sum", grad_of_plain_sum, REVERSE, order=1, depth_one=True),
    Transform("autograd", autograd, REVERSE, order=1, base_only=True),
    Transform(
        "autograd_strided",
        partial(autograd, layout="strided"),
        REVERSE,
        order=1,
        base_only=True,
        depth_one=True,
    ),
)
