"""Mistakes in the operator's rules and in the pipeline, and the generated cases that find them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import funcaot
from funcaot import Function
from funcaot.aot import backward, call, compaction, epilogue, partition, program, segment
from funcaot.aot.spec import spec_of
from funcaot.rules import complete
from funcaot.testing import opinfo
from funcaot.testing.database import FUNCTIONS
from funcaot.testing.samples import unary
from funcaot.transforms import functionalize, generated_vmap, levels, vmap


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        name: What is wrong.
        owner: Where the right code is.
        attribute: Its name there.
        make: From the right code to the wrong one.
        found_by: Generated cases, as (Function, composition); each must find it.
    """

    name: str
    owner: Any
    attribute: str
    make: Callable[[Any], Any]
    found_by: tuple[tuple[str, str], ...]

    def plant(self, patch: Any) -> None:
        """Replace the right code for the time of a test."""
        right = getattr(self.owner, self.attribute)
        patch.setattr(self.owner, self.attribute, self.make(right))


# --- rules --------------------------------------------------------------------------------------


def dimension_moved(right):
    return lambda tensor, dim, level: right(tensor.transpose(dim, -1), dim, level)


def first_example_for_all(right):
    def batched(output, flat_dims, level, operands):
        if isinstance(output, torch.Tensor) and flat_dims[0] is not None:
            output = output.narrow(flat_dims[0], 0, 1).expand_as(output)
        return right(output, flat_dims, level, operands)

    return batched


def sum_forgotten(right):
    def gradient_for(gradient, dim, in_dim, batch_size):
        if in_dim is None and dim is not None:
            return gradient.select(dim, 0)
        return right(gradient, dim, in_dim, batch_size)

    return gradient_for


def saved_in_another_order(right):
    def context(self, ctx, saved, tensors):
        return right(self, ctx, saved[::-1], tensors)

    return context


def last_tangent_dropped(right):
    def run(self, rule, ctx, tangents):
        given = [i for i, tangent in enumerate(tangents) if tangent is not None]
        if len(given) > 1:
            tangents = tuple(torch.zeros_like(t) if i == given[-1] else t
                             for i, t in enumerate(tangents))
        return right(self, rule, ctx, tangents)

    return run


def factor_of_two(right):
    def rule(function, ctx, given):
        made = right(function, ctx, given)
        double = [value if value is None else 2 * value
                  for value in (made if isinstance(made, tuple) else (made,))]
        return tuple(double) if isinstance(made, tuple) else double[0]

    return rule


def sign_turned(right):
    def rule(function, ctx, given):
        return tuple(value if value is None else -value for value in right(function, ctx, given))

    return rule


def nothing(right):
    return lambda *arguments: None


def cotangent_materialized(right):
    def run(function, ctx, cotangents):
        like = next(value for value in cotangents if value is not None)
        return right(function, ctx, tuple(torch.ones_like(like) if value is None else value
                                          for value in cotangents))

    return run


def value_of_the_level_above(right):
    def call(self, operands):
        self.forward = False
        self.reverse = False
        return right(self, operands)

    return call


IN_RULES = (
    Mistake(
        "the batch is put where another dimension was",
        vmap, "add_batch_dimension", dimension_moved,
        (("NumpyMultiply", "vmap"), ("Softmax", "vmap_of_grad")),
    ),
    Mistake(
        "every example gets the first one's result",
        vmap, "_batched", first_example_for_all,
        (("Softmax", "vmap"), ("Softmax", "vmap_last")),
    ),
    Mistake(
        "the gradient of a shared operand is one example's",
        generated_vmap, "_gradient_for", sum_forgotten,
        (("Multiply", "grad_of_vmap_first_only"),),
    ),
    Mistake(
        "saved tensors come in another order under vmap",
        generated_vmap._Record, "context", saved_in_another_order,
        (("Multiply", "grad_of_vmap"), ("Multiply", "autograd_of_vmap")),
    ),
    Mistake(
        "jvp drops a tangent",
        levels.LevelRunner, "jvp", last_tangent_dropped,
        (("NumpyMultiply", "jvp"),),
    ),
    Mistake(
        "a generated jvp misses a factor",
        complete, "jvp_from_backward", factor_of_two,
        (("LayerNorm", "jvp"), ("LayerNorm", "dual")),
    ),
    Mistake(
        "a generated backward has the wrong sign",
        complete, "backward_from_jvp", sign_turned,
        (("DivideFromJvp", "grad"), ("DivideFromJvp", "autograd")),
    ),
    Mistake(
        "functionalize loses a write",
        functionalize._LevelInterface, "replace", nothing,
        (("ExpInPlace", "functionalize"),),
    ),
    Mistake(
        "an output nobody used gets ones instead of None",
        levels, "run_reverse", cotangent_materialized,
        (("FirstOutputOnly", "grad"), ("FirstOutputOnly", "autograd")),
    ),
    Mistake(
        "levels below don't see the value being computed",
        levels.LowerLevel, "__call__", value_of_the_level_above,
        (("Square", "grad_of_jvp"),),
    ),
)


