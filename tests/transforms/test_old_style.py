"""Functions whose forward takes ctx, under every transform, against eager torch."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import functionalize, grad, jacfwd, jacrev, jvp, vmap

import funcaot
from funcaot.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64).reshape(2, 3)
T = torch.linspace(0.3, 2.0, 6, dtype=torch.float64).reshape(2, 3)


def functions(base):
    class SavesOutput(base):
        @staticmethod
        def forward(ctx, x, k):
            y = x.exp()
            ctx.save_for_backward(y)
            ctx.k = k
            return y * 1, y

        @staticmethod
        def backward(ctx, g, h):
            (y,) = ctx.saved_tensors
            return ctx.k * (g + h) * y, None

    class KeepsEverything(base):
        @staticmethod
        def forward(ctx, x, k):
            middle = x.cos()
            ctx.save_for_backward(middle, None)
            ctx.x, ctx.shape, ctx.tree = x, x.shape, {"twice": [x * 2, "text"]}
            ctx.set_materialize_grads(False)
            sign = (x > 0).long()
            ctx.mark_non_differentiable(sign)
            return x.sin() * k, sign

        @staticmethod
        def backward(ctx, g, g_sign):
            middle, nothing = ctx.saved_tensors
            assert nothing is None
            assert g_sign is None
            assert g.shape == ctx.shape
            return g * middle + ctx.tree["twice"][0] * 0 + ctx.x * 0, None

    class InPlace(base):
        @staticmethod
        def forward(ctx, x, k):
            x.mul_(k)
            ctx.mark_dirty(x)
            ctx.k = k
            return x, x.sum()

        @staticmethod
        def backward(ctx, g, g_sum):
            return 5 * ctx.k * (g + g_sum), None

    return SavesOutput, KeepsEverything, InPlace


NAMES = ("SavesOutput", "KeepsEverything", "InPlace")


def call_directly(function):
    return function.apply


def call_operator(function):
    return lambda *args: funcaot.custom_function_call(function, *args)


def total(apply):
    def run(x):
        first, second = apply(x * 1, 2.0)
        return (first.sin() + second).sum()

    return run


@pytest.fixture(params=["funcaot.Function", "custom_function_call", "install"])
def way(request):
    if request.param == "funcaot.Function":
        yield lambda k: functions(funcaot.Function)[k].apply
    elif request.param == "custom_function_call":
        yield lambda k: call_operator(functions(torch.autograd.Function)[k])
    else:
        with funcaot.install():
            yield lambda k: functions(torch.autograd.Function)[k].apply


def eager_gradient(k, x):
    leaf = x.clone().requires_grad_()
    return torch.autograd.grad(total(functions(torch.autograd.Function)[k].apply)(leaf), leaf)[0]


@pytest.mark.parametrize("k", range(3), ids=NAMES)
def test_first_derivatives(way, k):
    f = total(way(k))
    expected = eager_gradient(k, X)
    rows = torch.stack([eager_gradient(k, row) for row in X])
    pushed = (expected * T).sum()
    torch.testing.assert_close(grad(f)(X), expected)
    torch.testing.assert_close(jacrev(f)(X), expected)
    torch.testing.assert_close(jacfwd(f)(X), expected)
    torch.testing.assert_close(jvp(f, (X,), (T,))[1], pushed)
    torch.testing.assert_close(vmap(grad(f))(X), rows)
    torch.testing.assert_close(grad(lambda x: vmap(f)(x).sum())(X), rows)
    torch.testing.assert_close(functionalize(grad(f))(X), expected)
    torch.testing.assert_close(functionalize(vmap(grad(f)))(X), rows)
    torch.testing.assert_close(vmap(functionalize(grad(f)))(X), rows)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(f(forward_ad.make_dual(X, T))).tangent
    torch.testing.assert_close(dual, pushed)
    leaf = X.clone().requires_grad_()
    seeds = torch.tensor([1.0, 2.0], dtype=torch.float64)
    (batched,) = torch.autograd.grad(f(leaf), leaf, seeds, is_grads_batched=True)
    torch.testing.assert_close(batched, torch.stack([expected, 2 * expected]))


class SavesIntermediate(funcaot.Function):
    """sin, with cos saved: eager takes it for a constant in second derivatives."""

    @staticmethod
    def forward(ctx, x):
        middle = x.cos()
        ctx.save_for_backward(middle)
        ctx.x = x
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0] + 0 * ctx.x


def base_second(f, x):
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(leaf).sum(), leaf, create_graph=True)
    return torch.autograd.grad(first.sum(), leaf)[0]


SECOND = {
    "base": base_second,
    "reverse_reverse": lambda f, x: grad(lambda y: grad(lambda z: f(z).sum())(y).sum())(x),
    "forward_reverse": lambda f, x: jvp(grad(lambda z: f(z).sum()), (x,), (torch.ones_like(x),))[1],
    "reverse_forward": lambda f, x: grad(lambda y: jvp(f, (y,), (torch.ones_like(y),))[1].sum())(x),
    "vmap": lambda f, x: vmap(grad(lambda y: grad(lambda z: f(z).sum())(y).sum()))(x),
}


@pytest.mark.parametrize("name", sorted(SECOND))
def test_second_derivatives_through_an_intermediate(name):
    second = SECOND[name]
    f = SavesIntermediate.apply
    torch.testing.assert_close(second(f, X), torch.zeros_like(X))
    with funcaot.second_order("exact"):
        torch.testing.assert_close(second(f, X), -X.sin())
    with funcaot.second_order("strict"), pytest.raises(UnsupportedError, match="SavesIntermediate"):
        second(f, X)
    assert torch._C._functorch.peek_interpreter_stack() is None


def test_a_class_can_choose_for_itself():
    class Exact(SavesIntermediate):
        second_order = "exact"

    torch.testing.assert_close(SECOND["base"](Exact.apply, X), -X.sin())


def test_first_derivatives_are_fine_in_strict_mode():
    with funcaot.second_order("strict"):
        f = SavesIntermediate.apply
        torch.testing.assert_close(grad(lambda x: f(x).sum())(X), X.cos())
        torch.testing.assert_close(jvp(f, (X,), (T,))[1], X.cos() * T)


class Box:
    def __init__(self, tensor):
        self.tensor = tensor


def test_tensors_in_an_object_that_no_rule_uses():
    class Hides(funcaot.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.box = Box(x * 2)
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    found = grad(lambda x: Hides.apply(x).sum())(X)
    torch.testing.assert_close(found, torch.ones_like(X))
    torch.testing.assert_close(Hides.apply(X), X)


def test_a_graph_kept_on_ctx_is_refused():
    class Records(funcaot.Function):
        @staticmethod
        def forward(ctx, x):
            with torch.enable_grad():
                ctx.inner = x.detach().requires_grad_()
                ctx.result = ctx.inner.sin()
            return ctx.result.detach()

        @staticmethod
        def backward(ctx, g):
            return torch.autograd.grad(ctx.result, ctx.inner, g)[0]

    leaf = X.clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(Records.apply(leaf).sum(), leaf)[0], X.cos())
    with pytest.raises((UnsupportedError, RuntimeError)):
        grad(lambda x: Records.apply(x).sum())(X)


def test_own_jvp_and_vmap_of_an_old_style_function():
    class Own(funcaot.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.save_for_forward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            return 7 * g * ctx.saved_tensors[0]

        @staticmethod
        def jvp(ctx, t):
            return 5 * t * ctx.saved_tensors[0]

        @staticmethod
        def vmap(info, in_dims, x):
            return Own.apply(x) + 100, in_dims[0]

    torch.testing.assert_close(grad(lambda x: Own.apply(x).sum())(X), 7 * X)
    torch.testing.assert_close(jvp(Own.apply, (X,), (T,))[1], 5 * X * T)
    torch.testing.assert_close(vmap(Own.apply)(X), X.sin() + 100)


def test_keywords_and_defaults_of_an_old_style_function():
    class Scale(funcaot.Function):
        @staticmethod
        def forward(ctx, x, k=2.0, *, power=1):
            ctx.k, ctx.power = k, power
            return (x * k) ** power

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k

    torch.testing.assert_close(grad(lambda x: Scale.apply(x).sum())(X), torch.full_like(X, 2.0))
    torch.testing.assert_close(Scale.apply(X, power=3), (X * 2) ** 3)


class Weighted(torch.autograd.Function):
    """Its rule computes with a tangent of each input of floating point, if there is one or not."""

    materialize = True

    @staticmethod
    def forward(ctx, scale, x, places, y):
        ctx.scale = scale
        ctx.set_materialize_grads(Weighted.materialize)
        return x * scale + y[places], x + y.sum()

    @staticmethod
    def jvp(ctx, scale, x, places, y):
        assert scale is None and places is None
        if not Weighted.materialize:
            x, y = (0 if t is None else t for t in (x, y))
        return x * ctx.scale + y * 1, x + y * 1


def tangents_in_a_level(call, arguments, which):
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(arguments[which], torch.ones_like(arguments[which]))
        given = [*arguments[:which], dual, *arguments[which + 1 :]]
        return [forward_ad.unpack_dual(output).tangent for output in call(*given)]


def tangents_of_jvp(call, arguments, which):
    def one(x):
        return call(*arguments[:which], x, *arguments[which + 1 :])

    return jvp(one, (arguments[which],), (torch.ones_like(arguments[which]),))[1]


@pytest.mark.parametrize("materialize", [True, False])
@pytest.mark.parametrize("which", [1, 3])
@pytest.mark.parametrize("ask", [tangents_in_a_level, tangents_of_jvp])
def test_missing_tangents_are_zeros_as_in_eager(ask, which, materialize, monkeypatch):
    monkeypatch.setattr(Weighted, "materialize", materialize)
    arguments = (2, torch.rand(3), torch.tensor([2, 1, 0]), torch.rand(3))
    expected = tangents_in_a_level(Weighted.apply, arguments, which)
    compiled = funcaot.compile(Weighted.apply, backend="eager")
    with funcaot.install():
        found = ask(Weighted.apply, arguments, which)
    for each in (found, ask(compiled, arguments, which)):
        torch.testing.assert_close(list(each), list(expected), rtol=0, atol=0)
