"""Misuses, one per row: each message says who, what was expected, what came and what to do."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch.func import functionalize, grad, jvp, vmap

import funcaot
from funcaot import Function
from funcaot.errors import FuncaotError

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64).reshape(2, 3)


def define(**members):
    """A Function called Mine, of one or more tensors, the first of which is multiplied by two."""

    def forward(x, *rest):
        return x * 2

    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    namespace = {"forward": forward, "setup_context": setup_context, **members}
    methods = {k: staticmethod(v) if callable(v) else v for k, v in namespace.items()}
    return type("Mine", (Function,), methods)


def base(function, *rest):
    leaf = X.clone().requires_grad_()
    return function.apply(leaf, *rest).sum().backward()


def under_grad(function, *rest):
    return grad(lambda x: function.apply(x, *rest).sum())(X)


def under_vmap(function, *rest):
    return vmap(lambda x: function.apply(x, *rest))(X)


def under_vmap_of_grad(function, *rest):
    return vmap(grad(lambda x: function.apply(x, *rest).sum()))(X)


def under_jvp(function, *rest):
    return jvp(lambda x: function.apply(x, *rest), (X,), (X,))


def under_vmap_of_jvp(function):
    return vmap(lambda x: jvp(function.apply, (x,), (x,)))(X)


def with_duals(function):
    with forward_ad.dual_level():
        return function.apply(forward_ad.make_dual(X, X))


def keyword_tensor(x, *, weight):
    return x * weight


def clash(ctx, inputs, output):
    ctx._funcaot_shapes = "mine"


def vmapped_clash(ctx, inputs, output):
    ctx.saved_tensors = inputs


def marks_a_stranger(ctx, inputs, output):
    ctx.mark_dirty(output * 2)


class Mine(Function):
    """Old style; also what's passed where a class or a call is expected."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return g


class SavesIntermediate(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.cos())
        return x.sin()

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0]


SavesIntermediate.__name__ = "Mine"


def second_derivative(mode):
    with funcaot.second_order(mode):
        grad(lambda y: grad(lambda x: SavesIntermediate.apply(x).sum())(y).sum())(X)


def own_mode():
    function = type("Mine", (SavesIntermediate,), {"second_order": "sometimes"})
    under_grad(function)


def custom_vjp(fwd=None, bwd=None):
    def mine(x, y):
        return x * y

    mine.__name__ = "Mine"
    wrapped = funcaot.custom_vjp(mine)
    if fwd is not None:
        wrapped.defvjp(fwd, bwd)
    return grad(lambda x: wrapped(x, x).sum())(X)


def custom_jvp(rule=None):
    def mine(x, y):
        return x * y

    mine.__name__ = "Mine"
    wrapped = funcaot.custom_jvp(mine)
    if rule is not None:
        wrapped.defjvp(rule)
    return jvp(lambda x: wrapped(x, x), (X,), (X,))


def instance():
    with pytest.warns(DeprecationWarning, match="instantiated"):
        return Mine()


def fwd(x, y):
    return x * y, None


def two(ctx, g):
    return g, g


def number(ctx, g):
    return 1.0


def listed(ctx, g):
    return [g]


def narrow(ctx, g):
    return g.sum(-1)


def rule(g):
    return lambda ctx, *_: g


