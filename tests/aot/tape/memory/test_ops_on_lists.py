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


def counted(targets):
    PUBLIC.mul_(targets, 3.0)
    return [target * (target._version + 1) for target in targets]


# The same as functions of Python, which torch has since 2.15.
PUBLIC = getattr(torch, "foreach", None)
PROGRAMS_OF_PUBLIC = {
    "mul": lambda a, b: PUBLIC.mul([a, b], [b, a]),
    "saves its result": lambda a, b: PUBLIC.exp([a, b]),
    "a number": lambda a, b: PUBLIC.clamp_max([a, b], 0.5),
    "in place, saves its result": in_place(lambda x, y: PUBLIC.tanh_(x)),
    "versions": lambda a, b: counted([a * 1, b * 1]),
}


@pytest.mark.skipif(PUBLIC is None, reason="torch.foreach is of torch 2.15")
@pytest.mark.parametrize("program", PROGRAMS_OF_PUBLIC)
def test_public_ones_as_in_eager(program):
    function = PROGRAMS_OF_PUBLIC[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    torch.testing.assert_close(outcome(compiled, 3), outcome(function, 3), rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(PUBLIC is None, reason="torch.foreach is of torch 2.15")
def test_public_ones_write_to_what_was_saved():
    def function(a, b):
        x = a.exp()
        PUBLIC.mul_([x], 2.0)
        return [x, b]

    for each in (function, funcaot.compile(function, backend="eager")):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outcome(each, 3)


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
