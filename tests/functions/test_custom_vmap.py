"""Functions with a batching rule, under every order of transforms, against the same without one."""

import pytest
import torch
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import funcaot
from funcaot.errors import RuleError, UnsupportedError

W = torch.tensor([0.3, -0.4]).double()
X = torch.tensor([[0.1, 0.2], [0.5, 0.7], [0.9, -0.3]]).double()
close = torch.testing.assert_close
WRAPPED = pytest.mark.parametrize(
    "wrap", [lambda f: f, lambda f: funcaot.compile(f, backend="eager")], ids=["plain", "compiled"]
)


def product(w, x):
    return (w * x).sin()


def sums(w, x):
    """One output for each example, one for all if the second isn't batched, and a number."""
    return {"dot": w @ x.exp(), "x": x * 2}, 3


def product_rule(size, in_batched, w, x):
    return product(w, x), any(in_batched)


def sums_rule(size, in_batched, w, x):
    w = w if in_batched[0] else w.expand(size, -1)
    dot = (w * x.exp()).sum(-1)
    return ({"dot": dot, "x": x * 2}, 3), ({"dot": True, "x": in_batched[1]}, False)


def total(output):
    leaves = torch.utils._pytree.tree_leaves(output)
    return sum(leaf.sum() for leaf in leaves if isinstance(leaf, torch.Tensor))


def ruled(function, rule):
    f = funcaot.custom_vmap(function)
    f.def_vmap(rule)
    return f


FUNCTIONS = {"product": (product, product_rule), "sums": (sums, sums_rule)}

TRANSFORMS = {
    "vmap": lambda f: lambda w, x: vmap(f)(x, x),
    "vmap, x only": lambda f: lambda w, x: vmap(f, (None, 0))(w, x),
    "vmap, w only": lambda f: lambda w, x: vmap(f, (0, None))(x, w),
    "vmap vmap": lambda f: lambda w, x: vmap(vmap(f, (None, 0)), (0, None))(x, x),
    "grad": lambda f: lambda w, x: grad(f, (0, 1))(w, x[0]),
    "vmap grad": lambda f: lambda w, x: vmap(grad(f, (0, 1)))(x, x),
    "vmap grad w": lambda f: lambda w, x: vmap(grad(f), (None, 0))(w, x),
    "vmap grad x": lambda f: lambda w, x: vmap(grad(f, 1), (None, 0))(w, x),
    "grad vmap": lambda f: grad(lambda w, x: vmap(f, (None, 0))(w, x).sum(), (0, 1)),
    "hessian": lambda f: lambda w, x: hessian(f, (0, 1))(w, x[0]),
    "jacrev grad": lambda f: lambda w, x: jacrev(grad(f, (0, 1)), (0, 1))(w, x[0]),
    "jacfwd jacfwd": lambda f: lambda w, x: jacfwd(jacfwd(f, 1))(w, x[0]),
    "vmap hessian": lambda f: lambda w, x: vmap(hessian(f, (0, 1)), (None, 0))(w, x),
    "hessian vmap": lambda f: hessian(lambda w, x: vmap(f, (None, 0))(w, x).sum(), (0, 1)),
    "jvp": lambda f: lambda w, x: jvp(f, (w, x[0]), (w, x[1])),
    "vmap jvp": lambda f: lambda w, x: vmap(lambda x, t: jvp(f, (w, x), (t, t)))(x, x),
    "vmap jvp, tangents": lambda f: lambda w, x: vmap(lambda t: jvp(f, (w, x[0]), (w, t)))(x),
    "vmap jvp, primals": lambda f: lambda w, x: vmap(lambda x: jvp(f, (w, x), (w, w)))(x),
    "third": lambda f: lambda w, x: jacfwd(hessian(f, 1), 1)(w, x[0]),
    "vjp, batched cotangents": lambda f: lambda w, x: vmap(vjp(f, w, x[0])[1])(x[:, 0]),
}


