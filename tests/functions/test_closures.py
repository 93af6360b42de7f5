"""Rules of functions that hold tensors: rule x holder x transform, against plain torch."""

import pytest
import torch
from torch.func import grad, hessian, jacrev, jvp, vjp, vmap

import funcaot
from tests.functions import closures_table
from tests.functions.closures_table import HOLDERS, RULES, function_of, value

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

W, X = torch.tensor(0.7).double(), torch.tensor(0.4).double()
WS, XS = torch.tensor([0.7, -0.3]).double(), torch.tensor([0.4, 1.1]).double()
BOTH = (0, 1)


def base(f):
    """Base autograd, twice."""
    w, x = W.clone().requires_grad_(), X.clone().requires_grad_()
    first = torch.autograd.grad(f(w, x), (w, x), create_graph=True)
    return *first, *torch.autograd.grad(first[0] * first[1], (w, x))


TRANSFORMS = {
    "grad": lambda f: grad(f, BOTH)(W, X),
    "grad by what is held": lambda f: grad(f)(W, X),
    "grad by the argument": lambda f: grad(f, 1)(W, X),
    "jvp": lambda f: jvp(f, (W, X), (X, W)),
    "jvp by what is held": lambda f: jvp(lambda w: f(w, X), (W,), (X,)),
    "vjp after its level": lambda f: vjp(f, W, X)[1](X),
    "vmap": lambda f: vmap(f)(WS, XS),
    "vmap of the argument": lambda f: vmap(f, (None, 0))(W, XS),
    "vmap of grad": lambda f: vmap(grad(f, BOTH))(WS, XS),
    "vmap of what is held, of grad": lambda f: vmap(grad(f, BOTH), (0, None))(WS, X),
    "grad of vmap": lambda f: grad(lambda w, x: vmap(f)(w, x).sum(), BOTH)(WS, XS),
    "grad of vmap of what is held": lambda f: grad(
        lambda w, x: vmap(f, (0, None))(w, x).sum(), BOTH
    )(WS, X),
    "jvp of vmap of what is held": lambda f: jvp(lambda x: vmap(f, (0, None))(WS, x), (X,), (W,)),
    "hessian": lambda f: hessian(f, BOTH)(W, X),
    "jacrev of grad by the other": lambda f: jacrev(grad(f, 1), 0)(W, X),
    "grad of vmap of grad": lambda f: grad(
        lambda w: vmap(grad(f, 1), (None, 0))(w, XS).sin().sum()
    )(W),
    "base": base,
}


BATCHES_HELD = (
    *("vmap", "vmap of grad", "vmap of what is held, of grad", "grad of vmap"),
    *("grad of vmap of what is held", "jvp of vmap of what is held"),
)


def compare(transform, f):
    expected = TRANSFORMS[transform](value)
    torch.testing.assert_close(TRANSFORMS[transform](f), expected)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_each_rule_under_each_transform(rule, transform):
    f = function_of(rule, "cell")
    if rule == "vmap_rule" and transform in BATCHES_HELD:  # such a rule is about arguments
        with pytest.raises(funcaot.errors.FuncaotError, match="closes over"):
            TRANSFORMS[transform](f)
    else:
        compare(transform, f)


class Scaled(torch.autograd.Function):
    """What rules compute that say ten times the slope by the argument."""

    generate_vmap_rule = True

    @staticmethod
    def forward(w, x):
        return value(w, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, c):
        w, x = ctx.saved_tensors
        return c * (x * torch.cos(x * w) + 2 * w * x), c * 10 * SLOPE(w, x)

    @staticmethod
    def jvp(ctx, dw, dx):
        w, x = ctx.saved_tensors
        return dw * (x * torch.cos(x * w) + 2 * w * x) + dx * 10 * SLOPE(w, x)


SLOPE = closures_table.by_x
TRUE_BY_THEMSELVES = ("residual_pullback", "vmap_rule", "checkpointed", "bound_method")


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in TRUE_BY_THEMSELVES])
def test_the_rule_is_about_the_argument(rule, monkeypatch):
    monkeypatch.setattr(closures_table, "by_x", lambda w, x: 10 * SLOPE(w, x))
    for transform in ("grad", "jvp", "grad of vmap of what is held", "vmap of grad"):
        found = TRANSFORMS[transform](function_of(rule, "cell"))
        torch.testing.assert_close(found, TRANSFORMS[transform](Scaled.apply))


@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("rule", ["jvp_rule", "vjp_closed", "residual_pullback", "checkpointed"])
def test_each_holder(rule, holder):
    for transform in ("grad", "jvp", "vmap of grad", "grad of vmap of what is held", "base"):
        compare(transform, function_of(rule, holder))


@pytest.mark.parametrize("rule", ["jvp_rule", "vjp_saved", "residual_function"])
def test_compiled(rule):
    f = funcaot.compile(function_of(rule, "cell"), backend="eager")
    compare("grad", f)
    compare("base", f)


INSIDE = {
    "grad": (lambda f: lambda w, x: grad(f, BOTH)(w, x), (W, X)),
    "grad of vmap of what is held": (
        lambda f: grad(lambda w, x: vmap(f, (0, None))(w, x).sum(), BOTH),
        (WS, X),
    ),
    "vmap of grad": (lambda f: vmap(grad(f, BOTH)), (WS, XS)),
    "jvp": (lambda f: lambda w, x: jvp(f, (w, x), (x, w)), (W, X)),
}


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_each_rule_compiled(rule):
    f = function_of(rule, "cell")
    for transform in ("grad", "jvp", "base", "grad of vmap of what is held"):
        if rule != "vmap_rule" or transform not in BATCHES_HELD:
            compare(transform, funcaot.compile(f, backend="eager"))
    for name, (transform, args) in INSIDE.items():
        if rule != "vmap_rule" or name not in BATCHES_HELD:
            compiled = funcaot.compile(transform(f), backend="eager")
            torch.testing.assert_close(compiled(*args), transform(value)(*args))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["jvp_rule", "residual_pullback"])
def test_on_the_default_backend(rule):
    f = funcaot.compile(function_of(rule, "cell"))
    compare("grad", f)
    compare("base", f)


@pytest.mark.slow
@pytest.mark.parametrize("holder", HOLDERS)
def test_each_holder_compiled(holder):
    for rule in ("jvp_rule", "vjp_closed"):
        compare("grad", funcaot.compile(function_of(rule, holder), backend="eager"))
