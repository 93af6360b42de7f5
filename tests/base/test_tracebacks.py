"""Errors in a captured function show the user's lines, and what is written there says so."""

import os
import traceback
import warnings

import pytest
import torch

import funcaot
from funcaot.errors import CaptureWarning


def product(x, y):
    return x @ y


def outer(x, y):
    return product(x * 2, y) + 1


def lines_of(call):
    with pytest.raises(RuntimeError) as found:
        call()
    return [frame.line for frame in traceback.extract_tb(found.value.__traceback__)]


SHAPES = (torch.ones(2, 3), torch.ones(2, 3))
DTYPES = (torch.ones(3, 3), torch.ones(3, 3, dtype=torch.float64))


@pytest.mark.parametrize("given", [SHAPES, DTYPES], ids=["shape", "dtype"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_the_users_line_is_the_last(given, backend):
    compiled = funcaot.compile(outer, backend=backend)
    for _ in range(2):
        lines = lines_of(lambda: compiled(*given))
        assert lines[-2:] == ["return product(x * 2, y) + 1", "return x @ y"]
        # Where the call is, the way into the library, and the user's two lines.
        assert len(lines) <= 8


def test_the_message_is_eagers():
    with pytest.raises(RuntimeError) as wanted:
        outer(*DTYPES)
    with pytest.raises(RuntimeError) as found:
        funcaot.compile(outer, backend="eager")(*DTYPES)
    assert str(found.value) == str(wanted.value)


def test_products_of_several_dtypes_that_eager_takes():
    def cast(x, y):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ y

    for function in (cast, lambda x, y: torch.outer(x[0], y[0])):
        compiled = funcaot.compile(function, backend="eager")
        given = (torch.ones(3, 3), torch.ones(3, 3, dtype=torch.bfloat16))
        assert torch.equal(compiled(*given), function(*given))


def test_a_module_of_torchs():
    compiled = funcaot.compile(torch.nn.Sequential(torch.nn.Linear(3, 4)), backend="eager")
    lines = lines_of(lambda: compiled(torch.ones(2, 2)))
    assert lines[-1] == "return F.linear(input, self.weight, self.bias)"
    assert not any("_call_impl" in line for line in lines)


class Projects(funcaot.Function):
    """Its backward fails."""

    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad):
        return grad @ torch.ones(7)


class ForgetsAGradient(Projects):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def backward(ctx, grad):
        return grad


# Functions that fail in their backward, and the lines of the user that it goes through.
BACKWARDS = {
    "in a rule": (lambda x: Projects.apply(x).sum(), ["return grad @ torch.ones(7)"]),
    "in what a rule returned": (lambda x: ForgetsAGradient.apply(x, x).sum(), []),
}


@pytest.mark.parametrize("case", BACKWARDS)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_backward_shows_the_users_lines(case, backend):
    function, wanted = BACKWARDS[case]
    result = funcaot.compile(function, backend=backend)(torch.ones(3, requires_grad=True))
    for _ in range(2):
        with pytest.raises(RuntimeError) as found:
            result.backward(retain_graph=True)
        frames = traceback.extract_tb(found.value.__traceback__)
        shown = [frame for frame in frames if "/torch/" not in frame.filename]
        inside = [frame for frame in shown if "/funcaot/" in frame.filename]
        assert len(inside) <= 4
        assert [frame.line for frame in shown if frame not in inside][1:] == wanted
        assert not any("_subclasses" in frame.filename for frame in frames)


def test_a_refusal_shows_nothing_of_the_inside():
    """Its message has the line; what it is raised from shows that line, too."""
    compiled = funcaot.compile(lambda x: 2 * x if x.item() > 0 else x, backend="eager")
    with pytest.raises(funcaot.errors.UnsupportedError, match=f"at {__file__}") as found:
        torch.func.vmap(compiled)(torch.ones(3))
    frames = traceback.extract_tb(found.value.__traceback__)
    assert frames[-1].line.startswith("raise shortened(error)")
    assert not any("/capture/" in frame.filename for frame in frames)
    cause = traceback.extract_tb(found.value.__cause__.__traceback__)
    assert [frame.filename for frame in cause] == [__file__]


def test_a_forgotten_setup_context_is_all_that_is_shown():
    class Forgot(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return 2 * x

    compiled = funcaot.compile(lambda x: Forgot.apply(x), backend="eager")
    with pytest.raises(funcaot.errors.ArgumentError, match="no `setup_context`") as found:
        compiled(torch.ones(3))
    text = "".join(traceback.format_exception(found.value))
    assert "too many positional" not in text
    assert "inspect.py" not in text


def test_everything_is_shown_on_request():
    compiled = funcaot.compile(outer, backend="eager")
    with funcaot.config.patch(full_traceback=True):
        assert len(lines_of(lambda: compiled(*SHAPES))) > 5


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_writing_a_tensor_warns_once_and_says_what_it_is(backend, capsys):
    def printing(x):
        print(x)
        print(str(x.detach()), f"{x}", [x])
        y = x * 2
        print(y)
        return y

    compiled = funcaot.compile(printing, backend=backend)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        compiled(torch.ones(3))
    assert [(each.category, each.filename) for each in seen] == [(CaptureWarning, __file__)]
    assert "float32[3] is written as text" in str(seen[0].message)
    shown = "float32[3] (being captured)"
    printed = capsys.readouterr().out.splitlines()
    assert printed == [shown, f"{shown} {shown} [{shown}]", shown]
    for _ in range(2):
        compiled(torch.ones(3))
    assert capsys.readouterr().out == ""


def test_tensors_of_torchs_own_captures_are_written_as_before():
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

    with pytest.warns(CaptureWarning):
        funcaot.compile(lambda x: (repr(x), x)[1] * 2, backend="eager")(torch.ones(3))
    with FunctionalTensorMode():
        tensor = FunctionalTensor.to_functional(torch.ones(3))
        assert repr(tensor).startswith("FunctionalTensor(")


class Refusing(funcaot.Function):
    @staticmethod
    def forward(x):
        return x @ torch.ones(5)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


class RefusingBackward(funcaot.Function):
    @staticmethod
    def forward(x):
        return 2 * x

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, cotangent):
        return cotangent @ torch.ones(7)


# What is called, and the last line that is shown.
UNCOMPILED = {
    "plain": (lambda x: Refusing.apply(x).sum(), "return x @ torch.ones(5)"),
    "grad": (torch.func.grad(lambda x: Refusing.apply(x).sum()), "return x @ torch.ones(5)"),
    "jvp": (lambda x: torch.func.jvp(Refusing.apply, (x,), (x,)), "return x @ torch.ones(5)"),
    "backward of grad": (
        torch.func.grad(lambda x: RefusingBackward.apply(x).sum()),
        "return cotangent @ torch.ones(7)",
    ),
    "backward": (
        lambda x: RefusingBackward.apply(x.clone().requires_grad_()).sum().backward(),
        "return cotangent @ torch.ones(7)",
    ),
    "no rule": (
        torch.func.vmap(torch.func.grad(lambda x: RefusingBackward.apply(x).sum())),
        "raise shortened(error)",
    ),
}


@pytest.mark.parametrize("case", UNCOMPILED)
def test_functions_show_little_of_what_runs_their_rules(case):
    function, last = UNCOMPILED[case]
    with pytest.raises(RuntimeError) as found:
        function(torch.ones(3, 4))
    frames = traceback.extract_tb(found.value.__traceback__)
    ours = os.path.dirname(funcaot.__file__)
    # Where Dynamo has been used, transforms are called through something of ours.
    inside = [
        frame
        for frame in frames
        if frame.filename.startswith(ours) and "dynamo" not in frame.filename
    ]
    assert len(inside) <= 2
    assert frames[-1].line.startswith(last)
    with funcaot.config.patch(full_traceback=True), pytest.raises(RuntimeError) as found:
        function(torch.ones(3, 4))
    assert len(traceback.extract_tb(found.value.__traceback__)) > len(frames)
