"""Random ops under derivatives and transforms: the draw of the forward is the draw everywhere."""

import sys
from pathlib import Path

import pytest
import torch
from torch import func
from torch.testing import assert_close

sys.path.insert(0, str(Path(__file__).parent))
import orders_cases as cases

pytestmark = [
    pytest.mark.filterwarnings(
        r"ignore:.torch\.jit\.script(_method)?. is deprecated:DeprecationWarning"
    )
]


def dropped(x):
    return torch.nn.functional.dropout(x, 0.5) ** 3


def noisy(x):
    noise = torch.rand_like(x)
    return (x * noise).sin() * x


def doubly(x):
    return dropped(x) * torch.randn_like(x) + noisy(x)


FUNCTIONS = pytest.mark.parametrize("function", [dropped, noisy, doubly])


def seeded(program):
    torch.manual_seed(5)
    return program()


@FUNCTIONS
@pytest.mark.parametrize("order", [1, 2, 3])
def test_orders_use_the_draw_of_the_forward(function, order):
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)

    def run(f):
        torch.manual_seed(5)
        total = f(x).sum()
        torch.manual_seed(1234)
        for _ in range(order):
            (gradient,) = torch.autograd.grad(total, x, create_graph=True)
            total = (gradient**2).sum()
        return gradient

    assert_close(run(cases.compiled(function)), run(function))


@FUNCTIONS
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: func.grad(lambda x: f(x).sum()),
        lambda f: func.grad(lambda x: (func.grad(lambda x: f(x).sum())(x) ** 2).sum()),
        lambda f: lambda x: func.jvp(f, (x,), (x.cos(),)),
        lambda f: lambda x: func.vjp(f, x)[1](x),
        lambda f: func.jacrev(f),
        lambda f: func.vmap(f, randomness="different"),
        lambda f: func.vmap(f, randomness="same"),
        lambda f: func.vmap(func.grad(lambda x: f(x).sum()), randomness="different"),
        lambda f: func.vmap(func.grad(lambda x: f(x).sum()), randomness="same"),
        lambda f: func.grad(lambda x: func.vmap(f, randomness="different")(x).sum()),
        lambda f: lambda x: func.jvp(func.grad(lambda x: f(x).sum()), (x,), (x.cos(),)),
        lambda f: lambda x: func.jacfwd(f, randomness="same")(x),
    ],
    ids=[
        "grad",
        "grad_of_grad",
        "jvp",
        "vjp",
        "jacrev",
        "vmap_different",
        "vmap_same",
        "vmap_grad_different",
        "vmap_grad_same",
        "grad_vmap",
        "jvp_grad",
        "jacfwd",
    ],
)
def test_transforms_draw_what_eager_draws(function, transform):
    x = torch.randn(6, 4, dtype=torch.float64)
    compiled = cases.compiled(function)
    expected = seeded(lambda: transform(function)(x))
    assert_close(seeded(lambda: transform(compiled)(x)), expected)
    assert_close(seeded(lambda: transform(compiled)(x)), expected)


def test_vmap_refuses_randomness_as_eager_does():
    x = torch.randn(6, 4)
    for function in (noisy, cases.compiled(noisy)):
        with pytest.raises(RuntimeError, match="randomness"):
            func.vmap(function)(x)


def test_vmap_same_gives_one_draw_to_every_example():
    compiled = cases.compiled(lambda x: x * torch.rand(()))
    y = func.vmap(compiled, randomness="same")(torch.ones(5))
    assert y.unique().numel() == 1
    y = func.vmap(compiled, randomness="different")(torch.ones(5))
    assert y.unique().numel() == 5


def test_a_repeated_backward_sees_the_same_draw():
    compiled = cases.compiled(doubly)
    x = torch.randn(20, dtype=torch.float64, requires_grad=True)
    total = compiled(x).sum()
    first = torch.autograd.grad(total, x, retain_graph=True)
    assert_close(torch.autograd.grad(total, x), first)
