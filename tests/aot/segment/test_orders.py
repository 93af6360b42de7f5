"""Derivatives of every order of a compiled function, against eager in float64."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

import funcaot
from tests.aot.segment import orders_cases as cases

pytestmark = pytest.mark.filterwarnings(
    r"ignore:.torch\.jit\.script(_method)?. is deprecated:DeprecationWarning"
)


def same(actual, expected):
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if ours is not None:
            assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def by_grad(function, inputs, order):
    """Every derivative up to an order: of the sum, then of the squares of the one before."""
    total = function(*inputs).sum()
    every = [total.detach()]
    for _ in range(order):
        gradients = torch.autograd.grad(total, inputs, create_graph=True, allow_unused=True)
        every += gradients
        total = sum((g**2).sum() for g in gradients if g is not None)
        if not total.requires_grad:
            break
    return every


def by_backward(function, inputs, order):
    """The same by ``.backward(create_graph=True)``."""
    total = function(*inputs).sum()
    every = [total.detach()]
    for _ in range(order):
        for tensor in inputs:
            tensor.grad = None
        total.backward(create_graph=True)
        every += [tensor.grad for tensor in inputs]
        total = sum((tensor.grad**2).sum() for tensor in inputs if tensor.grad is not None)
        if not total.requires_grad:
            break
    for tensor in inputs:
        tensor.grad = None
    return every


@pytest.mark.parametrize("name", cases.PROGRAMS)
def test_four_orders_by_grad(name):
    function = cases.PROGRAMS[name]
    inputs = cases.operands()
    compiled = cases.compiled(function)
    same(by_grad(compiled, inputs, 4), by_grad(cases.ORACLES[name], inputs, 4))
    counted = funcaot.report(compiled)
    same(by_grad(compiled, inputs, 4), by_grad(cases.ORACLES[name], inputs, 4))
    again = funcaot.report(compiled)
    assert again.graphs_compiled == counted.graphs_compiled
    assert again.backward_traces == counted.backward_traces


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
@pytest.mark.parametrize("name", cases.PROGRAMS)
def test_three_orders_by_backward(name):
    function = cases.PROGRAMS[name]
    inputs = cases.operands()
    oracle = cases.ORACLES[name]
    same(by_backward(cases.compiled(function), inputs, 3), by_backward(oracle, inputs, 3))


def test_each_order_is_traced_when_it_is_invoked():
    compiled = cases.compiled(cases.mlp_like)
    inputs = cases.operands()
    total = compiled(*inputs).sum()
    for order in range(4):
        assert funcaot.report(compiled).backward_traces == order
        gradients = torch.autograd.grad(total, inputs, create_graph=True)
        total = sum((g**2).sum() for g in gradients)
    assert funcaot.report(compiled).backward_traces == 4


@pytest.mark.parametrize("name", ["mlp_like", "odd_rules", "in_place"])
def test_orders_of_part_of_the_inputs(name):
    function = cases.PROGRAMS[name]
    compiled = cases.compiled(function)
    x, w = cases.operands()

    def mixed(f):
        gx = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)[0]
        gw = torch.autograd.grad((gx**3).sum(), w, create_graph=True)[0]
        return [gx, gw, *torch.autograd.grad((gw**2).sum(), (x, w))]

    same(mixed(compiled), mixed(function))


def test_only_one_input_requires_grad():
    for needs in ((True, False), (False, True)):
        inputs = cases.operands(requires_grad=False)
        wanted = [t.requires_grad_() for t, need in zip(inputs, needs, strict=True) if need]

        def second(f, inputs=inputs, wanted=wanted):
            gradients = torch.autograd.grad(f(*inputs).sum(), wanted, create_graph=True)
            return [*gradients, *torch.autograd.grad((gradients[0] ** 2).sum(), wanted)]

        same(second(cases.compiled(cases.mlp_like)), second(cases.mlp_like))


def test_repeated_backward_with_retain_graph():
    compiled = cases.compiled(cases.odd_rules)
    x, w = cases.operands()

    def run(f):
        y = f(x, w).sum()
        first = torch.autograd.grad(y, (x, w), retain_graph=True)
        second = torch.autograd.grad(y, (x, w), retain_graph=True)
        return [*first, *second, *torch.autograd.grad(y, (x, w))]

    same(run(compiled), run(cases.odd_rules))


def test_repeated_backward_of_a_second_order():
    compiled = cases.compiled(cases.mlp_like)
    x, w = cases.operands()

    def run(f):
        (g,) = torch.autograd.grad(f(x, w).sum(), x, create_graph=True)
        total = (g**2).sum()
        first = torch.autograd.grad(total, (x, w), retain_graph=True)
        return [*first, *torch.autograd.grad(total, (x, w))]

    same(run(compiled), run(cases.mlp_like))


@pytest.mark.parametrize("order", [1, 2])
def test_backward_through_a_freed_graph_raises_as_eager_does(order):
    x, w = cases.operands()
    for function in (cases.mlp_like, cases.compiled(cases.mlp_like)):
        total = function(x, w).sum()
        if order == 2:
            (g,) = torch.autograd.grad(total, x, create_graph=True)
            total = (g**2).sum()
        torch.autograd.grad(total, (x, w))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            torch.autograd.grad(total, (x, w))


def two_outputs(x, w):
    return (x * 2).sin(), (x @ w).exp(), x.detach() * 3


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_backward_through_some_outputs_only(which):
    compiled = cases.compiled(two_outputs)
    x, w = cases.operands()

    def run(f):
        outputs = f(x, w)
        total = sum(outputs[i].sum() for i in which)
        first = torch.autograd.grad(total, (x, w), create_graph=True, allow_unused=True)
        squares = sum((g**2).sum() for g in first if g is not None)
        return [*first, *torch.autograd.grad(squares, (x, w), allow_unused=True)]

    same(run(compiled), run(two_outputs))


def test_outputs_need_the_gradient_that_eager_says():
    compiled = cases.compiled(two_outputs)
    x, w = cases.operands()
    assert [y.requires_grad for y in compiled(x, w)] == [True, True, False]
    (g,) = torch.autograd.grad(compiled(x, w)[0].sum(), x, create_graph=True)
    assert g.requires_grad
    (g,) = torch.autograd.grad(compiled(x, w)[0].sum(), x)
    assert not g.requires_grad


def test_unused_inputs_give_none_never_zeros():
    def function(x, w, unused):
        return x.sin().sum() + 0 * w.sum()

    compiled = cases.compiled(function)
    x, w = cases.operands()
    unused = torch.ones(2, dtype=torch.float64, requires_grad=True)

    def run(f):
        return torch.autograd.grad(f(x, w, unused), (x, w, unused), allow_unused=True)

    same(run(compiled), run(function))
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad(compiled(x, w, unused), unused)
    compiled(x, w, unused).backward()
    assert unused.grad is None
    assert w.grad is not None


def test_an_input_that_is_unused_at_second_order_gives_none():
    def function(x, w):
        return x.sin().sum() + w.sum()

    compiled = cases.compiled(function)
    x, w = cases.operands()

    def run(f):
        gx, _gw = torch.autograd.grad(f(x, w), (x, w), create_graph=True)
        return torch.autograd.grad(gx.sum(), (x, w), allow_unused=True)

    same(run(compiled), run(function))


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0]


@pytest.mark.parametrize("make", [lambda f: f, cases.compiled], ids=["eager", "compiled"])
def test_once_differentiable_raises_as_eager_does(make):
    function = make(lambda x: Once.apply(x).sum())
    x = torch.randn(3, dtype=torch.float64, requires_grad=True)
    same(torch.autograd.grad(function(x), x), (2 * x,))
    (gradient,) = torch.autograd.grad(function(x), x, create_graph=True)
    same((gradient,), (2 * x,))
    assert not gradient.requires_grad
    tangent = torch.ones((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(function(x), x, tangent, create_graph=True)
    with pytest.raises(RuntimeError, match=r"differentiate twice .* @once_differentiable"):
        gradient.sum().backward()


def linear(x, w):
    return x * 3, w.sin()


def test_a_gradient_requires_grad_exactly_where_it_does_in_eager():
    x, w = cases.operands()
    v = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def flags(f):
        gradients = torch.autograd.grad([y.sum() for y in f(x, w)], (x, w), create_graph=True)
        (given,) = torch.autograd.grad(f(x, w)[0], x, v, create_graph=True)
        return [g.requires_grad for g in (*gradients, given)]

    assert flags(cases.compiled(linear)) == flags(linear) == [False, True, True]


def test_the_tangent_is_differentiated_too():
    compiled = cases.compiled(cases.odd_rules)
    x, w = cases.operands()
    v = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def run(f):
        (gx,) = torch.autograd.grad(f(x, w), x, v, create_graph=True)
        return torch.autograd.grad((gx**2).sum(), (v, x, w))

    same(run(compiled), run(cases.odd_rules))


def test_hessian_vector_products_of_autograd_functional():
    compiled = cases.compiled(lambda x: (x.sin() ** 3).sum())
    function = compiled.function
    x = torch.randn(4, dtype=torch.float64)
    v = torch.randn(4, dtype=torch.float64)
    for product in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        same(product(compiled, x, v), product(function, x, v))
    assert_close(
        torch.autograd.functional.hessian(compiled, x),
        torch.autograd.functional.hessian(function, x),
    )


@pytest.mark.parametrize("name", ["mlp_like", "in_place", "normed", "convolved", "kept_result"])
def test_gradcheck_and_gradgradcheck(name):
    compiled = cases.compiled(cases.PROGRAMS[name])
    inputs = cases.operands()
    if name == "in_place":
        inputs = tuple(t.detach().abs().requires_grad_() for t in inputs)
    assert gradcheck(compiled, inputs)
    assert gradgradcheck(compiled, inputs)


@pytest.mark.parametrize("name", ["mlp_like", "normed"])
def test_gradcheck_batched_and_forward_mode(name):
    compiled = cases.compiled(cases.PROGRAMS[name])
    inputs = cases.operands()
    assert gradcheck(
        compiled,
        inputs,
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
        check_undefined_grad=True,
    )
    assert gradgradcheck(compiled, inputs, check_fwd_over_rev=True, check_rev_over_rev=True)


@pytest.mark.slow
def test_orders_on_inductor():
    function = cases.odd_rules
    inputs = cases.operands()
    compiled = cases.compiled(function, "inductor")
    same(by_grad(compiled, inputs, 3), by_grad(function, inputs, 3))


def test_a_module_to_third_order():
    net = cases.Net()
    compiled = funcaot.compile(net, backend="eager")
    x = torch.randn(6, 4, dtype=torch.float64, requires_grad=True)

    def run(model):
        (g,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad((g**2).sum(), x, create_graph=True)
        return torch.autograd.grad((h**2).sum(), [x, *model.parameters()], allow_unused=True)

    found = run(compiled)
    net.norm.__class__ = cases.WrittenOut
    same(found, run(net))


def test_mutated_leaf_between_orders_raises_as_eager_does():
    compiled = cases.compiled(cases.mlp_like)
    for function in (cases.mlp_like, compiled):
        x, w = cases.operands()
        (g,) = torch.autograd.grad(function(x, w).sum(), x, create_graph=True)
        with torch.no_grad():
            w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (g**2).sum().backward()


def test_complex_orders():
    def function(z):
        return (z * z.conj() + z.sin()).abs().sum()

    compiled = cases.compiled(function)
    z = torch.randn(4, dtype=torch.complex128, requires_grad=True)

    def run(f):
        (g,) = torch.autograd.grad(f(z), z, create_graph=True)
        return [g, *torch.autograd.grad(g.abs().sum(), z)]

    same(run(compiled), run(function))
