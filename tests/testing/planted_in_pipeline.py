"""Mistakes in the pipeline, and the generated cases that find each."""

from __future__ import annotations

import torch

from funcaot.aot.calls import call, derivatives, in_place_call, program
from funcaot.aot.effects import epilogue
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.segment import backward, partition, segment
from funcaot.aot.tape import masks
from tests.testing.planted_in_rules import Mistake, nothing


def mask_inverted(right):
    return lambda kind, bounds: right({"blocked": "positive"}.get(kind, kind), bounds)


def nothing_random(right):
    return lambda node: False


def zeros_for_none(right):
    def distribute(self, gradients):
        return tuple(
            None if value is None else torch.zeros_like(value) for value in right(self, gradients)
        )

    return distribute


def gradients_swapped(right):
    def distribute(self, gradients):
        made = right(self, gradients)
        given = [value for value in made if value is not None]
        rest = iter(given[::-1])
        return tuple(None if value is None else next(rest) for value in made)

    return distribute


def one_buffer(right):
    buffers = {}

    def execute(self, operands, **options):
        made = right(self, operands, **options)
        kept = buffers.setdefault((id(self), tuple(value.shape for value in made)), made)
        for buffer, value in zip(kept, made, strict=True):
            buffer.copy_(value)
        return kept

    return execute


def writes_into_a_copy(right):
    return lambda self, tensors: right(self, [tensor.clone() for tensor in tensors])


def first_residual(right):
    def of(self, operands, outputs):
        return operands[0]

    return of


def any_layout(right):
    def specs(tangents):
        return tuple(
            None if tangent is None else spec_of_contiguous(tangent) for tangent in tangents
        )

    return specs


def spec_of_contiguous(tangent):
    return spec_of(tangent.contiguous()).without_grad()


def second_order_forgotten(right):
    def traced(self, needs, edges, tangents, values, tried=None):
        with torch.no_grad():
            return right(self, needs, edges, tangents, values, tried)

    return traced


def tangent_is_primal(right):
    def pushed_forward(self, primals, tangents):
        made, pushed = right(self, primals, tangents)
        return made, [
            None if tangent is None else value.clone()
            for value, tangent in zip(made, pushed, strict=True)
        ]

    return pushed_forward


def batch_dimension_forgotten(right):
    def batched(self, operands, in_dims, batch):
        derived, out_dims = right(self, operands, in_dims, batch)
        return derived, tuple(None if dim is None else derived_last(dim) for dim in out_dims)

    return batched


def derived_last(dim):
    return -1


IN_PIPELINE = (
    Mistake(
        "random numbers are drawn again in the backward",
        partition.graphs,
        "is_random",
        nothing_random,
        (("NoiseOfTorch", "autograd_of_compile"),),
    ),
    Mistake(
        "the mask kept for a relu is the wrong one",
        masks,
        "Mask",
        mask_inverted,
        (("ReluOfTorch", "autograd_of_compile"),),
    ),
    Mistake(
        "the epilogue loses a write",
        epilogue,
        "_replay",
        nothing,
        (("CompiledWrite", "grad"),),
    ),
    Mistake(
        "a graph that writes by itself loses a write",
        in_place_call.InPlace,
        "run",
        writes_into_a_copy,
        (("CompiledWrite", "call"),),
    ),
    Mistake(
        "a backward gives zeros",
        backward.Backward,
        "distribute",
        zeros_for_none,
        (("Multiply", "autograd_of_compile"),),
    ),
    Mistake(
        "a backward gives each operand another one's gradient",
        backward.Backward,
        "distribute",
        gradients_swapped,
        (("Multiply", "autograd_of_compile"), ("Multiply", "grad_of_compile")),
    ),
    Mistake(
        "calls share a buffer for their outputs",
        program.GraphProgram,
        "execute",
        one_buffer,
        (("Multiply", "vmap_chunked_of_compile"),),
    ),
    Mistake(
        "a backward reads an operand for what was kept",
        segment.Residual,
        "of",
        first_residual,
        (("Multiply", "autograd_of_compile"),),
    ),
    Mistake(
        "a backward is reused for gradients of another layout",
        derivatives,
        "tangent_specs",
        any_layout,
        (("LayoutBranch", "autograd_strided_of_compile"),),
    ),
    Mistake(
        "a backward forgets that it is differentiated again",
        derivatives.Derivatives,
        "backward",
        second_order_forgotten,
        (("Square", "autograd_of_autograd_of_compile"),),
    ),
    Mistake(
        "forward mode returns the value for the tangent",
        call.SegmentFunction,
        "pushed_forward",
        tangent_is_primal,
        (("Square", "jvp_of_compile"),),
    ),
    Mistake(
        "the vmapped program says the wrong dimension",
        program.GraphProgram,
        "batched",
        batch_dimension_forgotten,
        (("Multiply", "vmap_of_compile"),),
    ),
)
