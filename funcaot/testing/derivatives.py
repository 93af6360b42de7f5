"""How an oracle differentiates: eager autograd of a reference, or finite differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

TensorFunction = Callable[..., tuple[Tensor, ...]]
# Of the fourth-order stencil: truncation is about 1e-12, rounding 1e-13 over the step per order.
STEP = 2e-3


Cotangents = Sequence[Tensor | None]
Pull = Callable[[Cotangents], tuple[Tensor, ...]]
Push = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]


class Derivatives(Protocol):
    """Vector-Jacobian and Jacobian-vector products of plain functions of tensors."""

    def pullback(
        self, function: TensorFunction, primals: Sequence[Tensor], argnums: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], Pull]:
        """Outputs, and a function from cotangents to a gradient per differentiated argument."""
        ...

    def pushforward(
        self, function: TensorFunction, primals: Sequence[Tensor], argnums: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], Push]:
        """Outputs, and a function from tangents of these arguments to a tangent per output."""
        ...

    def vjp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        cotangents: Cotangents,
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Outputs, and one gradient per differentiated argument."""
        outputs, pull = self.pullback(function, primals, argnums)
        return outputs, pull(cotangents)

    def jvp(
        self,
        function: TensorFunction,
        primals: Sequence[Tensor],
        argnums: Sequence[int],
        tangents: Sequence[Tensor],
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Outputs, and one tangent per output."""
        outputs, push = self.pushforward(function, primals, argnums)
        return outputs, push(tangents)


class EagerAutograd(Derivatives):
    """Nested ``torch.autograd.grad`` of plain torch code; uses neither functorch nor funcaot."""

    def pullback(
        self, function: TensorFunction, primals: Sequence[Tensor], argnums: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], Pull]:
        """See ``Derivatives.pullback``; gradients are themselves differentiable."""
        with torch.enable_grad():
            inner = differentiable_views(primals, argnums)
            outputs = function(*inner)
        wanted = [inner[index] for index in argnums]

        def pull(cotangents: Cotangents) -> tuple[Tensor, ...]:
            pairs = [
                (output, cotangent)
                for output, cotangent in zip(outputs, cotangents, strict=True)
                if cotangent is not None and output.requires_grad
            ]
            if not pairs:
                return tuple(torch.zeros_like(primal) for primal in wanted)
            with torch.enable_grad():
                return torch.autograd.grad(
                    [output for output, _ in pairs],
                    wanted,
                    [cotangent for _, cotangent in pairs],
                    create_graph=True,
                    materialize_grads=True,
                )

        return outputs, pull

    def pushforward(
        self, function: TensorFunction, primals: Sequence[Tensor], argnums: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], Push]:
        """See ``Derivatives.pushforward``: the transpose of the transpose."""
        with torch.enable_grad():
            inner = differentiable_views(primals, argnums)
            outputs = function(*inner)
            carried = [index for index, output in enumerate(outputs) if output.requires_grad]
            probes = [torch.zeros_like(outputs[index]).requires_grad_() for index in carried]
            reached = [outputs[index] for index in carried]
            wanted = [inner[index] for index in argnums]
            grads: tuple[Tensor, ...] = ()
            if carried:
                grads = torch.autograd.grad(
                    reached, wanted, probes, create_graph=True, materialize_grads=True
                )

        def push(tangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            results = [torch.zeros_like(output) for output in outputs]
            linear = [
                (grad, tangent)
                for grad, tangent in zip(grads, tangents, strict=bool(carried))
                if grad.requires_grad
            ]
            if not linear:
                return tuple(results)
            with torch.enable_grad():
                transposed = torch.autograd.grad(
                    [grad for grad, _ in linear],
                    probes,
                    [tangent for _, tangent in linear],
                    create_graph=True,
                    materialize_grads=True,
                )
            for index, tangent in zip(carried, transposed, strict=True):
                results[index] = tangent
            return tuple(results)

        return outputs, push


class FiniteDifferences(Derivatives):
    """A fourth-order central stencil on a black box of real tensors (use float64)."""

    def pullback(
        self, function: TensorFunction, primals: Sequence[Tensor], argnums: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], Pull]:
        """See ``Derivatives.pullback``: one stencil per element of each argument."""
        outputs, columns = function(*primals), []
        for index in argnums:
            _, push = self.pushforward(function, primals, (index,))
            shape, dtype = primals[index].shape, primals[index].dtype
            basis = torch.eye(shape.numel(), dtype=dtype, device=primals[index].device)
            basis = basis.reshape(shape.numel(), *shape)
            columns.append([push((direction,)) for direction in basis])

        def pull(cotangents: Cotangents) -> tuple[Tensor, ...]:
            grads = []
            for index, tangents in zip(argnums, columns, strict=True):
                primal = primals[index]
                grad = torch.zeros(primal.numel(), dtype=primal.dtype, device=primal.device)
                for element, moved in enumerate(tangents):
                    for tangent, cotangent in zip(moved, cotangents, strict=True):
                        if cotangent is not None:
                            # Of a complex output, what a real argument can change.
                            term = (tangent.conj() * cotangent).sum()
                            grad[element] += term.real if term.is_complex() else term
                grads.append(grad.reshape(primals[index].shape))
            return tuple(grads)

        return outputs, pull

    def pushforward(
        self, function: TensorFunction, primals: Sequence[Tensor], argnums: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], Push]:
        """See ``Derivatives.pushforward``: the stencil along the tangents."""

        def push(tangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
            def moved(steps: int) -> tuple[Tensor, ...]:
                shifted = list(primals)
                for index, tangent in zip(argnums, tangents, strict=True):
                    shifted[index] = primals[index] + steps * STEP * tangent
                return tuple(output.detach() for output in function(*shifted))

            stencil = zip(moved(-2), moved(-1), moved(1), moved(2), strict=True)
            return tuple(
                (before2 - 8 * before1 + 8 * after1 - after2) / (12 * STEP)
                if before2.is_floating_point() or before2.is_complex()
                else torch.zeros_like(before2)
                for before2, before1, after1, after2 in stencil
            )

        return function(*primals), push


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
