"""What people write wrong at a Function or at ``compile``, and what they are told."""

import traceback

import numpy as np
import pytest
import torch
from torch.autograd.function import once_differentiable

import funcaot
from funcaot.errors import ArgumentError, FuncaotError, MissingRuleError, RuleError


class Forgot(funcaot.Function):
    @staticmethod
    def forward(x, factor):
        return factor * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad, None


class TakesContext(funcaot.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Once(funcaot.Function):
    @staticmethod
    def forward(x):
        return x * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return 2 * grad * ctx.saved_tensors[0]


class ReadsValue(funcaot.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return 2 * x if x.item() > 0 else 3 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class TwoThings(Once):
    @staticmethod
    def vmap(info, in_dims, x):
        return x * x


X = torch.ones(3)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Forgot.apply(X, 2),
        lambda: torch.func.grad(lambda x: Forgot.apply(x, 2).sum())(X),
        lambda: funcaot.compile(lambda x: Forgot.apply(x, 2), backend="eager")(X),
    ],
    ids=["called", "under grad", "compiled"],
)
def test_a_forgotten_setup_context_is_named(call):
    with pytest.raises(ArgumentError, match=r"no `setup_context`.*'x', is taken for ctx"):
        call()


def test_too_many_arguments_are_no_forgotten_setup_context():
    with pytest.raises(ArgumentError, match="doesn't take: too many positional"):
        TakesContext.apply(X, X)


def test_reading_a_value_under_vmap_names_the_function_and_torch_where():
    with pytest.raises(RuleError, match=r"ReadsValue was called under vmap") as caught:
        torch.func.vmap(ReadsValue.apply)(X)
    assert "torch.where" in str(caught.value)
    assert f"{__file__}:" in str(caught.value)


def test_reading_a_value_in_a_compiled_function_under_vmap_names_torch_where():
    compiled = funcaot.compile(lambda x: 2 * x if x.item() > 0 else x, backend="eager")
    with pytest.raises(FuncaotError, match=r"torch\.where.* vmap") as caught:
        torch.func.vmap(compiled)(X)
    assert "it reads a number (.item(), float() or a branch)" in str(caught.value)


@pytest.mark.parametrize("rule", ["missing", "wrong"])
def test_errors_of_rules_say_where_the_class_is(rule):
    function, kind = (Once, MissingRuleError) if rule == "missing" else (TwoThings, RuleError)
    line = function.forward.__code__.co_firstlineno
    with pytest.raises(kind, match=f"Defined: .*{function.__name__}, its forward at") as caught:
        torch.func.vmap(function.apply)(X)
    assert f"{__file__}:{line}." in str(caught.value)


def twice(function, x=X):
    def first(x):
        return torch.func.grad(lambda x: function(x).sum())(x).sum()

    return torch.func.grad(first)(x)


