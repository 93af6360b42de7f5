"""What ctx allows a Function to do, inside a compiled function, against eager autograd."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.programs.differential import Inputs, check


def _function(forward, backward):
    members = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Rule", (torch.autograd.Function,), members)


def _double_in_place(ctx, *tensors):
    ctx.mark_dirty(*tensors)
    for tensor in tensors:
        tensor.mul_(2)
    return tensors if len(tensors) > 1 else tensors[0]


def _twice(ctx, x):
    y = x * 2
    return y, y


def _first_of(ctx, pair):
    ctx.save_for_backward(*pair)
    return pair[0] * pair[1]


def _times_first(ctx, x, pair):
    ctx.save_for_backward(pair[0])
    return x * pair[0]


Double = _function(_double_in_place, lambda ctx, g: 3 * g)
DoubleAll = _function(_double_in_place, lambda ctx, *g: tuple(3 * value for value in g))
Twice = _function(_twice, lambda ctx, g, h: 3 * g + h)
FirstOf = _function(_first_of, lambda ctx, g: None)
TimesFirst = _function(_times_first, lambda ctx, g: (g * ctx.saved_tensors[0], None))

PROGRAMS = {
    "an item changed in place": lambda x: (lambda y: (Double.apply(y[0]), y))(x.clone()),
    "a base after its view": lambda x: (lambda y: (Double.apply(y.view(-1)), y)[1])(x.clone()),
    "a column": lambda x: (lambda y: (Double.apply(y[:, 1]) * y[:, 0], y))(x.clone()),
    "one tensor given twice": lambda x: (lambda y: (DoubleAll.apply(y, y)[0] * 1, y))(x.clone()),
    "two views": lambda x: (lambda y: (DoubleAll.apply(y[0], y[1]), y)[1])(x.clone()),
    "one tensor returned twice": lambda x: [value * 1 for value in Twice.apply(x)],
    "a pair": lambda x: FirstOf.apply((x, x + 1)) + x,
    "a tensor and a list": lambda x: TimesFirst.apply(x, [x.detach() + 1, 2.0]),
    "a dictionary": lambda x: TimesFirst.apply(x, {0: x.detach() + 1}),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name):
    program, outcomes = PROGRAMS[name], []
    compiled = funcaot.compile(program, backend="eager")
    for function in (program, compiled, compiled):
        x = torch.arange(1.0, 5.0, dtype=torch.float64).view(2, 2).requires_grad_()
        try:
            outputs = function(x)
            outputs = outputs if isinstance(outputs, tuple | list) else [outputs]
            total = sum((k + 1) * (value**2).sum() for k, value in enumerate(outputs))
            outcomes.append([*outputs, *torch.autograd.grad(total, x)])
        except RuntimeError as error:
            outcomes.append([str(error)])
    for found in outcomes[1:]:
        assert len(found) == len(outcomes[0])
        if len(found) > 1:
            assert_close(found, outcomes[0])


def test_what_can_be_saved():
    def forward(ctx, x):
        ctx.save_for_backward([x])
        return x * 2

    rule = _function(forward, lambda ctx, g: g)
    for function in (rule.apply, funcaot.compile(rule.apply, backend="eager")):
        with pytest.raises(TypeError, match="can only save variables, but argument 0 is of type"):
            function(torch.ones(2, requires_grad=True))


def test_a_changed_input_that_shares_memory():
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        return x.mul_(2).add_(y)

    rule = _function(forward, lambda ctx, g: (2 * g, g))
    compiled = funcaot.compile(
        lambda x: (lambda y: rule.apply(y, y[0]))(x.clone()), backend="eager"
    )
    with pytest.raises(UnsupportedError, match="changes its input 0 in place"):
        compiled(torch.ones(2, 2))


def test_an_input_as_a_constant_output():
    def forward(ctx, x):
        ctx.mark_non_differentiable(x)
        return x, x * 2

    rule = _function(forward, lambda ctx, g, h: 2 * h)
    compiled = funcaot.compile(rule.apply, backend="eager")
    assert_close(compiled(torch.ones(2)), (torch.ones(2), torch.full((2,), 2.0)))
    with pytest.raises(UnsupportedError, match="marks it non-differentiable"):
        compiled(torch.ones(2, requires_grad=True))


class Same(torch.autograd.Function):
    """Reversal of gradients."""

    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient


class First(torch.autograd.Function):
    """A view."""

    @staticmethod
    def forward(x):
        return x[0]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(ctx.shape)


def _writes_first(apply, x):
    y = apply(x)
    x.add_(1)
    return y * 2


def _writes_second(apply, x):
    y = apply(x)
    y.add_(1)
    return x * 2, y


VIEWS = {
    "returned": lambda apply, x: apply(x),
    "returned with its base": lambda apply, x: (apply(x), x),
    "of an intermediate": lambda apply, x: apply(x * 2) + 1,
    "base written": _writes_first,
    "view written": _writes_second,
    "view written, detached": lambda apply, x: (apply(x).detach().mul_(2), x * 2),
    "base of an intermediate written": lambda apply, x: _writes_first(apply, x * 2),
    "base written that is not used again": lambda apply, x: (apply(x) * 2, x.add_(1))[0],
}


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("rule", [Same, First])
def test_views_of_inputs(rule, kind, grad, grad_mode):
    """What is in the same memory stays so; where that can't be told it is refused."""

    def make():
        leaf = torch.arange(1.0, 5.0, dtype=torch.float64).view(2, 2).requires_grad_(grad)
        return Inputs([leaf + 1], [], [leaf])

    def program(x):
        return VIEWS[kind](rule.apply, x)

    writes = "written" in kind
    # Eager refuses to write to such views, or to use them after a write to their base.
    targets = () if writes or grad else None
    refused = writes and grad and "not used again" not in kind
    if refused and not (grad_mode is False and "intermediate" in kind):
        with pytest.raises(UnsupportedError, match="that memory is written to and then used"):
            check(program, make, grad_mode=grad_mode, writes=targets)
    else:
        check(program, make, grad_mode=grad_mode, writes=targets)


