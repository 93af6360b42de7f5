"""Random ops under derivatives and transforms: the draw of the forward is the draw everywhere."""

import pytest
import torch
from torch import func
from torch.testing import assert_close

from tests.aot.segment import orders_cases as cases

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


def _drawn_per_example(f, weight, example):
    """What ``f`` makes of an operand that is the same for each example."""
    return f(weight) * example


CLOSED_OVER = {
    "vmap": lambda f, w, x, how: func.vmap(lambda x: _drawn_per_example(f, w, x), randomness=how)(
        x
    ),
    "vmap_grad": lambda f, w, x, how: func.vmap(
        lambda x: func.grad(lambda w: _drawn_per_example(f, w, x).sum())(w), randomness=how
    )(x),
    "grad_vmap": lambda f, w, x, how: func.grad(
        lambda w: func.vmap(lambda x: _drawn_per_example(f, w, x), randomness=how)(x).sum()
    )(w),
    "vmap_jvp": lambda f, w, x, how: func.vmap(
        lambda x: func.jvp(lambda w: _drawn_per_example(f, w, x), (w,), (w,))[1], randomness=how
    )(x),
}


@pytest.mark.parametrize("how", ["different", "same", "error"])
@pytest.mark.parametrize("transform", CLOSED_OVER.values(), ids=CLOSED_OVER)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_vmap_says_how_to_draw_also_if_no_operand_is_batched(transform, how, requires_grad):
    weight = torch.randn(4, dtype=torch.float64, requires_grad=requires_grad)
    x = torch.ones(6, 1, dtype=torch.float64)
    compiled = cases.compiled(noisy)
    if how == "error":
        for function in (noisy, compiled):
            with pytest.raises(RuntimeError, match="randomness"):
                transform(function, weight, x, how)
        return
    expected = seeded(lambda: transform(noisy, weight, x, how))
    assert_close(seeded(lambda: transform(compiled, weight, x, how)), expected)
    if transform is not CLOSED_OVER["grad_vmap"]:
        assert len(expected.unique(dim=0)) == (6 if how == "different" else 1)


@pytest.mark.parametrize("outer", ["different", "same"])
@pytest.mark.parametrize("inner", ["different", "same"])
@pytest.mark.parametrize("batched", [False, True])
def test_every_level_of_nested_vmaps_says_how_to_draw(inner, outer, batched):
    weight = torch.ones(4, dtype=torch.float64)
    rows, columns = (torch.ones(n, 1, dtype=torch.float64) for n in (2, 3))

    def draws(f):
        def row(a):
            drawn = weight * a if batched else weight
            return func.vmap(lambda b: f(drawn) * a * b, randomness=inner)(columns)

        result = seeded(lambda: func.vmap(row, randomness=outer)(rows))
        return len(result.flatten(0, 1).unique(dim=0))

    assert draws(cases.compiled(noisy)) == draws(noisy)