@pytest.mark.parametrize("how", ["torch.func", "compiled inside", "eager", "inductor"])
def test_once_differentiable_names_the_function(how):
    def used(x):
        return Once.apply(x) * x

    def by_autograd(function):
        x = torch.ones(3, requires_grad=True)
        (gradient,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        torch.autograd.grad(gradient.sum(), x)

    calls = {
        "torch.func": lambda: twice(Once.apply),
        "compiled inside": lambda: funcaot.compile(lambda x: twice(Once.apply, x), backend="eager")(
            X
        ),
        "eager": lambda: by_autograd(funcaot.compile(used, backend="eager")),
        "inductor": lambda: by_autograd(funcaot.compile(used)),
    }
    for _ in range(2):
        with pytest.raises(RuleError, match=r"once_differentiable: the backward of Once") as caught:
            calls[how]()
        assert f"{__file__}:" in str(caught.value)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("read", [lambda x: x.item() > 0, lambda x: bool(x > 0), float])
def test_reading_a_value_under_vmap_inside_names_vmap_and_torch_where(read, backend):
    function = torch.func.vmap(lambda x: 2 * x if read(x) else x)
    compiled = funcaot.compile(lambda x: function(x), backend=backend)
    for _ in range(2):
        with pytest.raises(FuncaotError, match=r"reads the value of a tensor under vmap") as caught:
            compiled(X)
        assert "torch.where" in str(caught.value)
        assert f"{__file__}:" in str(caught.value)


def test_keywords_of_torch_compile_that_mean_nothing_new():
    for keywords in ({"fullgraph": True}, {"mode": "default"}, {"options": None}):
        compiled = funcaot.compile(torch.sin, backend="eager", **keywords)
        torch.testing.assert_close(compiled(X), X.sin())
    assert funcaot.compile(torch.sin, disable=True) is torch.sin

    @funcaot.compile(backend="eager", fullgraph=True)
    def double(x):
        return 2 * x

    torch.testing.assert_close(double(X), 2 * X)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"mode": "max-autotune"}, r"torch\._inductor\.config\.patch"),
        ({"options": {"max_autotune": True}}, r"torch\._inductor\.config\.patch"),
        ({"fullgraph": "yes"}, "True, False or None"),
        ({"disable": "yes"}, "True or False"),
        ({"polcy": "memory"}, "did you mean `policy`"),
        ({"dynamic": "yes"}, "sizes that change are left open by themselves"),
    ],
)
def test_keywords_that_are_refused_say_what_to_do(keywords, message):
    with pytest.raises(FuncaotError, match=message):
        funcaot.compile(torch.sin, **keywords)


def test_a_missing_compiler_is_what_the_error_begins_with(monkeypatch):
    from torch._inductor.exc import InvalidCxxCompiler

    def compiler(graph, inputs):
        raise InvalidCxxCompiler

    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FuncaotError, match=r"^No working C\+\+ compiler") as caught:
        funcaot.compile(lambda x: x.sin(), backend=compiler)(X)
    assert "no-such-compiler" in str(caught.value)
    assert caught.value.__suppress_context__
    shown = traceback.format_exception(caught.value)
    lines = "".join(shown).splitlines()
    found = [number for number, line in enumerate(lines) if "No working C++" in line]
    assert found[0] <= 12
    assert "Instead: install one" in lines[-1]


RESULTS = {
    "an array": lambda grad: grad.numpy(),
    "a list": lambda grad: [grad],
    "a number": lambda grad: 2.0,
    "two gradients": lambda grad: (grad, grad),
    "too small": lambda grad: grad[:2],
    "another shape": lambda grad: grad.repeat(2),
}


@pytest.mark.parametrize("result", RESULTS)
@pytest.mark.parametrize("how", ["traced", "opaque"])
def test_what_a_backward_may_not_return(result, how):
    """Told alike, also of a backward that runs on real values."""

    class Returns(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            if how == "opaque":
                grad.numpy()
            return RESULTS[result](grad)

    function = funcaot.compile(lambda x: Returns.apply(x), backend="eager")
    x = torch.ones(3, requires_grad=True)
    for _ in range(2):
        with pytest.raises(funcaot.errors.RuleError, match=r"backward of Returns .* returned"):
            function(x).backward(torch.ones(3))
    with pytest.raises((RuntimeError, TypeError)):
        Returns.apply(x).backward(torch.ones(3))


@pytest.mark.parametrize("reads", [lambda x: x.numpy() * 2, lambda x: np.sin(x), np.asarray])
def test_reading_an_array_says_so(reads):
    compiled = funcaot.compile(lambda x: torch.as_tensor(reads(x)), backend="eager")
    with pytest.raises(funcaot.errors.UnsupportedError) as found:
        compiled(torch.ones(3))
    assert "an array of NumPy" in str(found.value)
    assert "compute with torch" in found.value.remedy
    assert "vmap" not in str(found.value)
    assert "subclasses" not in str(found.value)
