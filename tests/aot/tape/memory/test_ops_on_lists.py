"""Ops on lists of tensors (``torch._foreach_mul``), whose nodes of autograd hide what they save."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


def in_place(op):
    def function(a, b):
        targets = [a * 1, b * 1]
        op(targets, [b, a])
        return targets

    return function


PROGRAMS = {
    "mul": lambda a, b: torch._foreach_mul([a, b], [b, a]),
    "one result": lambda a, b: torch._foreach_mul([a, b], [b, a])[0],
    "addcmul": lambda a, b: torch._foreach_addcmul([a, b], [b, a], [a, a]),
    "saves its result": lambda a, b: torch._foreach_exp([a, b]),
    "maximum": lambda a, b: torch._foreach_maximum([a, b], [b, a]),
    "norm": lambda a, b: torch._foreach_norm([a, b]),
    "after another": lambda a, b: torch._foreach_mul(torch._foreach_exp([a, b]), [b, a]),
    "in place": in_place(torch._foreach_mul_),
    "in place, saves its result": in_place(lambda x, y: torch._foreach_tanh_(x)),
    "in place, of three": in_place(lambda x, y: torch._foreach_addcmul_(x, y, y)),
}


def outcome(function, n):
    made = torch.Generator().manual_seed(n)
    leaves = [torch.randn(n, n, generator=made, requires_grad=True) for _ in range(2)]
    result = function(*leaves)
    results = [result] if isinstance(result, torch.Tensor) else list(result)
    first = torch.autograd.grad(sum(x.pow(2).sum() for x in results), leaves, create_graph=True)
    return results, first, torch.autograd.grad(sum(x.pow(2).sum() for x in first), leaves)


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program):
    function = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for n in (3, 5, 4):
        torch.testing.assert_close(outcome(compiled, n), outcome(function, n), rtol=1e-4, atol=1e-4)


def written_after(a, b):
    values = torch._foreach_exp([a, b])
    values[0].mul_(2)
    return values


def operand_written_after(a, b):
    x = a * 1
    products = torch._foreach_mul([x, b], [b, x])
    x.mul_(2)
    return products


@pytest.mark.parametrize("function", [written_after, operand_written_after])
def test_writing_to_what_was_saved_is_eagers_error(function):
    for each in (function, funcaot.compile(function, backend="eager")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outcome(each, 3)
