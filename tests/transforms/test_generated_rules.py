"""Rules made from one another: exact where they should be, refused where they can't be."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

import funcaot
from funcaot import Function
from funcaot.errors import MissingRuleError, RuleError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64).reshape(2, 3)
T = torch.linspace(0.3, 2.0, 6, dtype=torch.float64).reshape(2, 3)


def define(backward=None, jvp=None, forward=torch.sin, **flags):
    """A Function of one tensor that saves its input."""

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    namespace = {
        "forward": staticmethod(lambda x: forward(x)),
        "setup_context": staticmethod(setup_context),
        "generate_vmap_rule": True,
        **flags,
    }
    if backward is not None:
        namespace["backward"] = staticmethod(backward)
    if jvp is not None:
        namespace["jvp"] = staticmethod(jvp)
    return type("Defined", (Function,), namespace)


class Gather(Function):
    """Several inputs and outputs, a gradient that autograd sums to the input's shape."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x, weight, scale):
        return x * weight, (x * scale).sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.scale = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx, g_product, g_sum):
        x, weight = ctx.saved_tensors
        return g_product * weight + g_sum.unsqueeze(-1) * ctx.scale, g_product * x, None


class GatherFromJvp(Function):
    generate_vmap_rule = True
    generate_backward_rule = True
    forward = staticmethod(Gather.forward)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, weight, ctx.scale = inputs
        ctx.save_for_forward(x, weight)

    @staticmethod
    def jvp(ctx, x_dot, weight_dot, _):
        x, weight = ctx.saved_tensors
        return x_dot * weight + x * weight_dot, (x_dot * ctx.scale).sum(-1)


def total(gather):
    def run(x, weight):
        product, sums = gather(x, weight, 3.0)
        return (product.sin() * sums.unsqueeze(-1)).sum()

    return run


COMPOSITIONS = {
    "grad": lambda h: grad(h, (0, 1)),
    "jvp": lambda h: lambda x, w: jvp(h, (x, w), (T, w)),
    "jacfwd": lambda h: jacfwd(h, (0, 1)),
    "hessian": lambda h: jacfwd(jacrev(h, (0, 1)), (0, 1)),
    "reverse_over_forward": lambda h: jacrev(jacfwd(h, (0, 1)), (0, 1)),
    "forward_over_forward": lambda h: jacfwd(jacfwd(h, (0, 1)), (0, 1)),
    "vmap_hessian": lambda h: vmap(jacfwd(jacrev(h, (0, 1)), (0, 1)), in_dims=(0, None)),
    "jvp_vmap": lambda h: (
        lambda x, w: jvp(lambda x, w: vmap(h, in_dims=(0, None))(x, w), (x, w), (T, w))
    ),
}


@pytest.mark.parametrize("name", sorted(COMPOSITIONS))
@pytest.mark.parametrize("function", [Gather, GatherFromJvp], ids=lambda f: f.__name__)
def test_against_plain_operations(function, name):
    weight = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    transform = COMPOSITIONS[name]
    expected = transform(total(Gather.forward))(X, weight)
    torch.testing.assert_close(transform(total(function.apply))(X, weight), expected)


def seven(ctx, g):
    return 7 * g * ctx.saved_tensors[0]


@pytest.mark.parametrize("kind", ["backward", "jvp"])
def test_an_odd_rule_is_generated_as_it_is(kind):
    function = define(**{kind: seven}, generate_jvp_rule=True, generate_backward_rule=True)
    torch.testing.assert_close(jvp(function.apply, (X,), (T,))[1], 7 * T * X)
    torch.testing.assert_close(vjp(function.apply, X)[1](T)[0], 7 * T * X)
    torch.testing.assert_close(vmap(jacfwd(function.apply))(X).diagonal(0, 1, 2), 7 * X)


NONLINEAR = {
    "clipped": lambda ctx, g: g.clamp(-1, 1),
    "normalised": lambda ctx, g: g / (g.norm() + 1e-12),
    "affine": lambda ctx, g: g + 1,
    "absolute": lambda ctx, g: g.abs(),
    "branching": lambda ctx, g: g if g.sum() > 0 else 2 * g,
    "numpy": lambda ctx, g: torch.from_numpy(g.detach().numpy() * 2),
    "detached": lambda ctx, g: g.detach() * 2,
}


@pytest.mark.parametrize("name", sorted(NONLINEAR))
def test_a_rule_that_cannot_be_transposed_raises(name):
    function = define(backward=NONLINEAR[name], generate_jvp_rule=True)
    with pytest.raises((RuleError, RuntimeError)) as caught:
        jvp(function.apply, (X,), (T,))
    if name in ("clipped", "affine", "absolute", "detached"):
        assert isinstance(caught.value, RuleError)
        assert "Defined" in str(caught.value)
        assert "allow_nonlinear_rule" in str(caught.value)
    assert torch._C._functorch.peek_interpreter_stack() is None


