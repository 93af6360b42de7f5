"""Functions with random traits compute, compiled, what eager computes; to the second order."""

import warnings
from random import Random

import pytest
import torch

import funcaot
from funcaot.errors import CaptureWarning
from tests.functions.random_functions import function_of, random_traits
from tests.hostile import COMPILER

SIZES = (3, 3, 4, 5, 3)


def seen(function, size, seed, order):
    """Results and derivatives, and facts of the results."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size, size, generator=generator).requires_grad_()
    weight = torch.randn(size, generator=generator).requires_grad_(seed % 3 != 0)
    inputs = [each for each in (x, weight) if each.requires_grad]
    results = [each for each in function(x, weight) if each is not None]
    loss = sum(each.square().sum() * 2 for each in results if each.requires_grad)
    found = list(torch.autograd.grad(loss, inputs, allow_unused=True, create_graph=order == 2))
    if order == 2:
        second = [each.square().sum() for each in found if _is_differentiable(each)]
        if second:
            found += torch.autograd.grad(sum(second), inputs, allow_unused=True)
    facts = [(each.stride(), each.dtype, each.requires_grad) for each in results]
    return [each.detach() for each in results] + [_plain(each) for each in found], facts


def _is_differentiable(gradient):
    return gradient is not None and gradient.requires_grad


def _plain(gradient):
    """Where a backward on real values gives None, a program has zeros."""
    return torch.zeros(()) if gradient is None or not gradient.any() else gradient.detach()


def check(seed, backend):
    random = Random(seed)
    traits = random_traits(random)
    order = 1 if "once" in traits.flags else random.choice([1, 2])
    function = function_of(traits)
    compiled = funcaot.compile(function, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CaptureWarning)
        for at, size in enumerate(SIZES):
            expected, facts = seen(function, size, seed * 10 + at, order)
            found, found_facts = seen(compiled, size, seed * 10 + at, order)
            what = f"seed {seed}, call {at}: {traits}"
            assert found_facts == facts, what
            torch.testing.assert_close(
                found, expected, rtol=1e-4, atol=1e-5, msg=lambda text, what=what: f"{what}\n{text}"
            )


@pytest.mark.parametrize("seed", range(1, 4))
def test_like_eager(seed):
    check(seed, COMPILER)


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, *range(4, 200)])
def test_more_are_like_eager(seed):
    check(seed, COMPILER)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(200, 240))
def test_like_eager_on_inductor(seed):
    check(seed, "inductor")
