"""``register_derivative``: rules of users, and what is said of wrong ones."""

import pytest
import torch

import funcaot
from funcaot.derivatives import table
from funcaot.errors import FuncaotError, MissingRuleError, RuleError


def forget(op):
    table._table.pop(op, None)
    for listener in table._listeners:
        listener()


@pytest.fixture
def op():
    """An op without any derivative, which is forgotten again."""
    library = torch.library.Library("funcaot_tests", "FRAGMENT")
    library.define("scaled_sine(Tensor x, Tensor y, float scale=1.0) -> Tensor")
    library.impl(
        "scaled_sine",
        lambda x, y, scale=1.0: scale * torch.sin(x * y),
        "CompositeExplicitAutograd",
    )
    torch.library.register_fake(
        "funcaot_tests::scaled_sine", lambda x, y, scale=1.0: torch.empty_like(x), lib=library
    )
    op = torch.ops.funcaot_tests.scaled_sine.default
    yield op
    forget(op)
    library._destroy()


def primals():
    return torch.tensor([0.3, -1.2]).double(), torch.tensor([0.7, 0.4]).double()


def reference(x, y, scale=1.0):
    return scale * torch.sin(x * y)


def vjp(cotangents, x, y, scale=1.0):
    slope = cotangents[0] * scale * torch.cos(x * y)
    return slope * y, slope * x


def jvp(tangents, x, y, scale=1.0):
    moved = sum(t * other for t, other in ((tangents[0], y), (tangents[1], x)) if t is not None)
    return scale * torch.cos(x * y) * moved


def hessian_product(function):
    x, y = primals()

    def gradient(x):
        return torch.func.grad(lambda x: function(x, y, 2.0).sum())(x)

    return torch.func.jvp(gradient, (x,), (torch.ones_like(x),))[1]


@pytest.mark.parametrize("rules", [{"formula": reference}, {"vjp": vjp, "jvp": jvp}])
def test_a_rule_serves_every_transform(op, rules):
    funcaot.register_derivative(op, **rules)
    wanted = hessian_product(reference)
    with funcaot.install():
        torch.testing.assert_close(hessian_product(op), wanted)
    compiled = funcaot.compile(lambda x, y, scale: op(x, y, scale), backend="eager")
    torch.testing.assert_close(hessian_product(compiled), wanted)


def test_one_mode_alone(op):
    x, y = primals()
    funcaot.register_derivative(op, vjp=vjp)
    with funcaot.install(), pytest.raises(MissingRuleError, match="forward mode"):
        torch.func.jvp(lambda x: op(x, y), (x,), (x,))


@pytest.mark.parametrize(
    ("gradients", "text"),
    [
        (lambda *_: (None, None, None, None), "too many gradients"),
        (lambda *_: (torch.ones(3), None), "another shape"),
    ],
)
def test_wrong_rules_are_named(op, gradients, text):
    funcaot.register_derivative(op, vjp=gradients)
    x, y = primals()
    with funcaot.install():
        total = op(x.requires_grad_(), y).sum()
    with pytest.raises(RuleError, match=text):
        total.backward()


def test_what_is_no_op_is_refused(op):
    with pytest.raises(FuncaotError, match="was not given an op"):
        funcaot.register_derivative(torch.sin, formula=torch.sin)
    with pytest.raises(FuncaotError, match="no rule"):
        funcaot.register_derivative(op)


def test_dropout_inside_of_a_fused_backward_is_refused():
    """Kernels that drop weights don't say which; that of the CPU never drops any."""
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    rule = table._table[backward]
    given = [torch.randn(1, 1, 3, 2) for _ in range(5)]
    with pytest.raises(FuncaotError, match="drops weights at random"):
        rule.vjp((given[0], None, None), *given, None, 0.5, False, wanted=[True] * 8)


def test_a_number_where_the_op_has_a_tensor():
    op = torch.ops.aten.floor_divide.default
    funcaot.register_derivative(
        op, formula=lambda x, y: torch.div(x, y, rounding_mode="floor") + 0 * x
    )
    try:
        x = torch.tensor([-7.0, 3.0], requires_grad=True)
        whole = torch.tensor([-7, 3])

        def function(x, whole):
            return (x // 2) * x, whole // 2, whole // 2.5

        for run in (funcaot.compile(function, backend="eager"), function):
            with funcaot.install():
                found = run(x, whole)
                (gradient,) = torch.autograd.grad(found[0].sum(), x)
            assert gradient.tolist() == [-4.0, 1.0]
            assert [value.tolist() for value in found[1:]] == [[-4, 1], [-3.0, 1.0]]
            assert found[2].dtype == torch.float32
    finally:
        forget(op)
