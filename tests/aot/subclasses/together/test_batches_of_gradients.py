"""Gradients that come in a batch, to a backward whose forward ran below: as in eager."""

import pytest
import torch
from torch.autograd.functional import hessian

import funcaot
from tests.aot.subclasses.kinds import Factor, TwoTensor, made, same, two
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
KINDS = {
    "two": lambda: two(0, 3),
    "plain": lambda: made(0, 3),
    "metadata": lambda: Factor(made(0, 3, grad=False), 2).requires_grad_(),
    "nested": lambda: TwoTensor(two(0, 3, grad=False), two(5, 3, grad=False)).requires_grad_(),
}
GRADIENTS = {
    "plain": lambda: made(9, 2, 3, grad=False),
    "two": lambda: two(9, 2, 3, grad=False),
    "metadata": lambda: Factor(made(9, 2, 3, grad=False), 2),
}


def function(x):
    return (x.sin() * x).exp()


def first(f, x, gradients):
    return torch.autograd.grad(f(x), x, gradients, is_grads_batched=True)


def differentiated_again(f, x, gradients):
    (found,) = torch.autograd.grad(f(x), x, gradients, is_grads_batched=True, create_graph=True)
    return found, torch.autograd.grad(found.sum(), x)[0]


def batched_second(f, x, gradients):
    (found,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return torch.autograd.grad(found, x, gradients, is_grads_batched=True)


def below_vmap(f, x, gradients):
    y = f(x)
    return torch.vmap(lambda v: torch.autograd.grad(y, x, v, retain_graph=True)[0])(gradients)


def of_whole(f, x, gradients):
    return hessian(lambda v: f(v).sum(), x.detach(), vectorize=True)


WAYS = {
    "first": first,
    "differentiated again": differentiated_again,
    "second": batched_second,
    "vmap": below_vmap,
    "hessian": of_whole,
}


def outcome(way, f, kind, gradients):
    """What comes out; whether eager refuses it."""
    try:
        return WAYS[way](f, KINDS[kind](), GRADIENTS[gradients]())
    except (RuntimeError, TypeError, NotImplementedError) as error:
        return type(error).__name__


CASES = [("two", "plain"), ("two", "two"), ("plain", "two"), ("metadata", "metadata")]
CASES += [("nested", "plain"), ("metadata", "plain")]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "gradients"), CASES)
def test_as_in_eager(kind, gradients, way):
    compiled = funcaot.compile(function, backend=COMPILER)
    wanted = outcome(way, function, kind, gradients)
    assert not isinstance(wanted, str)
    for _ in range(2):
        same(outcome(way, compiled, kind, gradients), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_on_the_default_backend(way):
    compiled = funcaot.compile(function)
    for _ in range(2):
        found, wanted = (outcome(way, f, "two", "two") for f in (compiled, function))
        same(found, wanted, rtol=1e-4, atol=1e-5)


def test_two_operands_one_without_a_gradient():
    def product(x, w, unused):
        return (x @ w).tanh()

    compiled = funcaot.compile(product, backend=COMPILER)
    for _ in range(2):
        results = []
        for f in (compiled, product):
            given = two(0, 3, 4), made(1, 4, 2), made(2, 3)
            y = f(*given)
            for _ in range(2):
                found = torch.autograd.grad(
                    y, given, made(3, 5, 3, 2, grad=False), is_grads_batched=True,
                    retain_graph=True, allow_unused=True,
                )  # fmt: skip
            results.append([each for each in found if each is not None])
        same(*results, rtol=1e-4, atol=1e-5)
