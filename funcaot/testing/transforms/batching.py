"""vmap with several ``in_dims``, ``out_dims``, chunks and kinds of randomness; batched grads."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from funcaot.testing.derivatives import differentiable_views
from funcaot.testing.program import Program, is_differentiable, weights_like
from funcaot.testing.transforms.record import Transform

BATCH = 2


def element(tensor: Tensor, index: int) -> Tensor:
    """An element of a batch: the sample, scaled so that signs, order and domain survive."""
    return tensor * (1 - 0.125 * index) if is_differentiable(tensor) else tensor


def batch_dimension(tensor: Tensor, which: str, position: int) -> int | None:
    """Where a primal is batched: first or last dimension, or not at all."""
    if which == "first_only" and position > 0:
        return None
    return tensor.dim() if which == "last" else 0


def vmap(
    program: Program,
    *,
    which: str = "all",
    out_dim: int = 0,
    randomness: str = "different",
    chunk_size: int | None = None,
) -> Program:
    """``torch.func.vmap`` over a batch made of the sample; the oracle is a loop."""
    in_dims = tuple(
        batch_dimension(primal, which, position) for position, primal in enumerate(program.primals)
    )
    batched = tuple(
        primal if dim is None else torch.stack([element(primal, i) for i in range(BATCH)], dim)
        for primal, dim in zip(program.primals, in_dims, strict=True)
    )

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        return torch.func.vmap(
            program.run,
            in_dims=in_dims,
            out_dims=out_dim,
            randomness=randomness,
            chunk_size=chunk_size,
        )(*primals)

    def expected(*primals: Tensor) -> tuple[Tensor, ...]:
        state = torch.get_rng_state()
        rows = []
        for index in range(BATCH):
            if randomness == "same":
                torch.set_rng_state(state)
            chosen = [
                primal if dim is None else primal.select(dim, index)
                for primal, dim in zip(primals, in_dims, strict=True)
            ]
            rows.append(program.expected(*chosen))
        return tuple(torch.stack(column, out_dim) for column in zip(*rows, strict=True))

    return program.then(run, expected, batched)


def batched_grads(program: Program) -> Program:
    """``torch.autograd.grad(..., is_grads_batched=True)``; the oracle is a loop of pullbacks."""
    differentiable = [index for index, out in enumerate(program.example) if is_differentiable(out)]

    def cotangents_of(index: int) -> list[Tensor]:
        return [weights_like(program.example[place], 0.5 * index) for place in differentiable]

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            inner = differentiable_views(primals, program.argnums)
            outputs = program.run(*inner)
            # Only what is computed here: a compiler may trace this.
            reached = [
                (output, torch.stack([weights_like(output, 0.5 * i) for i in range(BATCH)]))
                for output in outputs
                if is_differentiable(output) and output.requires_grad
            ]
            wanted = [inner[index] for index in program.argnums]
            if not reached:
                return tuple(primal.new_zeros(BATCH, *primal.shape) for primal in wanted)
            grads = torch.autograd.grad(
                [output for output, _ in reached],
                wanted,
                [cotangent for _, cotangent in reached],
                is_grads_batched=True,
                create_graph=True,
                allow_unused=True,
            )
        # torch would materialize a missing gradient without its batch dimension.
        return tuple(
            primal.new_zeros(BATCH, *primal.shape) if grad is None else grad
            for primal, grad in zip(wanted, grads, strict=True)
        )

    def expected(*primals: Tensor) -> tuple[Tensor, ...]:
        rows = []
        _, pull = program.derivatives.pullback(program.expected, primals, program.argnums)
        for index in range(BATCH):
            spread: list[Tensor | None] = [None] * len(program.example)
            for place, cotangent in zip(differentiable, cotangents_of(index), strict=True):
                spread[place] = cotangent
            rows.append(pull(spread))
        return tuple(torch.stack(column) for column in zip(*rows, strict=True))

    return program.then(run, expected)


VMAP = frozenset({"vmap"})

TRANSFORMS = (
    Transform("vmap", vmap, VMAP),
    Transform("vmap_last", partial(vmap, which="last"), VMAP, depth_one=True, reproducible=False),
    Transform("vmap_first_only", partial(vmap, which="first_only"), VMAP),
    Transform("vmap_out_last", partial(vmap, out_dim=-1), VMAP, depth_one=True),
    Transform("vmap_same", partial(vmap, randomness="same"), VMAP, depth_one=True),
    Transform("vmap_chunked", partial(vmap, chunk_size=1), VMAP, depth_one=True),
    Transform(
        "batched_grads",
        batched_grads,
        # Only backward is batched, which needs no rule of the Function itself.
        frozenset({"autograd"}),
        order=1,
        base_only=True,
        linear=True,
    ),
)
