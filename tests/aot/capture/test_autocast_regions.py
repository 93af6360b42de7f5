"""Regions that autocast, and that don't, around and inside of compiled functions and Functions."""

import contextlib
import itertools

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import funcaot


def bf16():
    return torch.autocast("cpu", torch.bfloat16)


def off():
    return torch.autocast("cpu", enabled=False)


def product(ctx, x, w):
    ctx.save_for_backward(x, w)
    return x @ w


class Plain(torch.autograd.Function):
    forward = staticmethod(product)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return (grad.to(w.dtype) @ w.t()).to(x.dtype), (x.t() @ grad.to(x.dtype)).to(w.dtype)


class InSinglePrecision(torch.autograd.Function):
    forward = staticmethod(
        torch.amp.custom_fwd(product, device_type="cpu", cast_inputs=torch.float32)
    )

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad @ w.t(), x.t() @ grad


class WithStates(torch.autograd.Function):
    forward = staticmethod(torch.amp.custom_fwd(product, device_type="cpu"))

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return (grad @ w.t()).to(x.dtype), (x.t() @ grad).to(w.dtype)


class Opaque(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        product = x @ w
        return product * float(np.sign(product.float().sum().item()) ** 2)

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return grad.float() @ w.t(), x.t() @ grad.float()


APPLIED = {
    "an op": lambda x, w: x @ w,
    "a narrow operand": lambda x, w: x.bfloat16().float() @ w,
    "a product and a sum": lambda x, w: x @ w + w,
    "a layer": lambda x, w: torch.nn.functional.linear(x, w, w[0]),
    "a Function": Plain.apply,
    "a Function in single precision": InSinglePrecision.apply,
    "a Function with the states": WithStates.apply,
    "an opaque Function": Opaque.apply,
    "softmax of a product": lambda x, w: (x @ w).softmax(-1) @ w.to(x.dtype),
}
REGIONS = {
    "none": contextlib.nullcontext,
    "off": off,
    "bfloat16": bf16,
}


def program(apply, region, inner):
    def function(x, w):
        h = x * 2
        with REGIONS[region]():
            first = apply(h, w)
            with REGIONS[inner]():
                second = apply(first.float() + h, w)
        return first, second.float(), (second.float() @ w).sum()

    return function


def outcome(function, outside, backward_inside):
    torch.manual_seed(0)
    x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    try:
        with REGIONS[outside]():
            results = function(x, w)
            if backward_inside:
                grads = torch.autograd.grad(sum(r.float().sum() for r in results), [x, w])
        if not backward_inside:
            grads = torch.autograd.grad(sum(r.float().sum() for r in results), [x, w])
    except RuntimeError as error:
        return type(error).__name__
    return [*results, *grads]


CASES = list(itertools.product(["none", "bfloat16"], REGIONS, REGIONS, [False, True]))


def check(applied, backend, cases):
    for outside, region, inner, inside in cases:
        function = program(APPLIED[applied], region, inner)
        expected = outcome(function, outside, inside)
        compiled = funcaot.compile(function, backend=backend)
        for _ in range(2):
            found = outcome(compiled, outside, inside)
            said = f"{outside} outside, {region}, {inner}, backward inside: {inside}"
            assert type(found) is type(expected), f"{said}: {found} {expected}"
            if isinstance(expected, list):
                rounding = 2e-2 if "bfloat16" in (outside, region, inner) else 1e-5
                assert_close(
                    found, expected, rtol=rounding, atol=rounding, msg=lambda t, s=said: f"{s}: {t}"
                )


@pytest.mark.parametrize("applied", APPLIED)
def test_as_in_eager(applied):
    first = list(APPLIED).index(applied) % 5
    check(applied, "eager", CASES[first::5])


@pytest.mark.slow
@pytest.mark.parametrize("applied", APPLIED)
def test_every_region(applied):
    check(applied, "eager", CASES)


@pytest.mark.parametrize("applied", ["an op", "a Function", "a Function in single precision"])
def test_on_inductor(applied):
    check(
        applied, "inductor", [("bfloat16", "off", "none", False), ("bfloat16", "none", "off", True)]
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("applied", APPLIED)
def test_every_region_on_inductor(applied):
    check(applied, "inductor", CASES)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_single_precision_stays_exact(backend):
    """Rounding to bfloat16 would show: the tolerance is that of single precision."""
    weight = torch.randn(8, 8)

    def function(x):
        with off():
            return torch.nn.functional.linear(x.float(), weight, weight[0]).sin() @ weight

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        x = torch.randn(2, 8).bfloat16().requires_grad_()
        with bf16():
            expected, found = function(x), compiled(x)
        assert_close(found, expected)
        grads = [torch.autograd.grad(y.sum(), x)[0] for y in (expected, found)]
        assert_close(*grads)