class Five(torch.autograd.Function):
    """A view whose tangents aren't those of a view."""

    forward = staticmethod(lambda x: x.view(-1))
    setup_context = staticmethod(lambda ctx, inputs, output: None)
    jvp = staticmethod(lambda ctx, tangent: 5 * tangent.view(-1))


@pytest.mark.parametrize("grad_mode", [True, False])
@pytest.mark.parametrize("inside", [True, False])
def test_a_view_keeps_its_rule_in_no_grad(inside, grad_mode):
    def program(x):
        with torch.set_grad_enabled(inside):
            return Five.apply(x * 2) * 3

    compiled, x = funcaot.compile(program, backend="eager"), torch.ones(2, 2)
    compiled(x)
    with torch.set_grad_enabled(grad_mode):
        assert_close(torch.func.jvp(compiled, (x,), (x,))[1], torch.full((4,), 30.0))


WEIGHT = torch.arange(1.0, 3.0, dtype=torch.float64)


class Holder:
    """An object that autograd doesn't look into."""

    def __init__(self, value):
        self.value = value


HOLDER = Holder(torch.ones(2, dtype=torch.float64))


def _saves_held(ctx, x, holder):
    ctx.save_for_backward(holder.value)
    return x * holder.value


def _keeps_module(ctx, x, module):
    ctx.module = module
    return x * module.weight.detach()[0]


Global = _function(lambda ctx, x: x * WEIGHT, lambda ctx, g: g * WEIGHT)
Held = _function(_saves_held, lambda ctx, g: (g * ctx.saved_tensors[0], None))
OfModule = _function(_keeps_module, lambda ctx, g: (g * ctx.module.weight.detach()[0], None))
MODULE = torch.nn.Linear(2, 2, dtype=torch.float64)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: Global.apply(x).sin(),
        lambda x: Held.apply(x, HOLDER).sin(),
        lambda x: OfModule.apply(x, MODULE).sin(),
    ],
)
def test_tensors_that_are_no_operands(program):
    """A Function that uses others runs on real values, where those are what they are."""

    def make():
        x = torch.tensor([0.5, 1.5], dtype=torch.float64, requires_grad=True)
        return Inputs([x], [], [x])

    compiled = check(program, make)
    assert "uses a tensor that isn't one of its operands" in str(funcaot.report(compiled))
    before = (WEIGHT.clone(), HOLDER.value.clone(), MODULE.weight.detach().clone())
    try:
        with torch.no_grad():
            for tensor in (WEIGHT, HOLDER.value, MODULE.weight):
                tensor.mul_(2)
        check(program, make, compiled=compiled)
    finally:
        with torch.no_grad():
            for tensor, value in zip((WEIGHT, HOLDER.value, MODULE.weight), before, strict=True):
                tensor.copy_(value)


def _appends(ctx, x, values):
    values.append(x.sin())
    return x * 2


Appends = _function(_appends, lambda ctx, g: (2 * g, None))
Returns = _function(lambda ctx, x: (x * 2, Holder(x)), lambda ctx, g, h: 2 * g)


def test_what_hides_tensors():
    with pytest.raises(UnsupportedError, match="returns a Holder that holds tensors"):
        funcaot.compile(lambda x: Returns.apply(x)[0], backend="eager")(
            torch.ones(2, requires_grad=True)
        )


def _closure(x):
    y = x * 2
    return lambda z: y * z


@pytest.mark.parametrize(
    "program",
    [
        lambda x: torch.func.vjp(torch.sin, x)[1],
        lambda x: torch.func.vjp(lambda x: torch.func.vjp(torch.sin, x)[1](x)[0], x)[1],
    ],
    ids=["pullback", "pullback of a pullback"],
)
def test_a_function_that_holds_tensors_is_no_result(program):
    with pytest.raises(UnsupportedError, match=r"of class \w+ that holds tensors"):
        funcaot.compile(program, backend="eager")(torch.ones(2))


@pytest.mark.parametrize(
    "program",
    [
        _closure,
        lambda x: lambda z, y=x * 2: y * z,
        lambda x: functools.partial(torch.mul, x * 2),
    ],
    ids=["closure", "default", "partial"],
)
def test_a_function_that_is_returned_is_each_calls_own(program):
    compiled = funcaot.compile(program, backend="eager")
    made = [compiled(torch.full((2,), value)) for value in (1.0, 2.0, 3.0)]
    found = [function(torch.ones(2))[0].item() for function in made]
    assert found == [2.0, 4.0, 6.0]


def test_an_object_that_holds_tensors_of_the_program():
    x = torch.ones(2, requires_grad=True)

    def program(x):
        return Held.apply(x, Holder(x * 2))

    compiled = funcaot.compile(program, backend="eager")
    for _ in range(3):
        assert_close(compiled(x), program(x))
        ours, theirs = (torch.autograd.grad(f(x).sum(), x) for f in (compiled, program))
        assert_close(ours, theirs)


def test_a_list_is_the_callers():
    values = []
    funcaot.custom_function_call(Appends, torch.ones(2), values)
    assert len(values) == 1
