"""Mistakes in the operator's rules, and the generated cases that find each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from funcaot.rules.generated import complete
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
            tangents = tuple(
                torch.zeros_like(t) if i == given[-1] else t for i, t in enumerate(tangents)
            )
        return right(self, rule, ctx, tangents)

    return run


def factor_of_two(right):
    def rule(function, ctx, given):
        made = right(function, ctx, given)
        double = [
            value if value is None else 2 * value
            for value in (made if isinstance(made, tuple) else (made,))
        ]
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
        return right(
            function,
            ctx,
            tuple(torch.ones_like(like) if value is None else value for value in cotangents),
        )

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
        vmap,
        "add_batch_dimension",
        dimension_moved,
        (("NumpyMultiply", "vmap"), ("Softmax", "vmap_of_grad")),
    ),
    Mistake(
        "every example gets the first one's result",
        vmap,
        "_batched",
        first_example_for_all,
        (("Softmax", "vmap"), ("Softmax", "vmap_last")),
    ),
    Mistake(
        "the gradient of a shared operand is one example's",
        generated_vmap,
        "_gradient_for",
        sum_forgotten,
        (("Multiply", "grad_of_vmap_first_only"),),
    ),
    Mistake(
        "saved tensors come in another order under vmap",
        generated_vmap._Record,
        "context",
        saved_in_another_order,
        (("Multiply", "grad_of_vmap"), ("Multiply", "autograd_of_vmap")),
    ),
    Mistake(
        "jvp drops a tangent",
        levels.LevelRunner,
        "jvp",
        last_tangent_dropped,
        (("NumpyMultiply", "jvp"),),
    ),
    Mistake(
        "a generated jvp misses a factor",
        complete,
        "jvp_from_backward",
        factor_of_two,
        (("LayerNorm", "jvp"), ("LayerNorm", "dual")),
    ),
    Mistake(
        "a generated backward has the wrong sign",
        complete,
        "backward_from_jvp",
        sign_turned,
        (("DivideFromJvp", "grad"), ("DivideFromJvp", "autograd")),
    ),
    Mistake(
        "functionalize loses a write",
        functionalize._LevelInterface,
        "replace",
        nothing,
        (("ExpInPlace", "functionalize"),),
    ),
    Mistake(
        "an output nobody used gets ones instead of None",
        levels,
        "run_reverse",
        cotangent_materialized,
        (("FirstOutputOnly", "grad"), ("FirstOutputOnly", "autograd")),
    ),
    Mistake(
        "levels below don't see the value being computed",
        levels.LowerLevel,
        "__call__",
        value_of_the_level_above,
        (("Square", "grad_of_jvp"),),
    ),
)
