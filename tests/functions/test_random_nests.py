"""Functions under random nests of transforms, compiled somewhere in them, are what plain code is.

Plain code is the oracle: eager mode loses what forward mode over forward mode makes of a Function.
"""

import warnings
from random import Random

import pytest
import torch

import funcaot
from funcaot.errors import CaptureWarning
from tests.functions.random_nests import (
    floats,
    nested,
    program_of,
    random_flags,
    random_inputs,
    random_steps,
)
from tests.hostile import COMPILER

SIZES = ((3, 2), (3, 2), (4, 3), (5, 4), (3, 2))


def seen(program, inputs, order):
    """The floats among the results, and their derivatives of up to two orders outside."""
    varied = [each.requires_grad_(order > 0) for each in inputs[:2]]
    found = results = floats(program(*inputs))
    for _ in range(order):
        moving = [each.sin().sum() for each in results if each.requires_grad]
        if not moving:
            break
        grads = torch.autograd.grad(sum(moving), varied, allow_unused=True, create_graph=True)
        pairs = zip(grads, varied, strict=True)
        results = [torch.zeros_like(x) if grad is None else grad for grad, x in pairs]
        found = [*found, *results]
    return [each.detach() for each in found]


def check(seed, backend):
    random = Random(seed)
    flags, steps = random_flags(random), random_steps(random)
    place, order = random.randrange(len(steps) + 1), random.choice([0, 0, 1, 2])
    plain = nested(program_of(flags, None), steps)
    uncompiled = nested(program_of(flags, funcaot.Function), steps)
    inside = nested(program_of(flags, torch.autograd.Function), steps[:place])
    compiled = nested(funcaot.compile(inside, backend=backend), steps[place:])
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        for at, (size, batch) in enumerate(SIZES):
            expected, *found = (
                seen(each, random_inputs(steps, size, batch, seed * 10 + at), order)
                for each in (plain, uncompiled, compiled)
            )
            for each, name in zip(found, ("uncompiled", "compiled"), strict=True):
                what = f"seed {seed}, call {at}, {name}, {sorted(flags)}, {steps}, {place}, {order}"
                torch.testing.assert_close(
                    each, expected, msg=lambda text, what=what: f"{what}\n{text}"
                )


@pytest.mark.parametrize("seed", [1, 5, 7])
def test_like_plain_code(seed):
    check(seed, COMPILER)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 2, 3, 4, 6, *range(8, 150)])
def test_more_are_like_plain_code(seed):
    check(seed, COMPILER)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(150, 180))
def test_like_plain_code_on_inductor(seed):
    check(seed, "inductor")
