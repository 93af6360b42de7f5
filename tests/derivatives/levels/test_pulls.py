"""What ``torch.func.vjp`` returns, called after its level has ended, in stacks of transforms.

A backward runs at the level that is in progress then, which may be one of ``vmap``, or none.
"""

import pytest
import torch

import funcaot
import funcaot.derivatives.special
from funcaot.testing.derivatives import FiniteDifferences
from tests.derivatives.cases import CALLS, UNBATCHED

pytestmark = [
    pytest.mark.filterwarnings("ignore:index_reduce"),
    pytest.mark.filterwarnings("ignore:There is a performance drop"),
]
# Torch decides what to compute by what requires grad, and says where levels disagree.
DECIDED = ("chunked_cross_entropy_mean", "chunked_cross_entropy_sum")
BATCHED = [name for name in CALLS if name not in UNBATCHED + DECIDED]


def pulled(function):
    """A function that pulls back what depends on its own value."""

    def run(*values):
        output, pull = torch.func.vjp(function, *values)
        return pull(output.cos())[0]

    return run


def jacobian(function):
    return torch.func.jacrev(function)


def product(function):
    """Forward mode over what was pulled."""

    def run(*values):
        along = tuple(value.sin() for value in values)
        return torch.func.jvp(pulled(function), values, along)[1]

    return run


def of_tangents(function):
    """What was pulled, over forward mode."""

    def run(*values):
        def moved(*values):
            return torch.func.jvp(function, values, tuple(value.cos() for value in values))[1]

        return pulled(moved)(*values)

    return run


TOWERS = {
    "pulled": pulled,
    "pulled_twice": lambda f: pulled(pulled(f)),
    "jacobian": jacobian,
    "jacobian_of_pulled": lambda f: jacobian(pulled(f)),
    "hessian": lambda f: torch.func.hessian(lambda *values: f(*values).sin().sum()),
    "product": product,
    "of_tangents": of_tangents,
}


FAST = {"cdist_3.0", "hardsigmoid", "igamma", "multi_margin", "geqrf", "bag_weighted"}


def batched():
    for name in BATCHED:
        for tower in TOWERS:
            marks = [] if name in FAST else [pytest.mark.slow]
            yield pytest.param(name, tower, marks=marks)


@pytest.mark.parametrize(("name", "tower"), list(batched()))
def test_a_batch_is_a_loop(name, tower):
    call = CALLS[name]
    change = TOWERS[tower]
    primals = call.primals()
    batches = [torch.stack([0.9 * primal, primal]) for primal in primals]
    outside = [batch.clone().requires_grad_() for batch in batches]
    with funcaot.install():
        wanted = torch.stack([change(call.function)(*[b[i] for b in batches]) for i in (0, 1)])
        found = torch.func.vmap(change(call.function), randomness="same")(*batches)
        # And with a base level that records.
        again = torch.func.vmap(change(call.function), randomness="same")(*outside)
        looped = [change(call.function)(*[b[i] for b in outside]) for i in (0, 1)]
        assert not found.requires_grad
        assert not wanted.requires_grad
        assert again.requires_grad == looped[0].requires_grad
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(again, wanted)
        if again.requires_grad:
            value = torch.stack(looped).sin().sum()
            one = torch.autograd.grad(again.sin().sum(), outside, materialize_grads=True)
            other = torch.autograd.grad(value, outside, materialize_grads=True)
            for actual, want in zip(one, other, strict=True):
                torch.testing.assert_close(actual, want)


@pytest.mark.parametrize("name", [n for n in CALLS if n not in ("cdist_1.5", "pdist_1.5")])
def test_pulled_twice_is_the_transpose_of_differences(name):
    call = CALLS[name]
    primals = call.primals()
    with funcaot.install():

        def once(*values):
            return (pulled(call.function)(*values),)

        (value,), pull = FiniteDifferences().pullback(once, primals, (0,))
        (wanted,) = pull([value.cos()])
        found = pulled(pulled(call.function))(*primals)
    scale = 1 + wanted.abs().max()
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=10 * call.tolerance)


@pytest.mark.parametrize("how", ["installed", "inside"])
@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian"])
def test_an_infinite_gradient_arrives_after_the_level_has_ended(name, how):
    """Eager multiplies by a mask there, which gives NaN."""

    def run(x, arriving):
        return torch.func.vjp(getattr(torch, name), x)[1](arriving)[0]

    x, arriving = torch.tensor([1.0, 3.0, 2.0]), torch.tensor(torch.inf)
    wanted = run(x, arriving)
    assert wanted.isnan().sum() == 2
    if how == "inside":
        found = funcaot.compile(run, backend="eager")(x, arriving)
    else:
        with funcaot.install():
            found = run(x, arriving)
    torch.testing.assert_close(found, wanted, equal_nan=True)
