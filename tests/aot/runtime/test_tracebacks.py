"""Errors in a captured function show the user's lines, and what is written there says so."""

import traceback

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


def test_everything_is_shown_on_request():
    compiled = funcaot.compile(outer, backend="eager")
    with funcaot.config.patch(full_traceback=True):
        assert len(lines_of(lambda: compiled(*SHAPES))) > 5


def test_writing_a_tensor_warns_and_says_what_it_is(capsys):
    def printing(x):
        print(str(x.detach()))
        return x * 2

    compiled = funcaot.compile(printing, backend="eager")
    with pytest.warns(CaptureWarning, match=r"float32\[3\] is written as text") as seen:
        compiled(torch.ones(3))
    assert seen[0].filename == __file__
    assert "float32[3] (being captured)" in capsys.readouterr().out
    compiled(torch.ones(3))
    assert capsys.readouterr().out == ""
