"""Primal and tangent as one program."""

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.testing import assert_close

import funcaot
from tests.aot.segment import orders_cases as cases
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings(
    r"ignore:.torch\.jit\.script(_method)?. is deprecated:DeprecationWarning"
)


def expensive(x):
    return (x.exp().tanh() * x).sum()


def ran(compiled):
    """Every graph that ran, with those derived from it."""

    def walk(graphs):
        for graph in graphs:
            if graph.compiler is not None:
                yield graph
            yield from walk(graph.derived)

    def derivatives(found):
        for item in found:
            yield from walk(item.graphs)
            yield from derivatives(item.derivatives)

    for entry in funcaot.report(compiled).entries:
        yield from walk(entry.graphs)
        yield from derivatives((*entry.backwards, *entry.pushforwards))


def count(graphs, name):
    return sum(name in str(n.target) for g in graphs for n in g.graph.graph.nodes)


def test_jvp_runs_one_program_that_computes_the_primal_once():
    compiled = cases.compiled(expensive)
    x, v = torch.randn(2, 5, dtype=torch.float64)
    assert_close(func.jvp(compiled, (x,), (v,)), func.jvp(expensive, (x,), (v,)))
    graphs = list(ran(compiled))
    assert len(graphs) == 1
    assert count(graphs, "exp.default") == 1
    assert count(graphs, "tanh.default") == 1


def test_dual_numbers_run_one_program():
    compiled = cases.compiled(expensive)
    x, v = torch.randn(2, 5, dtype=torch.float64)
    with forward_ad.dual_level():
        result = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, v)))
        expected = forward_ad.unpack_dual(expensive(forward_ad.make_dual(x, v)))
    assert_close(tuple(result), tuple(expected))
    assert len(list(ran(compiled))) == 1


def test_jacfwd_keeps_the_primal_unbatched():
    compiled = cases.compiled(lambda x: x.exp().tanh() * x)
    x = torch.randn(5, dtype=torch.float64)
    func.jacfwd(compiled)(x)
    graphs = list(ran(compiled))
    assert len(graphs) == 1
    (exp,) = [n for n in graphs[0].graph.graph.nodes if "exp.default" in str(n.target)]
    assert tuple(exp.meta["val"].shape) == (5,)


def test_an_output_without_tangent_has_none():
    compiled = cases.compiled(lambda x, w: (x.exp(), w.sum()))
    x, w = torch.randn(2, 3, dtype=torch.float64)
    with forward_ad.dual_level():
        first, second = compiled(forward_ad.make_dual(x, x), w)
        assert forward_ad.unpack_dual(second).tangent is None
        assert_close(forward_ad.unpack_dual(first).tangent, x * x.exp())


def test_vmapped_jvp_with_a_carried_residual():
    def function(x, w):
        return (x * w).sin() + x**2

    compiled = cases.compiled(function)
    x, w = torch.randn(2, 3, dtype=torch.float64)

    def run(f):
        return func.jvp(lambda x: func.jacfwd(f)(x, w), (x,), (w,))

    assert_close(run(compiled), run(function))


def test_primal_and_tangent_see_the_same_draw():
    def function(x):
        noise = torch.rand_like(x)
        return x * noise, noise

    compiled = cases.compiled(function)
    x = torch.randn(1000, dtype=torch.float64)
    (y, noise), (pushed, _) = func.jvp(compiled, (x,), (torch.ones_like(x),))
    assert_close(y, x * noise)
    assert_close(pushed, noise)
    torch.manual_seed(3)
    first = func.jvp(compiled, (x,), (x,))
    torch.manual_seed(3)
    assert_close(first, func.jvp(function, (x,), (x,)))


def test_no_residuals_without_a_second_order(by_level):
    """grad of a compiled function keeps nothing for a backward of the backward."""
    compiled = cases.compiled(expensive)
    x = torch.randn(5, dtype=torch.float64)
    func.grad(compiled)(x)
    (entry,) = funcaot.report(compiled).entries
    (backward,) = entry.backwards
    (graph,) = backward.graphs
    output = next(iter(reversed(graph.graph.graph.nodes)))
    assert len(output.args[0]) == 1


