"""Backwards that run autograd themselves: what eager computes, or the true derivative."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.autograd.function import once_differentiable
from torch.func import grad, jvp

import funcaot
from funcaot.errors import FuncaotError, MissingRuleError
from tests.transforms.autograd_inside import BASE, LEVELS, STYLES, Detached, V, X, cube

WAYS = ("operator", "compiled", "compiled_inside")


def mixed(call):
    """A part of the gradient is connected in any case, so that a lost part isn't an error."""
    return lambda x: (call(x) * x).sum()


def way(name, function, backend="eager"):
    if name == "operator":
        return mixed(lambda x: funcaot.custom_function_call(function, x))
    compiled = funcaot.compile(mixed(lambda x: function.apply(x)), backend=backend)
    return compiled if name == "compiled" else lambda x: compiled(x) * 1


def quietly(ask, f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # backward(create_graph=True), and the like
        return ask(f)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("function", STYLES)
def test_base_autograd_is_eager(function, how):
    f = way(how, function)
    for ask in (*BASE, *BASE):
        expected = quietly(BASE[ask], mixed(function.apply))
        found = quietly(BASE[ask], f)
        assert (found is None) == (expected is None)
        assert expected is None or torch.allclose(found, expected)


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("function", STYLES)
def test_under_transforms_it_is_the_true_derivative(function, how):
    f = way(how, function)
    # All of them for two; each of the rest adds a way to write the backward.
    asks = LEVELS if function in STYLES[:2] else ("grad_of_grad", "jvp_of_grad", "vmap_of_grad")
    for ask in asks:
        expected = LEVELS[ask](mixed(cube))
        for _ in range(2):
            assert torch.allclose(quietly(LEVELS[ask], f), expected, atol=1e-4), ask


@pytest.mark.parametrize("ask", ["hessian", "jvp", "vmap_of_grad"])
def test_on_inductor(ask):
    f = way("compiled_inside", Detached, backend="inductor")
    expected = LEVELS[ask](mixed(cube))
    for _ in range(2):
        assert torch.allclose(LEVELS[ask](f), expected)


def test_the_same_program_at_base_and_under_levels():
    compiled = funcaot.compile(mixed(Detached.apply), backend="eager")
    for _ in range(2):
        assert torch.allclose(BASE["twice"](compiled), BASE["twice"](mixed(Detached.apply)))
        for ask in ("grad_of_grad", "jvp_of_grad"):
            found = LEVELS[ask](lambda x: compiled(x) * 1)
            assert torch.allclose(found, LEVELS[ask](mixed(cube)))


class Once(Detached):
    backward = staticmethod(once_differentiable(Detached.backward))


@pytest.mark.parametrize("how", WAYS)
def test_once_differentiable_says_so(how):
    f = way(how, Once)
    assert torch.allclose(grad(f)(X), grad(mixed(cube))(X))
    with pytest.raises(RuntimeError, match="once_differentiable"):
        LEVELS["grad_of_grad"](f)
    with pytest.raises(MissingRuleError, match="once_differentiable"):
        LEVELS["jvp"](f)


class NoGradMode(Detached):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            return 3 * x * x * g


class AssignsRequiresGrad(Detached):
    """What functorch lets pass: eager has an answer under its transforms."""

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach()
        x.requires_grad = True
        with torch.enable_grad():
            y = cube(x)
        return torch.autograd.grad(y, x, g)[0]


class DetachesCotangent(Detached):
    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * x * g + x * x * g.detach()


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("function", [NoGradMode, AssignsRequiresGrad, DetachesCotangent])
def test_what_reverse_mode_doesnt_see_isnt_transposed(function, how):
    f = way(how, function)
    expected = LEVELS["grad_of_grad"](mixed(function.apply))
    assert torch.allclose(LEVELS["grad_of_grad"](f), expected)
    for ask in ("jvp", "jvp_of_grad", "hessian", "dual"):
        with pytest.raises(FuncaotError, match="doesn't see"):
            LEVELS[ask](f)


class Clips(Detached):
    """Not linear in the cotangent."""

    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = cube(x)
        return torch.autograd.grad(y, x, g)[0].clamp(-1, 1) * g


@pytest.mark.parametrize("how", WAYS)
def test_a_rule_that_isnt_linear_isnt_transposed(how):
    f = way(how, Clips)
    with pytest.raises(FuncaotError):
        jvp(f, (X,), (V,))
    with pytest.raises(FuncaotError):
        jvp(grad(f), (X,), (V,))


class ReadsNumbers(Detached):
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        return 3 * g * torch.from_numpy(x.detach().numpy() ** 2)


class Draws(Detached):
    @staticmethod
    def backward(ctx, g):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = cube(x) * torch.rand(3)
        return torch.autograd.grad(y, x, g)[0]


@pytest.mark.parametrize(
    ("function", "why"), [(ReadsNumbers, "NumPy"), (Draws, "draws random numbers")]
)
def test_what_cant_be_run_again_is_refused(function, why):
    f = way("operator", function)
    grad(f)(X)
    with pytest.raises(MissingRuleError, match=why):
        LEVELS["grad_of_grad"](f)


def test_an_error_leaves_the_thread_as_it_was():
    before = str(torch._C._dispatch_tls_local_exclude_set())
    f = way("compiled", NoGradMode)
    with pytest.raises(FuncaotError):
        LEVELS["vmap_of_hessian"](f)
    assert str(torch._C._dispatch_tls_local_exclude_set()) == before
    assert torch.allclose(LEVELS["dual"](cube), 3 * X**2 * V)


def test_a_rule_in_double_precision_has_tangents_in_single():
    class Doubles(Detached):
        @staticmethod
        def backward(ctx, g):
            return ctx.saved_tensors[0].double() ** 2 * 3 * g

    for how in WAYS:
        f = way(how, Doubles)
        found = jvp(f, (X,), (V,))[1]
        assert found.dtype is torch.float32
        assert torch.allclose(found, LEVELS["jvp"](mixed(cube)))
