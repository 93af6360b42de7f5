"""Products of groups of rows: mixtures of experts, in the dtypes and layouts that eager takes."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("error::funcaot.errors.CaptureWarning")

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def grouped(left, right, offsets):
    """The product of each group of rows, by its own matrix."""
    return F.grouped_mm(left, right, offs=offsets)


def rows_by_matrices(total, dtype):
    return torch.randn(total, 8, dtype=dtype), torch.randn(3, 8, 16, dtype=dtype), total


def rows_by_transposed_ones(total, dtype):
    """Rows begin at multiples of 16 bytes: of 4 or 8 values."""
    width = 12 if dtype == torch.float32 else 16
    return torch.randn(total, 8, dtype=dtype), torch.randn(3, width, 8, dtype=dtype).mT, total


def columns_by_rows(total, dtype):
    return (
        torch.randn(8, 8 * total, dtype=dtype),
        torch.randn(8 * total, 16, dtype=dtype),
        8 * total,
    )


def matrices(total, dtype):
    return torch.randn(3, total, 8, dtype=dtype), torch.randn(3, 8, 16, dtype=dtype), None


def result_and_gradients(function, left, right, offsets):
    leaves = [each.detach().requires_grad_() for each in (left, right)]
    result = function(*leaves, offsets)
    return result, *torch.autograd.grad(result.float().square().sum(), leaves)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "make", [rows_by_matrices, rows_by_transposed_ones, columns_by_rows, matrices]
)
def test_like_eager(make, dtype):
    compiled = funcaot.compile(grouped, backend=COMPILER)
    for total in (5, 5, 7, 9):
        left, right, end = make(total, dtype)
        offsets = None if end is None else torch.tensor([2, 2, end], dtype=torch.int32)
        expected = result_and_gradients(grouped, left, right, offsets)
        found = result_and_gradients(compiled, left, right, offsets)
        assert_close(found, expected, rtol=0, atol=0)
        assert [each.stride() for each in found] == [each.stride() for each in expected]
    assert funcaot.report(compiled).cache_misses == 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_padded_rows(dtype):
    """The strides of a result that isn't as wide as a multiple of 16 bytes."""
    compiled = funcaot.compile(grouped, backend="eager")
    left, right = torch.randn(5, 8, dtype=dtype), torch.randn(3, 6, 8, dtype=dtype).mT
    offsets = torch.tensor([2, 2, 5], dtype=torch.int32)
    found, expected = compiled(left, right, offsets), grouped(left, right, offsets)
    assert_close(found, expected, rtol=0, atol=0)
    assert found.stride() == expected.stride() == (8, 1)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_on_inductor(dtype):
    compiled = funcaot.compile(grouped)
    for total in (5, 7):
        left, right, end = rows_by_transposed_ones(total, dtype)
        offsets = torch.tensor([2, 2, end], dtype=torch.int32)
        expected = result_and_gradients(grouped, left, right, offsets)
        found = result_and_gradients(compiled, left, right, offsets)
        assert_close(found, expected)
        assert [each.stride() for each in found] == [each.stride() for each in expected]


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.randn(5, 8), torch.randn(3, 8, 5)),
        (torch.randn(5, 8).double(), torch.randn(3, 8, 16).double()),
        (torch.randn(5, 8), torch.randn(2, 8, 16)),
        (torch.randn(5, 8), torch.randn(3, 4, 16)),
    ],
    ids=["strides", "dtype", "groups", "sizes"],
)
def test_refused_like_eager(left, right):
    offsets = torch.tensor([2, 2, 5], dtype=torch.int32)
    compiled = funcaot.compile(grouped, backend="eager")
    with pytest.raises(RuntimeError) as expected:
        grouped(left, right, offsets)
    with pytest.raises(RuntimeError) as found:
        compiled(left, right, offsets)
    assert str(found.value).split("\n")[0] == str(expected.value).split("\n")[0]