MISUSES = {
    # backward
    "two gradients for one input, base": (lambda: base(define(backward=two)), "backward"),
    "two gradients, grad": (lambda: under_grad(define(backward=two)), "reverse mode"),
    "two gradients, vmap of grad": (
        lambda: under_vmap_of_grad(define(backward=two, generate_vmap_rule=True)),
        "reverse mode",
    ),
    "one gradient for two inputs": (
        lambda: under_grad(define(backward=lambda ctx, g: g), X),
        "reverse mode",
    ),
    "a number as gradient": (lambda: under_grad(define(backward=number)), "reverse mode"),
    "a number as gradient, base": (lambda: base(define(backward=number)), "reverse mode"),
    "a list of gradients": (lambda: under_grad(define(backward=listed)), "reverse mode"),
    "a gradient of the wrong shape": (lambda: under_grad(define(backward=narrow)), "reverse mode"),
    "a gradient of the wrong shape, base": (lambda: base(define(backward=narrow)), "reverse mode"),
    "a gradient of the wrong shape, vmap": (
        lambda: under_vmap_of_grad(define(backward=narrow, generate_vmap_rule=True)),
        "reverse mode",
    ),
    "backward and vjp": (
        lambda: under_grad(define(backward=lambda ctx, g: g, vjp=lambda ctx, g: g)),
        "reverse mode",
    ),
    "no backward, grad": (lambda: under_grad(define(jvp=lambda ctx, t: t)), "reverse mode"),
    "no backward, base": (lambda: base(define()), "reverse mode"),
    # jvp
    "two tangents for one output": (lambda: under_jvp(define(jvp=two)), "forward mode"),
    "two tangents, vmap": (
        lambda: under_vmap_of_jvp(define(jvp=two, generate_vmap_rule=True)),
        "forward mode",
    ),
    "a number as tangent": (lambda: under_jvp(define(jvp=number)), "forward mode"),
    "a tangent of the wrong shape": (lambda: under_jvp(define(jvp=narrow)), "forward mode"),
    "a tangent of the wrong shape, dual": (lambda: with_duals(define(jvp=narrow)), "forward mode"),
    "no jvp, jvp": (lambda: under_jvp(define(backward=lambda ctx, g: g)), "forward mode"),
    "no jvp, dual": (lambda: with_duals(define(backward=lambda ctx, g: g)), "forward mode"),
    # generated rules
    "a backward that isn't linear": (
        lambda: under_jvp(define(backward=lambda ctx, g: g.clamp(0, 1), generate_jvp_rule=True)),
        "transposing",
    ),
    "a jvp that isn't linear": (
        lambda: under_grad(define(jvp=lambda ctx, t: t + 1, generate_backward_rule=True)),
        "transposing",
    ),
    "a jvp made from a once_differentiable backward": (
        lambda: under_jvp(
            define(
                backward=torch.autograd.function.once_differentiable(lambda ctx, g: g),
                generate_jvp_rule=True,
            )
        ),
        "forward mode",
    ),
    # vmap
    "no vmap": (lambda: under_vmap(define()), "vmap"),
    "vmap and generate_vmap_rule": (
        lambda: under_vmap(define(vmap=lambda info, dims, x: (x, 0), generate_vmap_rule=True)),
        "vmap",
    ),
    "vmap returns one value": (lambda: under_vmap(define(vmap=lambda info, dims, x: x)), "vmap"),
    "vmap returns three values": (
        lambda: under_vmap(define(vmap=lambda info, dims, x: (x, 0, 0))),
        "vmap",
    ),
    "out_dims of another structure": (
        lambda: under_vmap(define(vmap=lambda info, dims, x: (x, (0, 0)))),
        "vmap",
    ),
    "an out_dim that doesn't exist": (
        lambda: under_vmap(define(vmap=lambda info, dims, x: (x, 5))),
        "vmap",
    ),
    "an out_dim of another size": (
        lambda: under_vmap(define(vmap=lambda info, dims, x: (x, 1))),
        "vmap",
    ),
    "an out_dim that is no integer": (
        lambda: under_vmap(define(vmap=lambda info, dims, x: (x, "first"))),
        "vmap",
    ),
    # ctx
    "a ctx attribute of ours": (
        lambda: under_grad(define(setup_context=clash, backward=lambda ctx, g: g)),
        "setup_context",
    ),
    "a ctx attribute that is a method": (
        lambda: under_vmap(define(setup_context=vmapped_clash, generate_vmap_rule=True)),
        "setup_context",
    ),
    "mark_dirty of what is no input": (
        lambda: under_vmap(define(setup_context=marks_a_stranger, generate_vmap_rule=True)),
        "vmap",
    ),
    # the call
    "a keyword-only tensor": (
        lambda: vmap(lambda x: define(forward=keyword_tensor).apply(x, weight=x))(X),
        "apply",
    ),
    "an unknown keyword": (lambda: Mine.apply(X, weight=X), "apply"),
    "too few arguments": (lambda: define(forward=lambda x, y: x).apply(X), "apply"),
    "too many arguments": (lambda: define(forward=lambda x: x).apply(X, X), "apply"),
    "an instance": (lambda: funcaot.custom_function_call(instance(), X), "custom_function_call"),
    "a method instead of a class": (
        lambda: funcaot.custom_function_call(Mine.apply, X),
        "custom_function_call",
    ),
    # old style
    "an intermediate in strict mode": (lambda: second_derivative("strict"), "second derivative"),
    "a second_order mode that doesn't exist": (own_mode, "mode"),
    # plain functions
    "custom_vjp without a rule": (custom_vjp, "differentiated"),
    "fwd returns one value": (lambda: custom_vjp(lambda x, y: x * y, rule(None)), "custom_vjp"),
    "bwd returns one cotangent of two": (
        lambda: custom_vjp(fwd, lambda res, ct: (ct,)),
        "custom_vjp",
    ),
    "bwd returns another structure": (
        lambda: custom_vjp(fwd, lambda res, ct: ((ct, ct), ct)),
        "custom_vjp",
    ),
    "custom_jvp without a rule": (custom_jvp, "differentiated"),
    "a jvp rule returns one value": (lambda: custom_jvp(lambda p, t: p[0]), "custom_jvp"),
    "a jvp rule returns another structure": (
        lambda: custom_jvp(lambda p, t: (p[0], (t[0], t[0]))),
        "custom_jvp",
    ),
}


@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse(misuse):
    call, transform = MISUSES[misuse]
    with pytest.raises(FuncaotError) as caught:
        call()
    error = caught.value
    assert "Mine" in error.what or "apply" in error.what
    assert transform in error.what
    for part in (error.expected, error.got, error.remedy):
        assert part
        assert part in str(error)
    assert torch._C._functorch.peek_interpreter_stack() is None
    assert torch._C._len_torch_dispatch_stack() == 0
    assert not torch._C._functorch.get_single_level_autograd_function_allowed()
    assert torch.is_grad_enabled()


def test_there_are_enough():
    assert len(MISUSES) >= 25


def test_an_error_under_functionalize_unwinds_it():
    with pytest.raises(FuncaotError):
        functionalize(vmap(lambda x: define().apply(x)))(X)
    assert torch._C._functorch.peek_interpreter_stack() is None
