"""How an oracle differentiates: eager autograd of a reference, or finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

TensorFunction = Callable[..., tuple[Tensor, ...]]
# Of the fourth-order stencil: truncation is about 1e-12, rounding 1e-13 over the step per order.
STEP = 2e-3


class Derivatives(Protocol):
    """Vector-Jacobian and Jacobian-vector products of plain functions of tensors."""

    def vjp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        cotangents: Sequence[Tensor | None],
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Outputs, and one gradient per differentiated argument."""
        ...

    def jvp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        tangents: Sequence[Tensor],
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Outputs, and one tangent per output."""
        ...


class EagerAutograd:
    """Nested ``torch.autograd.grad`` of plain torch code; uses neither functorch nor funcaot."""

    def vjp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        cotangents: Sequence[Tensor | None],
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See ``Derivatives.vjp``; the result is itself differentiable."""
        with torch.enable_grad():
            inner = differentiable_views(primals, argnums)
            outputs = function(*inner)
            pairs = [
                (output, cotangent)
                for output, cotangent in zip(outputs, cotangents, strict=True)
                if cotangent is not None and output.requires_grad
            ]
            wanted = [inner[index] for index in argnums]
            if not pairs:
                return outputs, tuple(torch.zeros_like(primal) for primal in wanted)
            grads = torch.autograd.grad(
                [output for output, _ in pairs],
                wanted,
                [cotangent for _, cotangent in pairs],
                create_graph=True,
                materialize_grads=True,
            )
        return outputs, grads

    def jvp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        tangents: Sequence[Tensor],
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See ``Derivatives.jvp``: the transpose of the transpose."""
        with torch.enable_grad():
            inner = differentiable_views(primals, argnums)
            outputs = function(*inner)
            carried = [index for index, output in enumerate(outputs) if output.requires_grad]
            results = [torch.zeros_like(output) for output in outputs]
            if not carried:
                return outputs, tuple(results)
            probes = [torch.zeros_like(outputs[index]).requires_grad_() for index in carried]
            wanted = [inner[index] for index in argnums]
            reached = [outputs[index] for index in carried]
            grads = torch.autograd.grad(
                reached, wanted, probes, create_graph=True, materialize_grads=True
            )
            linear = [
                (grad, tangent)
                for grad, tangent in zip(grads, tangents, strict=True)
                if grad.requires_grad
            ]
            if not linear:
                return outputs, tuple(results)
            transposed = torch.autograd.grad(
                [grad for grad, _ in linear],
                probes,
                [tangent for _, tangent in linear],
                create_graph=True,
                materialize_grads=True,
            )
        for index, tangent in zip(carried, transposed, strict=True):
            results[index] = tangent
        return outputs, tuple(results)


class FiniteDifferences:
    """A fourth-order central stencil on a black box of real tensors (use float64)."""

    def vjp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        cotangents: Sequence[Tensor | None],
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See ``Derivatives.vjp``: one stencil per element of each argument."""
        grads = []
        for index in argnums:
            grad = torch.zeros(primals[index].shape, dtype=primals[index].dtype).reshape(-1)
            for element in range(grad.numel()):
                direction = torch.zeros_like(grad)
                direction[element] = 1
                direction = direction.reshape(primals[index].shape)
                _, tangents = self.jvp(function, primals, (index,), (direction,))
                for tangent, cotangent in zip(tangents, cotangents, strict=True):
                    if cotangent is not None:
                        # Of a complex output, what a real argument can change.
                        term = (tangent.conj() * cotangent).sum()
                        grad[element] += term.real if term.is_complex() else term
            grads.append(grad.reshape(primals[index].shape))
        return function(*primals), tuple(grads)

    def jvp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        tangents: Sequence[Tensor],
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """See ``Derivatives.jvp``: the stencil along the tangents."""

        def moved(steps: int) -> tuple[Tensor, ...]:
            shifted = list(primals)
            for index, tangent in zip(argnums, tangents, strict=True):
                shifted[index] = primals[index] + steps * STEP * tangent
            return tuple(output.detach() for output in function(*shifted))

        stencil = zip(moved(-2), moved(-1), moved(1), moved(2), strict=True)
        outputs = function(*primals)
        slopes = tuple(
            (before2 - 8 * before1 + 8 * after1 - after2) / (12 * STEP)
            if before2.is_floating_point() or before2.is_complex()
            else torch.zeros_like(before2)
            for before2, before1, after1, after2 in stencil
        )
        return outputs, slopes


def differentiable_views(primals: Sequence[Tensor], argnums: Sequence[int]) -> list[Tensor]:
    """The primals with each differentiated one replaced by its own autograd node.

    A view separates an argument from another that was computed from it, and keeps the graph of
    an outer derivative connected.
    """
    inner = list(primals)
    for index in argnums:
        primal = primals[index]
        # Neither a copy (strides matter to the Functions under test) nor detach (it would drop
        # the tangent of a dual number).
        view = primal.view_as(primal)
        inner[index] = view if view.requires_grad else view.requires_grad_()
    return inner
