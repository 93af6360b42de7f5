"""In-place ops whose result doesn't fit raise what eager raises, in a capture too."""

import pytest
import torch

import funcaot

TRUTH = torch.tensor([True, False])
WHOLE = torch.tensor([1, 2])
REAL = torch.tensor([0.5, 0.25])
COMPLEX = torch.tensor([1 + 1j, 2])

REFUSED = {
    "add a complex number": (REAL, lambda x: x.add_(1j)),
    "add a complex tensor": (REAL, lambda x: x.add_(COMPLEX)),
    "add fractions": (WHOLE, lambda x: x.add_(REAL)),
    "multiply truth": (TRUTH, lambda x: x.mul_(2)),
    "multiply its data": (TRUTH, lambda x: x.data.mul_(2)),
    "divide": (WHOLE, lambda x: x.div_(2)),
    "addcdiv": (WHOLE, lambda x: x.addcdiv_(REAL, REAL)),
    "ldexp": (WHOLE, lambda x: x.ldexp_(WHOLE)),
    "logit": (WHOLE, lambda x: x.logit_()),
    "foreach": (WHOLE, lambda x: torch._foreach_mul_([x], 1.5)),
    "what it computed": (REAL, lambda x: (x > 0.3).mul_(1.5)),
    "a large one": (torch.zeros(5000, dtype=torch.int64), lambda x: x.mul_(0.5)),
}
FITTING = {
    "add a number": (WHOLE, lambda x: x.add_(2)),
    "copy": (WHOLE, lambda x: x.copy_(REAL * 9)),
    "fill": (WHOLE, lambda x: x.fill_(2.7)),
    "compare": (TRUTH, lambda x: x.logical_or_(REAL > 0.3)),
    "floor": (WHOLE, lambda x: x.floor_divide_(2)),
    "draw": (WHOLE, lambda x: x.random_(5)),
    "complex": (COMPLEX, lambda x: x.mul_(REAL)),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses(name, dynamic):
    value, write = REFUSED[name]

    def function(x):
        write(x)
        return x + 0

    with pytest.raises(RuntimeError) as expected:
        function(value.clone())
    with pytest.raises(RuntimeError) as ours:
        funcaot.compile(function, backend="eager", dynamic=dynamic)(value.clone())
    assert str(ours.value).splitlines()[0] == str(expected.value).splitlines()[0]


@pytest.mark.parametrize("name", FITTING)
def test_what_fits(name):
    value, write = FITTING[name]

    def function(x):
        write(x)
        return x + 0

    found = []
    for run in (funcaot.compile(function, backend="eager"), function):
        torch.manual_seed(1)
        found.append((run(value.clone()), torch.rand(2)))
    torch.testing.assert_close(*found)
