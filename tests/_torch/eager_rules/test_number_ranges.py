"""Numbers that a tensor's dtype doesn't hold: what eager does, in compiled code too."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER

ONE = torch.tensor([1])

OPS = {
    "full": lambda x, v: torch.full((2,), v, dtype=x.dtype),
    "full_like": torch.full_like,
    "new_full": lambda x, v: x.new_full((3,), v),
    "fill_": lambda x, v: x.clone().fill_(v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "an assignment": lambda x, v: x.clone().index_put_((ONE,), torch.as_tensor(v, dtype=x.dtype)),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "clamp": lambda x, v: x.clamp(max=v),
    "pad": lambda x, v: F.pad(x, (1, 1), value=v),
    "threshold": lambda x, v: F.threshold(x, 0.5, v),
    "index_fill": lambda x, v: x.index_fill(0, ONE, v),
    "a factor": lambda x, v: x.add(x, alpha=v),
    "addcmul": lambda x, v: torch.addcmul(x, x, x, value=v),
    "lerp": lambda x, v: torch.lerp(x, x, v),
    "softplus": lambda x, v: F.softplus(x, v),
    "leaky_relu": lambda x, v: F.leaky_relu(x, v),
    "a sum": lambda x, v: x + v,
    "a product": lambda x, v: x * v,
    "a comparison": lambda x, v: x < v,
    "a power": lambda x, v: x.abs() ** v,
}
NUMBERS = {torch.float16: -7e4, torch.bfloat16: 1e39, torch.float32: -1e39, torch.int32: 1 << 40}


def outcome(function, *args):
    try:
        return function(*args), None
    except RuntimeError as error:
        return None, str(error)


def alike(found, wanted):
    assert found[1] == wanted[1]
    assert_close(found[0], wanted[0], equal_nan=True)


@pytest.mark.parametrize("dtype", NUMBERS, ids=str)
@pytest.mark.parametrize("op", OPS)
def test_numbers_that_a_dtype_does_not_hold(op, dtype):
    function, number = OPS[op], NUMBERS[dtype]
    x = torch.tensor([1, -2, 3]).to(dtype)
    compiled = funcaot.compile(lambda x: function(x, number), backend=COMPILER)
    for _ in range(2):
        alike(outcome(compiled, x), outcome(function, x, number))


@pytest.mark.parametrize("op", OPS)
def test_numbers_that_are_read(op):
    """A program for numbers that are held isn't used for one that isn't."""

    def function(x, number):
        return OPS[op](x, float(number))

    compiled = funcaot.compile(function, backend="eager")
    x = torch.tensor([1.0, -2.0, 3.0])
    for value in (0.5, 2.0, 1e39, 3.0, -1e300, float("inf"), 0.25):
        number = torch.tensor(value, dtype=torch.float64)
        alike(outcome(compiled, x, number), outcome(function, x, number))


@pytest.mark.parametrize("op", OPS)
def test_numbers_that_are_arguments(op):
    compiled = funcaot.compile(OPS[op], backend="eager")
    x = torch.tensor([1.0, -2.0, 3.0])
    for value in (0.5, 2.0, 1.5, 1e39, 3.0, -1e300, float("inf"), 0.25):
        alike(outcome(compiled, x, value), outcome(OPS[op], x, value))


@pytest.mark.slow
@pytest.mark.parametrize("op", ["masked_fill", "clamp", "a factor", "a sum"])
def test_on_the_default_backend(op):
    x = torch.tensor([1, -2, 3], dtype=torch.float16)
    compiled = funcaot.compile(lambda x: OPS[op](x, -7e4))
    alike(outcome(compiled, x), outcome(OPS[op], x, -7e4))
