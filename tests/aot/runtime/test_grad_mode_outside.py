"""Transforms called with grad mode off, or in inference mode, around them: it isn't theirs."""

import pytest
import torch
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import funcaot
from funcaot.errors import RuleError, UnsupportedError
from funcaot.testing.database.elementwise import SinExplicitVmap

X = torch.tensor([0.3, -0.4, 0.7]).double()
close = torch.testing.assert_close


def old_style(forward, backward):
    def run(ctx, x):
        ctx.save_for_backward(x)
        return forward(x)

    members = {
        "forward": staticmethod(run),
        "backward": staticmethod(lambda ctx, g: backward(*ctx.saved_tensors, g)),
    }
    return type("Old", (torch.autograd.Function,), members).apply


def ruled():
    f = funcaot.custom_vjp(torch.sin)
    f.defvjp(lambda x: (x.sin(), x), lambda x, c: (c * x.cos(),))
    return f


def pushed():
    f = funcaot.custom_jvp(torch.sin)
    f.defjvp(lambda p, t: (f(*p), t[0] * p[0].cos()))
    return f


linear = torch.nn.Linear(3, 3).double().requires_grad_(False)
FUNCTIONS = {
    "ops": torch.sin,
    "old style": old_style(torch.sin, lambda x, g: g * x.cos()),
    "new style": SinExplicitVmap.apply,
    "custom_vjp": ruled(),
    "custom_jvp": pushed(),
    "module": lambda x: functional_call(linear, {"weight": x.outer(x)}, (x,)).sin(),
    "two": lambda x: SinExplicitVmap.apply(old_style(torch.sin, lambda x, g: g * x.cos())(x) * x),
}
TRANSFORMS = {
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: vjp(f, x)[1](x),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,)),
    "jacfwd": jacfwd,
    "jacrev": jacrev,
    "hessian": lambda f: hessian(lambda x: f(x).sum()),
    "jvp of grad": lambda f: lambda x: jvp(grad(lambda x: f(x).sum()), (x,), (x,)),
    "grad of jvp": lambda f: grad(lambda x: jvp(f, (x,), (x.detach(),))[1].sum()),
    "vmap of grad": lambda f: lambda x: vmap(grad(lambda x: f(x).sum()))(torch.stack([x, 2 * x])),
    "vmap of jvp": lambda f: lambda x: vmap(lambda x: jvp(f, (x,), (x,)))(torch.stack([x, 2 * x])),
}
OUTSIDE = {"no_grad": torch.no_grad, "inference_mode": torch.inference_mode}


def called(run, x, outside):
    try:
        with outside:
            return run(x), None
    except (UnsupportedError, RuleError) as refusal:
        return None, refusal


@pytest.mark.parametrize("outside", OUTSIDE)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("place", ["inside", "around"])
def test_each(function, transform, outside, place):
    f, t = FUNCTIONS[function], TRANSFORMS[transform]
    plain = torch.sin if function not in ("module", "two") else None
    wanted = t(plain or (f if function == "module" else lambda x: (x.sin() * x).sin()))(X)
    if place == "around":
        run = funcaot.compile(t(f), backend="eager")
    else:
        run = t(funcaot.compile(f, backend="eager"))
    with OUTSIDE[outside]():
        inside = X.clone()
    for x in (X, X, X.clone().requires_grad_(), inside):
        result, refusal = called(run, x, OUTSIDE[outside]())
        if refusal is not None:
            assert place == "around"
            assert "in inference mode" in str(refusal) or transform == "grad of jvp"
            continue
        close(result, wanted, check_stride=False)
        leaves = torch.utils._pytree.tree_leaves(result)
        assert not any(leaf.requires_grad for leaf in leaves)
    close(run(X), wanted)


def test_what_a_rule_hides_is_refused():
    """With grad mode off outside, too: what the rule switched off is no derivative."""

    def partly(x, g):
        with torch.no_grad():
            hidden = g * x.cos()
        return hidden + 0 * g

    f = old_style(torch.sin, partly)
    run = funcaot.compile(lambda x: jvp(f, (x,), (x,)), backend="eager")
    with torch.no_grad(), pytest.raises(funcaot.errors.RuleError):
        run(X)
