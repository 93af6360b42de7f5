"""Functions on real values that hand on more than tensors: to their rules, or to their caller."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError
from tests.hostile import COMPILER

TABLE = object()


class Held:
    def __init__(self, value):
        self.value = value


def number(x):
    return float(x.detach().numpy().sum())


def array(x):
    return x.detach().numpy() * 2


def thing(x):
    return Held(number(x))


def function(x):
    factor = number(x)
    return lambda: factor


def nested(x):
    return {"all": [number(x), None]}


def told(kept):
    kept = kept() if callable(kept) else getattr(kept, "value", kept)
    kept = kept["all"][0] if isinstance(kept, dict) else kept
    return torch.from_numpy(kept) if hasattr(kept, "tobytes") else kept


def on_ctx(made):
    class OnCtx(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = made(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient * told(ctx.kept)

    return lambda x: OnCtx.apply(x).sin()


def as_result(made):
    class AsResult(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2, made(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.kept = output[1]

        @staticmethod
        def backward(ctx, gradient, _):
            return gradient * told(ctx.kept)

    return lambda x: AsResult.apply(x)[0].sin()


def to_the_caller(made):
    class ToTheCaller(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2, made(x)

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, gradient, _):
            return gradient * 2

    def run(x):
        result, kept = ToTheCaller.apply(x)
        return result.sin() * told(kept)

    return run


VALUES = (number, array, thing, function, nested)
WAYS = (on_ctx, as_result, to_the_caller)


def gradients(function, seed):
    x = torch.randn(3, generator=torch.Generator().manual_seed(seed)).requires_grad_()
    result = function(x)
    return result.detach(), *torch.autograd.grad(result.sum(), x)


@pytest.mark.parametrize("made", VALUES)
@pytest.mark.parametrize("way", WAYS)
def test_what_differs_from_call_to_call_is_none_of_the_program(way, made):
    """It stayed what it was in the call that was captured, and gradients with it."""
    plain = way(made)
    compiled = funcaot.compile(plain, backend=COMPILER, fullgraph=False)
    assert_close(gradients(compiled, 0), gradients(plain, 0))
    with pytest.warns(CaptureWarning, match="hands on something that isn't a tensor"):
        found = [gradients(compiled, seed) for seed in (0, 1, 0, 2)]
    assert_close(found, [gradients(plain, seed) for seed in (0, 1, 0, 2)])


@pytest.mark.parametrize("way", WAYS)
def test_where_that_is_an_error(way):
    compiled = funcaot.compile(way(number), backend=COMPILER)
    gradients(compiled, 0)
    with pytest.raises(UnsupportedError, match="hands on something that isn't a tensor"):
        gradients(compiled, 1)


@pytest.mark.parametrize("way", [on_ctx, as_result])
def test_what_stays_the_same(way):
    """One program serves: a number is equal, an array too, and an object is one."""

    def made(x):
        x.detach().numpy()
        return {"all": [0.5, TABLE, (x.shape[0], float("nan")), None, number(torch.ones(2)), told]}

    plain = way(made)
    compiled = funcaot.compile(plain, backend=COMPILER)
    for seed in range(3):
        assert_close(gradients(compiled, seed), gradients(plain, seed))
    assert funcaot.report(compiled).cache_misses == 1
