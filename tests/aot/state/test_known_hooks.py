"""Hooks that are on parameters while a compiled step calls ``backward``: changed between calls."""

from functools import partial

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


class Scaling:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, gradient):
        return gradient * self.factor

    def method(self, gradient):
        return gradient * self.factor


def by(factor, gradient):
    return gradient * factor


def with_default(factor):
    def hook(gradient, factor=factor):
        return gradient * factor

    return hook


SHARED = Scaling(0.0)


def of_shared(factor):
    SHARED.factor = factor
    return lambda gradient: gradient * SHARED.factor


def changed(make):
    """A hook that stays, of an object that changes."""

    def of(factor):
        SHARED.factor = factor
        return make(SHARED)

    return of


MAKES = {
    "closes over a number": lambda factor: lambda gradient: gradient * factor,
    "has a default": with_default,
    "reads a shared object": of_shared,
    "a partial": lambda factor: partial(by, factor),
    "a new object": Scaling,
    "a method of a new object": lambda factor: Scaling(factor).method,
    "an object that changes": changed(lambda shared: shared),
    "a method of one that changes": changed(lambda shared: shared.method),
}
# None is a step without a hook, a tuple one with two.
FACTORS = [None, 7.0, 3.0, 7.0, None, (2.0, 5.0), (5.0, 2.0), 3.0]


def step_of(weight):
    return lambda x: (weight * x).sum().backward()


def grads(compiled, make, *, kept_object):
    torch.manual_seed(0)
    weight = torch.randn(3, requires_grad=True)
    step = funcaot.compile(step_of(weight), backend=COMPILER) if compiled else step_of(weight)
    found = []
    for factors in FACTORS:
        factors = factors if isinstance(factors, tuple) else (factors,)
        made = [make(factor) for factor in factors if factor is not None]
        handles = [weight.register_hook(hook) for hook in made[: 1 if kept_object else 2]]
        weight.grad = None
        step(torch.arange(3.0))
        found.append(weight.grad)
        for handle in handles:
            handle.remove()
    return found, step


@pytest.mark.parametrize("kind", MAKES)
def test_each_call_has_its_hooks(kind):
    expected, _ = grads(False, MAKES[kind], kept_object="chang" in kind)
    found, _ = grads(True, MAKES[kind], kept_object="chang" in kind)
    torch.testing.assert_close(found, expected)


def test_a_hook_that_stays_and_reads_what_changes():
    for hook in (SHARED, SHARED.method, lambda gradient: gradient * SHARED.factor):
        weight = torch.ones(3, requires_grad=True)
        weight.register_hook(hook)
        step = funcaot.compile(step_of(weight), backend=COMPILER)
        for factor in (2.0, 5.0, 2.0, 7.0):
            SHARED.factor, weight.grad = factor, None
            step(torch.ones(3))
            assert weight.grad.tolist() == [factor] * 3


def test_one_that_is_made_anew_in_each_step_has_one_program():
    weight = torch.ones(3, requires_grad=True)
    step = funcaot.compile(step_of(weight), backend=COMPILER)
    for _ in range(4):
        limit = 0.5
        handle = weight.register_hook(lambda gradient, limit=limit: gradient.clamp(max=limit))
        weight.grad = None
        step(torch.ones(3))
        assert weight.grad.tolist() == [0.5] * 3
        handle.remove()
    assert len(step.entries) == 1


def test_hooks_after_accumulation():
    weight = torch.ones(3, requires_grad=True)
    step = funcaot.compile(step_of(weight), backend=COMPILER)
    for factor in (2.0, 5.0, 2.0):

        def scale(parameter, factor=factor):
            parameter.grad.mul_(factor)

        handle = weight.register_post_accumulate_grad_hook(scale)
        weight.grad = None
        step(torch.ones(3))
        assert weight.grad.tolist() == [factor] * 3
        handle.remove()
