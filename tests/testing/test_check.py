"""``check``: what it finds, and how it shows it."""

import json

import pytest
import torch

import funcaot
from funcaot import Function
from funcaot.errors import FuncaotError
from funcaot.testing import Mismatch, check
from funcaot.testing.check.rendering import as_html, as_json, as_rich, as_text
from funcaot.testing.database.forward_only import BackwardOnly, JvpOnly
from funcaot.testing.database.odd_rules import GradientReversal
from tests.testing import planted_bugs as planted
from tests.testing import planted_functions as functions
from tests.testing import planted_values as hidden

FEW = ["grad", "vmap", "gradient", "inputs unchanged"]


def test_every_transform_of_a_correct_function_passes():
    result = check(hidden.ConjugatesToo)
    assert result.ok
    assert {row.status for row in result.rows} == {"passes"}
    assert {row.compiled for row in result.rows} == {"passes", ""}
    assert {"compile", "vmap_of_grad", "jacfwd_of_jacrev", "make_fx"} <= {
        row.name for row in result.rows
    }


def test_a_missing_rule_is_not_a_wrong_gradient():
    result = check(BackwardOnly, transforms=["gradient", "grad", "jvp", "vmap"])
    assert result.ok
    assert result.row("grad").status == "passes"
    assert result.row("vmap").status == "unsupported"
    assert "generate_vmap_rule" in result.row("vmap").remedy
    assert "generate_jvp_rule" in result.row("jvp").remedy


def test_a_function_with_only_a_jvp():
    result = check(JvpOnly, transforms=["jvp rule", "grad", "jvp"])
    assert result.ok
    assert result.row("grad").status == "unsupported"
    assert "generate_backward_rule" in result.row("grad").remedy


def test_a_wrong_gradient_does_not_blame_the_transforms():
    result = check(planted.WrongSign, transforms=FEW)
    assert result.row("gradient").status == "wrong"
    assert result.row("grad").status == "passes"
    with pytest.raises(Mismatch, match="WrongSign fails 1 of"):
        result.raise_for_failures()


def test_an_odd_rule_passes_with_its_reference():
    def reference(x, strength):
        return (1 + strength) * x.detach() - strength * x

    inputs = (torch.rand(3, dtype=torch.float64), 2.0)
    assert not check(GradientReversal, inputs, transforms=FEW).ok
    assert check(GradientReversal, inputs, ref=reference, transforms=FEW).ok


def test_an_old_style_function_and_a_plain_torch_one():
    class Plain(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return 2 * x * grad

    assert check(Plain, transforms=["gradient", "grad", "vmap_of_grad", "jvp"]).ok


def test_a_compiled_callable_and_a_custom_vjp_function():
    compiled = funcaot.compile(lambda x: x.sin() * x, backend="eager")
    assert check(compiled, transforms=["gradient", "grad", "vmap", "autograd_of_autograd"]).ok

    @funcaot.custom_vjp
    def square(x):
        return x * x

    square.defvjp(lambda x: (x * x, x), lambda x, cotangent: (3 * x * cotangent,))
    result = check(square, transforms=["gradient", "grad"])
    assert result.row("gradient").status == "wrong"


def test_inputs_in_every_form():
    x = torch.rand(2, dtype=torch.float64)
    for inputs in (x, (x,), [x], [(x,), (x.clone(),)]):
        assert check(torch.sin, inputs, transforms=["gradient", "grad"]).ok


def test_the_inputs_are_left_alone():
    x = torch.rand(2, dtype=torch.float64)
    before = x.clone()
    check(planted.MutatesInput, x, transforms=FEW)
    assert torch.equal(x, before)
    assert not x.requires_grad


def test_inputs_that_cannot_be_guessed():
    class Gather(Function):
        @staticmethod
        def forward(x, index):
            return x.gather(-1, index)

    with pytest.raises(FuncaotError, match="give inputs"):
        check(Gather)


def test_an_instance_is_refused():
    with pytest.raises(FuncaotError, match="can't check"):
        check(3, torch.ones(1))
    with pytest.warns(DeprecationWarning, match="instantiated"):
        instance = planted.Correct()
    with pytest.raises(FuncaotError, match="pass the class Correct itself"):
        check(instance)


def test_an_unknown_transform_is_named():
    with pytest.raises(FuncaotError, match="no transform 'gard'"):
        check(torch.sin, transforms=["vmap_of_gard"])


def test_text_json_html_and_rich():
    result = check(planted.WrongSign, transforms=FEW)
    text = as_text(result)
    assert str(result) == text
    assert "WRONG" in text
    assert "FAILED" in text.splitlines()[-1]
    data = json.loads(as_json(result))
    assert data["ok"] is False
    assert {row["status"] for row in data["rows"]} == {"wrong", "passes"}
    assert "<td>gradient</td>" in as_html(result)
    assert as_rich(result) is not None
    assert repr(result).startswith("CheckResult(WrongSign: ")


def test_a_result_that_is_marked_may_jump():
    result = check(functions.RoundedBeside, transforms=["gradient", "jvp rule"], backend=None)
    assert {row.status for row in result.rows} == {"passes"}


def test_a_write_that_changes_no_value_here():
    row = check(functions.ClampsItsInput, transforms=["inputs unchanged"], backend=None).rows[0]
    assert row.status == "wrong"
    assert "mark_dirty" in row.detail


def test_a_dimension_that_one_argument_lacks():
    row = check(functions.MeansOverRows, transforms=["gradient"], backend=None).rows[0]
    assert row.status == "wrong"
    assert "broadcasting rows" in row.detail
