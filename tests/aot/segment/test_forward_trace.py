"""Forward mode where transposing a backward twice isn't possible."""

import pytest
import torch
from torch.autograd import forward_ad

import funcaot
from funcaot.errors import RuleError, UnsupportedError


def along(function, x):
    return torch.func.jvp(function, (x,), (x.cos(),))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.linalg.matrix_exp(x).sin(),
        lambda x: torch.nn.functional.hardsigmoid(x) * x,
        lambda x: torch.logcumsumexp(x, 0) * x,
        lambda x: torch.xlogy(x * x, x * x + 1),
    ],
)
def test_ops(function):
    x = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)
    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(along(compiled, x), along(function, x))


def test_grad_of_the_pushforward():
    def function(x):
        return torch.linalg.matrix_exp(x)

    def pushed(function):
        return lambda x: along(function, x)[1].sin().sum()

    x = torch.linspace(-1, 1, 4, dtype=torch.float64).reshape(2, 2)
    compiled = funcaot.compile(function, backend="eager")
    expected = torch.func.grad(pushed(function))(x)
    torch.testing.assert_close(torch.func.grad(pushed(compiled))(x), expected)


class Clipped(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient.clamp(-1, 1)


def test_a_backward_that_is_not_linear_is_refused():
    class Rule(funcaot.Function):
        forward = Clipped.forward
        setup_context = Clipped.setup_context
        backward = Clipped.backward
        generate_jvp_rule = True

    compiled = funcaot.compile(lambda x: Rule.apply(x * 2), backend="eager")
    with pytest.raises((RuleError, UnsupportedError)):
        along(compiled, torch.ones(3))


def with_a_no_grad_region(x):
    with torch.no_grad():
        seen = x.cos()
    return x.sin() * seen


def with_a_detached_part(x):
    with torch.no_grad():
        seen = x.cos().detach()
    return x.sin() * seen * x.detach().exp()


def with_an_inner_gradient(x):
    with torch.no_grad():
        seen = x.cos()
    return torch.func.grad(lambda y: y.exp().sum())(x) * seen


def with_dropout(x):
    with torch.no_grad():
        seen = x.cos()
    return torch.nn.functional.dropout(x * seen, 0.5) * torch.rand_like(x)


@pytest.mark.parametrize(
    "function",
    [with_a_no_grad_region, with_a_detached_part, with_an_inner_gradient, with_dropout],
)
def test_forward_mode_sees_through_no_grad_and_not_through_detach(function):
    x = torch.linspace(-1, 1, 4, dtype=torch.float64)
    compiled = funcaot.compile(function, backend="eager")
    results = []
    for f in (function, compiled):
        torch.manual_seed(0)
        value, pushed = along(f, x)
        torch.manual_seed(0)
        gradient = torch.func.grad(lambda x, f=f: along(f, x)[1].sum())(x)
        results.append((value, pushed, gradient))
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("write", ["zero_", "fill_", "copy_", "first to zero"])
def test_what_is_overwritten_in_no_grad_has_no_tangent(write):
    def function(x):
        with torch.no_grad():
            if write == "zero_":
                x.zero_()
            elif write == "fill_":
                x.fill_(2.0)
            elif write == "copy_":
                x.copy_(torch.ones(4, dtype=torch.float64))
            else:
                x[0].zero_()
        return x * 3

    def both(called):
        def program(x):
            y = x * 1.0
            return called(y), y

        x = torch.linspace(-1, 1, 4, dtype=torch.float64)
        return torch.func.jvp(program, (x,), (x.cos(),))

    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(both(compiled), both(function))


@pytest.mark.parametrize("view", [lambda w: w[...], lambda w: w[1:], lambda w: w.view(2, 2)])
def test_a_view_made_in_no_grad_of_what_was_written_has_a_tangent(view):
    def function(x, w):
        w.add_(x)
        with torch.no_grad():
            seen = view(w)
        return seen * view(x)

    def run(called):
        x = torch.linspace(0.3, 1.7, 4, dtype=torch.float64)
        return torch.func.jvp(
            lambda x, w: called(x * 1.0, w * 1.0), (x, x.cos()), (x.sin(), x.exp())
        )

    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(run(compiled), run(function))


def test_no_grad_under_forward_over_reverse_is_refused():
    compiled = funcaot.compile(lambda x: with_a_no_grad_region(x).sum(), backend="eager")
    with pytest.raises(UnsupportedError, match="no_grad"):
        torch.func.hessian(compiled)(torch.rand(3))


class Doubled(torch.autograd.Function):
    """Its two rules disagree, so each shows where it was used."""

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 3


def test_a_rule_of_forward_mode_is_respected():
    x = torch.rand(3)
    with funcaot.install():
        compiled = funcaot.compile(lambda x: Doubled.apply(x).sin(), backend="eager")
        _, pushed = torch.func.jvp(compiled, (x,), (torch.ones(3),))
        gradient = torch.func.grad(lambda x: compiled(x).sum())(x)
    torch.testing.assert_close(pushed, 3 * x.cos())
    torch.testing.assert_close(gradient, 2 * x.cos())


class Counted(Doubled):
    runs = 0

    @staticmethod
    def forward(x):
        values = x.numpy()  # a capture doesn't get past this
        Counted.runs += 1
        return torch.from_numpy(values * 1)


def test_a_function_runs_once_for_primal_and_tangent():
    x = torch.rand(3)
    compiled = funcaot.compile(lambda x: Counted.apply(x).sin(), backend="eager")
    for _ in range(2):
        Counted.runs = 0
        _, pushed = torch.func.jvp(compiled, (x,), (torch.ones(3),))
        assert Counted.runs == 1
        torch.testing.assert_close(pushed, 3 * x.cos())


class TakeRows(torch.autograd.Function):
    """NumPy, with an operand of integers, which moves nowhere."""

    @staticmethod
    def forward(x, rows):
        return torch.from_numpy(x.numpy()[rows.numpy()])

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def jvp(ctx, tangent, _):
        return TakeRows.apply(tangent, ctx.saved_tensors[0])


@pytest.mark.parametrize("dual", [False, True])
def test_a_rule_reads_operands_that_have_no_tangent(dual):
    x, rows = torch.rand(3), torch.tensor([2, 0])
    with funcaot.install():
        compiled = funcaot.compile(lambda x, rows: TakeRows.apply(x, rows).sin(), backend="eager")
        if dual:
            with torch.autograd.forward_ad.dual_level():
                y = compiled(torch.autograd.forward_ad.make_dual(x, x * 2), rows)
                pushed = torch.autograd.forward_ad.unpack_dual(y).tangent
        else:
            _, pushed = torch.func.jvp(lambda x: compiled(x, rows), (x,), (x * 2,))
    torch.testing.assert_close(pushed, (x * 2 * x.cos())[rows])


def test_forward_mode_of_what_relu_and_another_write_changed():
    """No value of the tape is of a level that is gone when masks are chosen."""

    def function(x):
        torch.relu_(x)
        x[0:1] = 2.0
        return x.sin()

    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    compiled = funcaot.compile(function, backend="eager")
    found = [
        torch.func.jvp(lambda x, f=f: f(x * 1.0), (x,), (x.cos(),)) for f in (compiled, function)
    ]
    torch.testing.assert_close(*found)


def still(x):
    with forward_ad._set_fwd_grad_enabled(False):
        shift = x.sin() * 3
    return (x * shift + shift).sum()


FORWARD = {
    "jvp": lambda f, x: along(f, x),
    "jacfwd": lambda f, x: torch.func.jacfwd(f)(x),
    "grad": lambda f, x: torch.func.grad(f)(x),
    "grad of jvp": lambda f, x: torch.func.grad(lambda x: along(f, x)[1])(x),
    "jvp of jvp": lambda f, x: along(lambda x: along(f, x)[1], x),
    "vmap of jvp": lambda f, x: torch.vmap(lambda x: along(f, x)[1])(x[None]),
}


@pytest.mark.parametrize("derivative", FORWARD)
@pytest.mark.parametrize("inside", [False, True])
def test_where_forward_mode_is_off(derivative, inside):
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    expected = FORWARD[derivative](still, x)
    if inside:
        found = funcaot.compile(lambda x: FORWARD[derivative](still, x), backend="eager")(x)
    else:
        found = FORWARD[derivative](funcaot.compile(still, backend="eager"), x)
    torch.testing.assert_close(found, expected)


def test_forward_mode_of_a_backward_where_forward_mode_was_off():
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="forward mode was off"):
        torch.func.hessian(funcaot.compile(still, backend="eager"))(x)
    found = funcaot.compile(torch.func.hessian(still), backend="eager")(x)
    torch.testing.assert_close(found, torch.func.hessian(still)(x))


class Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, y):
        return x.sin() * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * x.cos() * y, gradient * x.sin()

    @staticmethod
    def jvp(ctx, tangent_x, tangent_y):
        x, y = ctx.saved_tensors
        return tangent_x * x.cos() * y + tangent_y * x.sin()


class KeepsView(Product):
    @staticmethod
    def setup_context(ctx, inputs, output):
        x, y = inputs
        ctx.save_for_backward(x, y.view_as(y))
        ctx.save_for_forward(x, y)


def test_views_that_a_function_keeps_are_refused_in_forward_mode_of_a_backward():
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    compiled = funcaot.compile(lambda x: KeepsView.apply(x, x * 2).sum(), backend="eager")
    with pytest.raises(UnsupportedError, match="a view that a Function made and saved"):
        torch.func.hessian(compiled)(x)
    inside = funcaot.compile(
        torch.func.hessian(lambda x: KeepsView.apply(x, x * 2).sum()), backend="eager"
    )
    expected = torch.func.hessian(lambda x: (x.sin() * x * 2).sum())(x)
    torch.testing.assert_close(inside(x), expected)


def test_zeros_of_missing_tangents_are_not_switched_off():
    x = torch.linspace(-1, 1, 3, dtype=torch.float64)
    y = torch.linspace(1, 2, 3, dtype=torch.float64)
    hessian = torch.func.hessian(lambda x, y: Product.apply(x, y).sum())
    compiled = funcaot.compile(hessian, backend="eager")
    expected = along(lambda x: torch.func.grad(lambda x: hessian(x, y).sin().sum())(x), x)
    found = along(lambda x: torch.func.grad(lambda x: compiled(x, y).sin().sum())(x), x)
    torch.testing.assert_close(found, expected)