@pytest.mark.parametrize("name", ["clipped", "affine", "absolute", "detached"])
def test_the_same_for_a_jvp(name):
    function = define(jvp=NONLINEAR[name], generate_backward_rule=True)
    with pytest.raises(RuleError):
        grad(lambda x: function.apply(x).sum())(X)
    leaf = X.clone().requires_grad_()
    with pytest.raises(RuleError):
        torch.autograd.grad(function.apply(leaf).sum(), leaf)


def test_the_check_can_be_switched_off():
    function = define(
        backward=NONLINEAR["clipped"], generate_jvp_rule=True, allow_nonlinear_rule=True
    )
    torch.testing.assert_close(jvp(function.apply, (X,), (T,))[1], T)


def test_the_check_works_per_example_and_runs_once():
    calls = []

    def backward(ctx, g):
        calls.append(1)
        return g * ctx.saved_tensors[0]

    function = define(backward=backward, generate_jvp_rule=True)
    run = vmap(lambda x, t: jvp(function.apply, (x,), (t,))[1])
    torch.testing.assert_close(run(X, T), X * T)
    first, calls[:] = len(calls), []
    run(X, T)
    assert first > len(calls) == 1
    clipped = define(backward=NONLINEAR["clipped"], generate_jvp_rule=True)
    with pytest.raises(RuleError):
        vmap(lambda x, t: jvp(clipped.apply, (x,), (t,))[1])(X, T)


def test_the_check_draws_no_random_numbers():
    function = define(backward=lambda ctx, g: g * 2, generate_jvp_rule=True)
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    jvp(function.apply, (X,), (T,))
    torch.testing.assert_close(torch.rand(3), expected)


def test_missing_rules_without_flags():
    with pytest.raises(MissingRuleError, match="generate_jvp_rule"):
        jvp(define(backward=seven).apply, (X,), (T,))
    with pytest.raises(MissingRuleError, match="generate_backward_rule"):
        grad(lambda x: define(jvp=seven).apply(x).sum())(X)


def test_a_class_that_does_not_know_funcaot_gets_every_rule():
    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            return 7 * g * ctx.saved_tensors[0]

    def call(x):
        return funcaot.custom_function_call(Plain, x)

    torch.testing.assert_close(vmap(lambda x, t: jvp(call, (x,), (t,))[1])(X, T), 7 * X * T)

    class Refuses(Plain):
        generate_jvp_rule = False

    with pytest.raises(MissingRuleError):
        jvp(lambda x: funcaot.custom_function_call(Refuses, x), (X,), (T,))


def test_tensors_kept_as_attributes_of_ctx_under_vmap():
    class Stash(Function):
        generate_vmap_rule = True
        generate_jvp_rule = True

        @staticmethod
        def forward(x):
            return x.sin()

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.kept = {"cos": [inputs[0].cos()], "name": "kept"}

        @staticmethod
        def backward(ctx, g):
            assert ctx.kept["name"] == "kept"
            return g * ctx.kept["cos"][0]

    torch.testing.assert_close(vmap(grad(lambda x: Stash.apply(x).sum()))(X), X.cos())
    torch.testing.assert_close(vmap(vmap(grad(Stash.apply)))(X), X.cos())
    torch.testing.assert_close(grad(lambda x: vmap(Stash.apply)(x).sum())(X), X.cos())
    torch.testing.assert_close(vmap(lambda x: jvp(Stash.apply, (x,), (x,))[1])(X), X.cos() * X)


class SharedAndOwn(Function):
    """Its first output doesn't depend on the batch, its second does."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, t):
        return x.sin(), x * t

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g_shared, g_own):
        x, t = ctx.saved_tensors
        return g_shared * x.cos() + g_own * t, g_own * x


@pytest.mark.parametrize("operator", [torch.add, torch.mul])
def test_the_cotangent_of_an_output_that_a_batch_shares_counts_once(operator):
    def total(function):
        def run(x):
            return vmap(lambda t: operator(*function(x, t)))(T).sum()

        return run

    x = X[0]
    expected = grad(total(lambda x, t: (x.sin(), x * t)))(x)
    torch.testing.assert_close(grad(total(SharedAndOwn.apply))(x), expected)
    leaf = x.clone().requires_grad_()
    total(SharedAndOwn.apply)(leaf).backward()
    torch.testing.assert_close(leaf.grad, expected)


def test_a_function_with_a_forward_rule_only_is_vmapped_twice():
    function = define(jvp=lambda ctx, tangent: tangent * ctx.saved_tensors[0].cos())
    torch.testing.assert_close(vmap(vmap(function.apply))(X), X.sin())
    with pytest.raises(MissingRuleError, match="Defined"):
        vmap(vmap(grad(function.apply)))(X)