def test_gradient_of_jacfwd_times_the_value():
    # The value is shared by the batch of tangents that jacfwd pushes through.
    def program(f, x):
        leaf = x.clone().requires_grad_()
        total = torch.func.jacfwd(lambda x: f(x) * x.cos())(leaf).sum()
        return torch.autograd.grad(total, leaf)[0]

    def function(x):
        return x.sin() * x

    x = torch.linspace(0.1, 1, 3, dtype=torch.float64)
    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(program(compiled, x), program(function, x))


def below_forward_mode(graph, inputs):
    """A backend whose executables see numbers only, as compiled code does."""
    return lambda *args: graph(*[forward_ad.unpack_dual(a).primal.clone() for a in args])


@pytest.mark.parametrize("calls", [1, 4])
def test_dual_numbers_through_a_backward(calls):
    function = lambda x, w: (x * w).sin()  # noqa: E731
    compiled = funcaot.compile(function, backend=below_forward_mode)
    x, w = (torch.randn(4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    tangent, moving = torch.randn(2, 4, dtype=torch.float64)

    def pushed(f, *, early):
        with forward_ad.dual_level():
            moved = forward_ad.make_dual(x, moving) if early else x
            y = f(moved, w)
            given = tangent if early else forward_ad.make_dual(tangent, moving)
            gradients = torch.autograd.grad(y, [x, w], given)
            return [tuple(forward_ad.unpack_dual(gradient)) for gradient in gradients]

    for early in (False, True):
        for _ in range(calls):
            torch.autograd.grad(compiled(x, w), [x, w], tangent)
            assert_close(pushed(compiled, early=early), pushed(function, early=early))


class Doubled(torch.autograd.Function):
    """Writes to its input."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

    @staticmethod
    def jvp(ctx, tangent):
        return tangent.mul_(2)


def test_a_derivative_that_meets_tensors_of_no_capture():
    """Zeros without memory, which formulas make below the capture."""

    def jacobian(x):
        return torch.func.jacfwd(lambda y: Doubled.apply(y * 1).sin())(x).sum(0)

    def pushed(function, x):
        gradient = torch.func.grad(lambda y: function(y).sum())
        return torch.func.jvp(gradient, (x,), (torch.ones_like(x),))[1]

    x = torch.tensor([0.3, -0.2, 0.5])
    around = pushed(funcaot.compile(jacobian, backend=COMPILER), x)
    torch.testing.assert_close(around, pushed(jacobian, x))
    inside = funcaot.compile(lambda x: pushed(jacobian, x), backend=COMPILER)
    torch.testing.assert_close(inside(x), pushed(jacobian, x))


@pytest.mark.parametrize("inner", [func.jacfwd, func.jacrev])
@pytest.mark.parametrize("rows", [3, 2])
def test_jacobians_of_a_jacobian_that_is_constant(rows, inner):
    """Its own jacobian is an expanded matrix, which gets tangents."""
    matrix = torch.arange(3.0 * rows).view(rows, 3)

    def linear(x):
        return matrix @ x

    x = torch.tensor([0.3, -0.2, 0.5])
    expected = func.jacfwd(func.jacfwd(inner(linear)))(x)
    for compiled in (
        func.jacfwd(func.jacfwd(funcaot.compile(inner(linear), backend="eager"))),
        func.jacfwd(funcaot.compile(func.jacfwd(inner(linear)), backend="eager")),
        funcaot.compile(func.jacfwd(func.jacfwd(inner(linear))), backend="eager"),
    ):
        assert_close(compiled(x), expected)


def test_values_that_are_expanded_and_get_tangents():
    def function(x):
        return x.sum().expand(3), x * 2

    x = torch.tensor([0.3, -0.2, 0.5])
    found = func.jvp(funcaot.compile(function, backend="eager"), (x,), (x.cos(),))
    expected = func.jvp(function, (x,), (x.cos(),))
    assert_close(found, expected)
    assert [each.stride() for each in found[0]] == [each.stride() for each in expected[0]]
