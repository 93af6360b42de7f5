"""Second derivatives by adjoints: gradients of tangents, and tangents of gradients, as in eager."""

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import func
from torch.testing import assert_close

import funcaot
from tests.aot.segment import orders_cases as cases

X = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3)
W = torch.linspace(0.5, 2, 9, dtype=torch.float64).view(3, 3)
V = torch.linspace(1, -2, 6, dtype=torch.float64).view(2, 3).sin()


class Rules(torch.autograd.Function):
    """A product whose forward mode and reverse mode are each other's transpose, and not of it."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x * w.sum()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return 2 * gradient * x.cos(), (gradient * w.sum()).sum() * torch.ones_like(w)

    @staticmethod
    def jvp(ctx, x_tangent, w_tangent):
        x, w = ctx.saved_tensors
        total = 2 * x_tangent * x.cos() if x_tangent is not None else 0
        return total + (w.sum() * w_tangent.sum() if w_tangent is not None else 0)


FUNCTIONS = {
    "tanh": lambda x, w: (x @ w).tanh(),
    "softmax": lambda x, w: torch.softmax(x @ w, -1) * x,
    "polynomial": lambda x, w: (x @ w) ** 3 + x * w.sum(),
    "reshaped": lambda x, w: (x.t().reshape(2, 3) @ w).sin()[:, [2, 0, 1]],
    "a Function": lambda x, w: Rules.apply(x, w).sin(),
}


def tangent(f, x, w, v):
    return func.jvp(lambda x: f(x, w), (x,), (v,))[1]


def dual(f, x, w, v, *, of):
    with forward_ad.dual_level():
        operands = {"x": x, "w": w, "v": v}
        operands = {name: value.clone().requires_grad_() for name, value in operands.items()}
        moved = forward_ad.make_dual(operands["x"], operands["v"])
        pushed = forward_ad.unpack_dual(f(moved, operands["w"])).tangent
        wanted = [operands[name] for name in of]
        first = torch.autograd.grad(pushed.sin().sum(), wanted, create_graph=True)
        return *first, *torch.autograd.grad(sum(g.square().sum() for g in first), wanted)


PROGRAMS = {
    "grad_x": lambda f: func.grad(lambda x: tangent(f, x, W, V).sin().sum())(X),
    "grad_w": lambda f: func.grad(lambda w: tangent(f, X, w, V).sin().sum())(W),
    "grad_v": lambda f: func.grad(lambda v: tangent(f, X, W, v).sin().sum())(V),
    "vjp": lambda f: func.vjp(lambda x, w: tangent(f, x, w, V), X, W)[1](X.cos()),
    "grad_grad": lambda f: func.grad(
        lambda x: func.grad(lambda x: tangent(f, x, W, V).sin().sum())(x).square().sum()
    )(X),
    "jvp_grad_jvp": lambda f: func.jvp(
        lambda w: func.grad(lambda x: tangent(f, x, w, V).sin().sum())(X), (W,), (W.sin(),)
    ),
    "grad_jvp_jvp": lambda f: func.grad(
        lambda x: func.jvp(lambda x: tangent(f, x, W, V), (x,), (V,))[1].sum()
    )(X),
    "vmap_grad": lambda f: func.vmap(
        func.grad(lambda v, w: tangent(f, X, w, v).sin().sum()), (0, None)
    )(torch.stack([V, X, 2 * V]), W),
    "grad_vmap": lambda f: func.grad(
        lambda w: func.vmap(lambda v: tangent(f, X, w, v))(torch.stack([V, X])).sin().sum()
    )(W),
    "jacrev_jacfwd": lambda f: func.jacrev(func.jacfwd(lambda x: f(x, W)[0]))(X),
    "jacfwd_jacrev": lambda f: func.jacfwd(func.jacrev(lambda w: f(X, w)[0]))(W),
    "dual_x": lambda f: dual(f, X, W, V, of="x"),
    "dual_all": lambda f: dual(f, X, W, V, of="xwv"),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_as_eager(function, program):
    if (function, program) == (FUNCTIONS["a Function"], PROGRAMS["grad_jvp_jvp"]):
        pytest.skip("torch takes the rule of a Function for constant in a jvp of a jvp; see below")
    try:
        expected = program(function)
    except RuntimeError as error:
        pytest.skip(f"eager fails: {str(error)[:60]}")
    compiled = cases.compiled(function)
    assert_close(program(compiled), expected, rtol=1e-10, atol=1e-10)
    counted = funcaot.report(compiled)
    assert counted.graphs_compiled > 0
    assert_close(program(compiled), expected, rtol=1e-10, atol=1e-10)
    again = funcaot.report(compiled)
    assert again.graphs_compiled == counted.graphs_compiled
    assert again.backward_traces == counted.backward_traces


def test_a_tangent_of_a_tangent_is_that_of_the_rule():
    compiled = cases.compiled(Rules.apply)
    second = func.jvp(lambda x: tangent(compiled, x, W, V), (X,), (V,))[1]
    assert_close(second, -2 * V * V * X.sin())
    third = func.grad(
        lambda x: func.jvp(lambda x: tangent(compiled, x, W, V), (x,), (V,))[1].sum()
    )(X)
    # The gradient is by the other rule, of the sine.
    assert_close(third, -2 * V * V * X.cos())
