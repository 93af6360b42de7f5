"""custom_vjp and custom_jvp on pytrees, against plain torch."""

from __future__ import annotations

import pytest
import torch
from torch.func import functionalize, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import funcaot

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")


def pair():
    return {"a": torch.tensor([0.3, 0.7], dtype=torch.float64), "b": [torch.tensor(1.5).double()]}


def plain(tree, power):
    return {"out": tree["a"].sin() * tree["b"][0] ** power, "sum": tree["a"].sum()}


def make_vjp(factor=1.0):
    @funcaot.custom_vjp
    def f(tree, power):
        return plain(tree, power)

    def fwd(tree, power):
        return f(tree, power), {"cos": tree["a"].cos(), "tree": tree, "power": power}

    def bwd(res, ct):
        a, b, n = res["tree"]["a"], res["tree"]["b"][0], res["power"]
        ga = ct["out"] * res["cos"] * b**n + ct["sum"]
        gb = (ct["out"] * a.sin() * n * b ** (n - 1)).sum()
        return {"a": factor * ga, "b": [factor * gb]}, None

    f.defvjp(fwd, bwd)
    return f


def make_jvp(factor=1.0):
    @funcaot.custom_jvp
    def f(tree, power):
        return plain(tree, power)

    @f.defjvp
    def rule(primals, tangents):
        (tree, n), (dot, _) = primals, tangents
        a, b, da, db = tree["a"], tree["b"][0], dot["a"], dot["b"][0]
        tangent = a.cos() * da * b**n + a.sin() * n * b ** (n - 1) * db
        return f(tree, n), {"out": factor * tangent, "sum": factor * da.sum()}

    return f


def scalar(f):
    def total(tree):
        out = f(tree, 3)
        return (out["out"] * torch.tensor([1.0, -2.0]).double()).sum() + out["sum"].sin()

    return total


def batch():
    tree = pair()
    return torch.utils._pytree.tree_map(lambda x: torch.stack([x, 2 * x, x - 0.1]), tree)


def close(actual, expected):
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("make", [make_vjp, make_jvp], ids=["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize(
    "transform",
    [
        grad,
        lambda f: vmap(grad(f)),
        lambda f: grad(lambda t: vmap(f)(t).sum()),
        jacfwd,
        hessian,
        lambda f: jacrev(jacrev(f)),
        lambda f: jacfwd(jacfwd(f)),
        lambda f: vmap(hessian(f)),
        lambda f: functionalize(grad(f)),
        lambda f: lambda t: jvp(grad(f), (t,), (t,)),
        lambda f: lambda t: grad(lambda u: jvp(f, (u,), (t,))[1])(t),
    ],
    ids=[
        "grad",
        "vmap_grad",
        "grad_vmap",
        "jacfwd",
        "hessian",
        "jacrev2",
        "jacfwd2",
        "vmap_hessian",
        "functionalize_grad",
        "jvp_grad",
        "grad_jvp",
    ],
)
def test_equals_plain_function(make, transform, request):
    value = batch() if "vmap" in request.node.callspec.id else pair()
    close(transform(scalar(make()))(value), transform(scalar(plain))(value))


@pytest.mark.parametrize("make", [make_vjp, make_jvp])
def test_the_rule_is_the_users(make):
    f = make(factor=7.0)
    expected = torch.utils._pytree.tree_map(lambda g: 7 * g, grad(scalar(plain))(pair()))
    close(grad(scalar(f))(pair()), expected)
    close(jacfwd(scalar(f))(pair()), expected)


@pytest.mark.parametrize("make", [make_vjp, make_jvp])
def test_base_autograd_to_second_order(make):
    def second(f):
        a = pair()["a"].requires_grad_()
        b = pair()["b"][0].requires_grad_()
        total = scalar(f)({"a": a, "b": [b]})
        first = torch.autograd.grad(total, (a, b), create_graph=True)
        return torch.autograd.grad(first[0].sin().sum() + first[1] ** 2, (a, b))

    close(second(make()), second(plain))


def test_nondiff_argnums_come_first():
    apply = funcaot.custom_vjp(lambda function, x: function(x), nondiff_argnums=(0,))
    seen = []

    def bwd(function, x, ct):
        seen.append(function)
        return (2 * ct * x,)

    apply.defvjp(lambda function, x: (function(x), x), bwd)
    x = torch.tensor(3.0)
    assert grad(lambda x: apply(torch.square, x))(x) == 6
    assert seen == [torch.square]


def test_custom_jvp_nondiff_argnums_and_kwargs():
    f = funcaot.custom_jvp(lambda n, x=None: x**n, nondiff_argnums=(0,))

    @f.defjvp
    def rule(n, primals, tangents):
        return primals[0] ** n, n * primals[0] ** (n - 1) * tangents[0]

    assert grad(lambda x: f(3, x=x))(torch.tensor(2.0)) == 12


def test_defjvps():
    f = funcaot.custom_jvp(lambda x, y: x * y)
    f.defjvps(lambda t, out, x, y: t * y, lambda t, out, x, y: 5 * t * x)
    x, y = torch.tensor(2.0), torch.tensor(3.0)
    assert grad(f, argnums=(0, 1))(x, y) == (3, 10)


def test_without_a_derivative_the_function_itself_runs():
    calls = []

    @funcaot.custom_vjp
    def f(x):
        calls.append("f")
        return x * 2

    f.defvjp(lambda x: (calls.append("fwd"), (x * 2, None))[1], lambda res, ct: (2 * ct,))
    f(torch.ones(2))
    vmap(f)(torch.ones(2))
    assert calls == ["f", "f"]
    grad(lambda x: f(x).sum())(torch.ones(2))
    assert calls[-1] == "fwd"


def test_clipped_gradient_raises_in_forward_mode_and_can_be_allowed():
    def define(**options):
        f = funcaot.custom_vjp(lambda x: x * 1.0, **options)
        f.defvjp(lambda x: (x * 1.0, None), lambda res, ct: (ct.clamp(-1, 1),))
        return f

    x, t = torch.ones(3), torch.full((3,), 0.5)
    with pytest.raises(funcaot.errors.RuleError, match="linear"):
        jvp(define(), (x,), (t,))
    close(jvp(define(allow_nonlinear_rule=True), (x,), (t,))[1], t)


def test_linear_vjp_of_the_pushforward():
    f = make_vjp()
    tree = pair()
    out, pull = vjp(lambda t: jvp(lambda u: f(u, 3), (t,), (pair(),))[1], tree)
    ref, ref_pull = vjp(lambda t: jvp(lambda u: plain(u, 3), (t,), (pair(),))[1], tree)
    close(out, ref)
    close(pull(ref), ref_pull(ref))
