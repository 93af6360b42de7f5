"""Ops that torch's tracing loses: what they write to ``out``, in place, or return as zeros."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER

BACKENDS = pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
MATRIX = torch.tensor([[2.0, 1, 0], [1, 3, 1], [0, 1, 4]], dtype=torch.float64)


def into(op, shape, dtype=torch.float64):
    def function(x):
        out = torch.full(shape, 7, dtype=dtype)
        op(x, out=out)
        return out

    return function


def into_a_part(x):
    out = torch.zeros(3, dtype=torch.int64)
    torch.linalg.matrix_rank(x, out=out[1])
    return out


CASES = {
    "rank": into(torch.linalg.matrix_rank, (), torch.int64),
    "rank of symmetric": into(
        lambda x, out: torch.linalg.matrix_rank(x, hermitian=True, out=out), (), torch.int64
    ),
    "rank into a part": into_a_part,
    "solution": into(lambda x, out: torch.linalg.solve(x, x[0], out=out), (3,)),
    "inverse": into(torch.linalg.inv, (3, 3)),
    "condition": into(torch.linalg.cond, ()),
    "power": into(lambda x, out: torch.linalg.matrix_power(x, 3, out=out), (3, 3)),
    "chain": into(lambda x, out: torch.linalg.multi_dot([x, x, x], out=out), (3, 3)),
    "transform": into(torch.fft.ihfft2, (3, 2), torch.complex128),
    "polygamma": lambda x: x.clone().polygamma_(1),
    "polygamma of a view": lambda x: (y := x + 1, y.t().polygamma_(2))[0],
}


@BACKENDS
@pytest.mark.parametrize("case", CASES)
def test_what_is_written(case, backend):
    compiled = funcaot.compile(CASES[case], backend=backend)
    for matrix in (MATRIX + 1, MATRIX, MATRIX + 1):
        found, wanted = compiled(matrix), CASES[case](matrix)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


@BACKENDS
def test_the_callers_out_is_written(backend):
    def function(x, out):
        return torch.linalg.matrix_rank(x, out=out)

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        out = torch.full((), 7)
        assert compiled(MATRIX, out) is out
        assert out == 3


@BACKENDS
@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_gradients_that_are_zero(order, backend):
    x = torch.tensor([[1.0, -2, 3]], requires_grad=True)
    compiled = funcaot.compile(
        lambda x: (x.view(-1).abs() * x.view(-1)).view(x.shape), backend=backend
    )
    y = compiled(x)
    for _ in range(order):
        if not y.requires_grad:
            return
        (y,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    wanted = {1: 2 * x.abs(), 2: 2 * x.sign()}.get(order, torch.zeros_like(x))
    torch.testing.assert_close(y, wanted)


@BACKENDS
@pytest.mark.parametrize("shape", [(), (1,), (2,)])
def test_gradients_of_put(shape, backend):
    index, source = torch.zeros(shape, dtype=torch.int64), torch.randn(shape, requires_grad=True)
    x = torch.randn(1, requires_grad=True)

    def function(x, source):
        return x.put(index, source, accumulate=True).square()

    compiled = funcaot.compile(function, backend=backend)
    for _ in range(2):
        found, wanted = (
            torch.autograd.grad(call(x, source).sum(), (x, source)) for call in (compiled, function)
        )
        torch.testing.assert_close(found, wanted)
