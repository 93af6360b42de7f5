"""Operations on numbers alone, which make a tensor of none: `torch.add(2, 3.5)`."""

import pytest
import torch
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER

FUNCTIONS = {
    "returned": lambda x, a, b: torch.add(a, b),
    "several": lambda x, a, b: (torch.mul(a, b), torch.sub(a, b), torch.true_divide(a, b)),
    "rounded": lambda x, a, b: torch.div(a, b, rounding_mode="floor"),
    "used": lambda x, a, b: x * torch.add(a, b),
    "used with a gradient": lambda x, a, b: (x * torch.mul(a, b)).sin(),
    "computed with": lambda x, a, b: torch.mul(a, b).exp() + 1,
    "written to": lambda x, a, b: torch.add(a, b).add_(1).mul_(2),
    "written with a tensor": lambda x, a, b: torch.add(a, b).mul_(x.sum()),
    "read": lambda x, a, b: x * torch.add(a, b).item(),
    "as a view": lambda x, a, b: x + torch.add(a, b).expand(3),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_operations_on_numbers(name, dtype):
    function = FUNCTIONS[name]
    compiled = funcaot.compile(function, backend=COMPILER)
    for a, b in ((4, 3.25), (4, 3.25), (2, 0.5)):
        x = torch.ones(3, dtype=dtype, requires_grad=True)
        y = torch.ones(3, dtype=dtype, requires_grad=True)
        made, expected = compiled(x, a, b), function(y, a, b)
        assert_close(made, expected)
        if isinstance(expected, torch.Tensor) and expected.requires_grad:
            made.sum().backward()
            expected.sum().backward()
            assert_close(x.grad, y.grad)


def test_numbers_in_a_transform():
    def function(x):
        return torch.func.vmap(torch.func.grad(lambda row: (row * torch.add(2, 0.5)).sum()))(x)

    compiled = funcaot.compile(function, backend=COMPILER)
    assert_close(compiled(torch.ones(2, 3)), torch.full((2, 3), 2.5))
