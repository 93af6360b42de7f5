"""Whole Jacobians and Hessians."""

from __future__ import annotations

import torch
from torch import Tensor

from funcaot._torch.tensors.pytree import tree_flatten
from funcaot.testing.program import (
    Program,
    TensorFunction,
    is_differentiable,
    weighted_sum,
    weights_like,
)
from funcaot.testing.transforms.record import Transform


def flat_jacobian(result: object) -> tuple[Tensor, ...]:
    """The tensors of a nested tuple of Jacobians, outputs outermost."""
    return tuple(tree_flatten(result)[0])


def differentiable_outputs(function: TensorFunction) -> TensorFunction:
    """Without the outputs that have no Jacobian."""

    def filtered(*primals: Tensor) -> tuple[Tensor, ...]:
        return tuple(output for output in function(*primals) if is_differentiable(output))

    return filtered


def jacobian_by_columns(program: Program) -> TensorFunction:
    """The oracle: one Jacobian-vector product per element of each argument."""
    function = differentiable_outputs(program.expected)

    def expected(*primals: Tensor) -> tuple[Tensor, ...]:
        outputs = function(*primals)
        blocks: list[list[Tensor]] = [[] for _ in outputs]
        for index in program.argnums:
            shape, dtype = primals[index].shape, primals[index].dtype
            basis = torch.eye(shape.numel(), dtype=dtype).reshape(shape.numel(), *shape)
            _, push = program.derivatives.pushforward(function, primals, (index,))
            columns = [push((direction,)) for direction in basis]
            for place, output in enumerate(outputs):
                if columns:
                    stacked = torch.stack([column[place] for column in columns], -1)
                    block = stacked.reshape((*output.shape, *shape))
                else:
                    block = output.new_zeros((*output.shape, *shape))
                blocks[place].append(block)
        return tuple(block for row in blocks for block in row)

    return expected


def jacobian_by_rows(program: Program) -> TensorFunction:
    """The oracle for Functions with no forward mode: a vector-Jacobian product per output."""
    function = differentiable_outputs(program.expected)

    def expected(*primals: Tensor) -> tuple[Tensor, ...]:
        outputs, pull = program.derivatives.pullback(function, primals, program.argnums)
        results: list[Tensor] = []
        for place, output in enumerate(outputs):
            count = output.numel()
            basis = torch.eye(count, dtype=output.dtype).reshape(count, *output.shape)
            rows = []
            for direction in basis:
                cotangents: list[Tensor | None] = [None] * len(outputs)
                cotangents[place] = direction
                rows.append(pull(cotangents))
            for position, index in enumerate(program.argnums):
                shape = (*output.shape, *primals[index].shape)
                if rows:
                    stacked = torch.stack([row[position] for row in rows])
                    results.append(stacked.reshape(shape))
                else:
                    results.append(output.new_zeros(shape))
        return tuple(results)

    return expected


def jacrev(program: Program) -> Program:
    """``torch.func.jacrev``: vmap over the pullback."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        function = differentiable_outputs(program.run)
        return flat_jacobian(torch.func.jacrev(function, program.argnums)(*primals))

    return program.then(run, jacobian_by_rows(program))


def jacfwd(program: Program) -> Program:
    """``torch.func.jacfwd``: vmap over the pushforward."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        function = differentiable_outputs(program.run)
        return flat_jacobian(
            torch.func.jacfwd(function, program.argnums, randomness="same")(*primals)
        )

    return program.then(run, jacobian_by_columns(program))


def hessian(program: Program) -> Program:
    """``torch.func.hessian`` of the weighted sum: forward over reverse."""

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        def scalar(*inner: Tensor) -> Tensor:
            return weighted_sum(program.run(*inner))

        return flat_jacobian(torch.func.hessian(scalar, program.argnums)(*primals))

    def gradient(*primals: Tensor) -> tuple[Tensor, ...]:
        cotangents = [
            weights_like(output).conj() if is_differentiable(output) else None
            for output in program.example
        ]
        return program.derivatives.vjp(program.expected, primals, program.argnums, cotangents)[1]

    return program.then(run, jacobian_by_rows(program.then(program.run, gradient)))


TRANSFORMS = (
    Transform("jacrev", jacrev, frozenset({"autograd"}), order=1, linear=True, real_only=True),
    Transform(
        "jacfwd",
        jacfwd,
        frozenset({"forward_ad", "vmap"}),
        order=1,
        linear=True,
        real_only=True,
        reproducible=False,
    ),
    Transform(
        "hessian",
        hessian,
        frozenset({"autograd", "forward_ad", "vmap"}),
        order=2,
        linear=True,
        real_only=True,
        reproducible=False,
    ),
)