# --- the pipeline -------------------------------------------------------------------------------


def mask_inverted(right):
    return lambda kind, bounds: right({"blocked": "positive"}.get(kind, kind), bounds)


def nothing_random(right):
    return lambda node: False


def zeros_for_none(right):
    def distribute(self, gradients):
        return tuple(
            None if value is None else torch.zeros_like(value)
            for value in right(self, gradients)
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

    def execute(self, operands):
        made = right(self, operands)
        kept = buffers.setdefault((id(self), tuple(value.shape for value in made)), made)
        for buffer, value in zip(kept, made, strict=True):
            buffer.copy_(value)
        return kept

    return execute


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
    def backward_for(self, needs, edges, tangents, values):
        with torch.no_grad():
            return right(self, needs, edges, tangents, values)

    return backward_for


def tangent_is_primal(right):
    def pushed_forward(self, primals, tangents):
        made, pushed = right(self, primals, tangents)
        return made, [None if tangent is None else value.clone()
                      for value, tangent in zip(made, pushed, strict=True)]

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
        partition.graphs, "is_random", nothing_random,
        (("DropoutOfTorch", "autograd_of_compile"),),
    ),
    Mistake(
        "the mask kept for a relu is the wrong one",
        compaction, "Mask", mask_inverted,
        (("ReluOfTorch", "autograd_of_compile"),),
    ),
    Mistake(
        "the epilogue loses a write",
        epilogue, "apply", nothing,
        (("CompiledWrite", "call"), ("CompiledWrite", "grad")),
    ),
    Mistake(
        "a backward gives zeros",
        backward.Backward, "distribute", zeros_for_none,
        (("Multiply", "autograd_of_compile"),),
    ),
    Mistake(
        "a backward gives each operand another one's gradient",
        backward.Backward, "distribute", gradients_swapped,
        (("Multiply", "autograd_of_compile"), ("Multiply", "grad_of_compile")),
    ),
    Mistake(
        "calls share a buffer for their outputs",
        program.GraphProgram, "execute", one_buffer,
        (("Multiply", "vmap_chunked_of_compile"),),
    ),
    Mistake(
        "a backward reads an operand for what was kept",
        segment.Residual, "of", first_residual,
        (("Multiply", "autograd_of_compile"),),
    ),
    Mistake(
        "a backward is reused for gradients of another layout",
        call, "_tangent_specs", any_layout,
        (("LayoutBranch", "autograd_strided_of_compile"),),
    ),
    Mistake(
        "a backward forgets that it is differentiated again",
        call.SegmentFunction, "backward_for", second_order_forgotten,
        (("Square", "autograd_of_autograd_of_compile"),),
    ),
    Mistake(
        "forward mode returns the value for the tangent",
        call.SegmentFunction, "pushed_forward", tangent_is_primal,
        (("Square", "jvp_of_compile"),),
    ),
    Mistake(
        "the vmapped program says the wrong dimension",
        program.GraphProgram, "batched", batch_dimension_forgotten,
        (("Multiply", "vmap_of_compile"),),
    ),
)


# --- Functions that the database has no need of -------------------------------------------------


class FirstOfTwo(Function):
    """Its second output isn't used, so that backward gets None for it."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return 2 * x, 3 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, first, second):
        return 2 * first if second is None else 2 * first + 3 * second


def dropped(x):
    return torch.nn.functional.dropout(x * 2, 0.5) * x


def masked(x):
    return ((x * 1.5 - 1).relu() * 2).sum(-1)


def written(x):
    return x.mul_(2) + 1


@functools.cache
def compiled_write():
    return funcaot.compile(written, backend="eager")


def write(function, x):
    copy = x * 1
    return function(copy), copy


EXTRA = (
    opinfo(FirstOfTwo, unary(), op=lambda x: FirstOfTwo.apply(x)[0], ref=lambda x: 2 * x,
           name="FirstOutputOnly"),
    opinfo(dropped, unary(), ref=dropped, random=True, name="DropoutOfTorch"),
    opinfo(masked, unary(), ref=masked, name="ReluOfTorch"),
    opinfo(lambda x: write(compiled_write(), x), unary(), ref=lambda x: write(written, x),
           name="CompiledWrite"),
)
INFOS = {info.name: info for info in (*FUNCTIONS, *EXTRA)}