@WRAPPED
@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_each_transform(function, transform, wrap):
    plain, rule = FUNCTIONS[function]
    f = ruled(plain, rule)
    result = wrap(transform(lambda w, x: total(f(w, x))))(W, X)
    close(result, transform(lambda w, x: total(plain(w, x)))(W, X))


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_each_transform_of_a_compiled_function(transform):
    f = ruled(product, product_rule)
    compiled = funcaot.compile(lambda w, x: f(w, x).sum(), backend="eager")
    close(transform(compiled)(W, X), transform(lambda w, x: product(w, x).sum())(W, X))


HELD = {
    "w batched": lambda f: lambda w, x: vmap(f, (0, None))(x, w),
    "both batched": lambda f: lambda w, x: vmap(f)(x, x),
    "gradient for each example": lambda f: lambda w, x: vmap(grad(f), (None, 0))(w, x),
    "tangent for each example": lambda f: (
        lambda w, x: vmap(lambda t, x: jvp(lambda w: f(w, x), (w,), (t,)))(x, x)
    ),
    "one gradient": lambda f: grad(lambda w, x: vmap(f, (None, 0))(w, x).sum()),
    "one tangent": lambda f: lambda w, x: vmap(lambda x: jvp(lambda w: f(w, x), (w,), (w,)))(x),
    "tangents alone": lambda f: (
        lambda w, x: vmap(lambda t: jvp(lambda w: f(w, x[0]), (w,), (t,)))(x)
    ),
    "gradients by x": lambda f: lambda w, x: vmap(grad(f, 1), (None, 0))(w, x),
    "by both, one example": lambda f: lambda w, x: hessian(f, (0, 1))(w, x[0]),
}


def holding(w, x):
    f = funcaot.custom_vmap(lambda x: product(w, x))
    f.def_vmap(lambda size, in_batched, x: (product(w, x), True))
    return f(x).sum()


@WRAPPED
@pytest.mark.parametrize("transform", HELD)
def test_a_tensor_that_it_closes_over(transform, wrap):
    run = HELD[transform]
    wanted = run(lambda w, x: product(w, x).sum())(W, X)
    if "batched" in transform or "for each example" in transform:
        with pytest.raises(UnsupportedError, match=r"closes over a tensor.*: w"):
            wrap(run(holding))(W, X)
    else:
        close(wrap(run(holding))(W, X), wanted)


@WRAPPED
def test_the_derivative_is_that_of_the_rule(wrap):
    f = funcaot.custom_vmap(torch.sin)
    f.def_vmap(lambda size, in_batched, x: (x.cos(), in_batched[0]))
    close(wrap(vmap(grad(f)))(W), -W.sin())
    close(wrap(grad(lambda x: vmap(f)(x).sum()))(W), -W.sin())
    close(wrap(vmap(hessian(f)))(W), -W.cos())
    close(wrap(jvp)(vmap(f), (W,), (W,)), (W.cos(), -W.sin() * W))
    close(wrap(vmap(lambda x: jvp(f, (x,), (x,))))(W), (W.cos(), -W.sin() * W))


@pytest.mark.parametrize(
    "returned",
    [lambda x: x, lambda x: (x, [True]), lambda x: (x, True, 0)],
    ids=["no flags", "other structure", "three"],
)
def test_a_rule_that_returns_something_else_is_an_error(returned):
    f = ruled(torch.sin, lambda size, in_batched, x: returned(x.sin()))
    with pytest.raises(RuleError, match="the vmap rule of sin"):
        vmap(f)(torch.ones(3))


def test_sequential():
    runs = []

    @funcaot.sequential_vmap
    def f(w, x):
        runs.append(x.shape)
        return product(w, x)

    close(vmap(f, (None, 0))(W, X), product(W, X))
    assert runs == [(2,)] * 3
    close(vmap(jacrev(f, 1), (None, 0))(W, X), vmap(jacrev(product, 1), (None, 0))(W, X))
    with pytest.raises(RuleError, match="empty batch"):
        vmap(f, (None, 0))(W, X[:0])
