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


# Ops of which functionalization gives some tensors the shape of the result.
LARGER = {
    **dict.fromkeys(("pow_", "eq_", "copysign_", "remainder_", "floor_divide_", "xlogy_", "gcd_")),
    "clamp_": lambda x, other: x.clamp_(min=other),
    "masked_scatter_": lambda x, other: x.masked_scatter_(other > 0, torch.ones(6)),
    "foreach maximum": lambda x, other: torch._foreach_maximum_([x], [other]),
    "foreach pow": lambda x, other: torch._foreach_pow_([x], [other]),
}


@pytest.mark.filterwarnings("ignore:An output with one or more elements was resized")
@pytest.mark.parametrize("name", LARGER)
def test_a_result_that_is_larger_than_what_is_written_to(name):
    write = LARGER[name] or (lambda x, other: getattr(x, name)(other))
    other = torch.arange(6).view(2, 3) + (1 if name == "gcd_" else 1.0)

    def function(x, other):
        x = x + 0
        write(x, other)
        return x

    for shape in ((3,), (1, 3), (2, 1)):
        x = torch.ones(shape, dtype=other.dtype)
        with pytest.raises(RuntimeError) as expected:
            function(x, other)
        with pytest.raises(RuntimeError) as ours:
            funcaot.compile(function, backend="eager")(x, other)
        assert str(ours.value).splitlines()[0] == str(expected.value).splitlines()[0]
    x = torch.ones(2, 3, dtype=other.dtype)
    found = funcaot.compile(function, backend="eager")(x, other[:1])
    torch.testing.assert_close(found, function(x, other[:1]))


def test_lists_of_other_lengths():
    def function(x):
        x = x + 0
        torch._foreach_add_([x, x], [torch.ones(3)])
        return x

    for run in (function, funcaot.compile(function, backend="eager")):
        with pytest.raises(RuntimeError, match="the same number of tensors, got 2 and 1"):
            run(torch.ones(3))
