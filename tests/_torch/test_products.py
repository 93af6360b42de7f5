"""Matrix products by brgemm against double precision, in every layout and cut."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
import torch

import funcaot
from funcaot._torch.inductor import products
from funcaot._torch.inductor.products import Matrix, Place, cut, matrix, packed, plan

sys.path.insert(0, str(Path(__file__).parent))
from generated_code import run_for_code

needs_brgemm = pytest.mark.skipif(not products.available(), reason="this machine has no brgemm")

SIZES = [
    (2, 2, 2),
    (5, 7, 3),
    (64, 64, 64),
    (33, 129, 70),
    (100, 1, 50),
    (300, 500, 40),
    (17, 800, 90),
    (2, 64, 300),
    (400, 3, 2),
]


def stored(kind: str, rows: int, columns: int) -> torch.Tensor:
    """A matrix of this shape by rows, by columns, or between other columns, off the beginning."""
    if kind == "rows":
        return torch.randn(rows * columns + 3)[3:].view(rows, columns)
    if kind == "columns":
        return torch.randn(columns, rows).t()
    return torch.randn(rows, columns + 5)[:, 2:-3]


def biases(rows: int, columns: int) -> dict[str, torch.Tensor]:
    return {
        "row": torch.randn(columns),
        "full": torch.randn(rows, columns),
        "column": torch.randn(rows, 1),
        "number": torch.randn(()),
    }


def matrix_of(tensor: torch.Tensor) -> Matrix:
    return matrix(tensor.shape, tensor.stride(), 0)


def product(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, threads: int
) -> torch.Tensor:
    shape = (*left.shape[:-1], right.shape[-1])
    result = torch.full(shape, float("nan"))
    place = None
    if bias is not None:
        strides = bias.expand(shape).stride()
        place = Place(0, *(0,) * (3 - len(strides)), *strides)
    numbers = plan(matrix_of(left), matrix_of(right), matrix_of(result), place, threads)
    assert numbers is not None
    more = [] if bias is None else [bias]
    products.native().run(packed(*numbers), *more, left, right, result)
    return result


def error_of(result: torch.Tensor, left: torch.Tensor, right: torch.Tensor, bias=None) -> float:
    exact = left.double() @ right.double() + (0 if bias is None else bias.double())
    return float((result - exact).abs().max()) / left.shape[-1] ** 0.5


@needs_brgemm
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("kinds", list(itertools.product(["rows", "columns", "between"], repeat=2)))
def test_equals_double_precision(kinds, threads, monkeypatch):
    monkeypatch.setattr(products, "_PER_THREAD", 2**12)  # small ones too use all threads
    for rows, depth, columns in SIZES:
        left, right = stored(kinds[0], rows, depth), stored(kinds[1], depth, columns)
        assert error_of(product(left, right, None, threads), left, right) < 1e-5
        for bias in biases(rows, columns).values():
            result = product(left, right, bias, threads)
            assert error_of(result, left, right, bias) < 1e-5


@needs_brgemm
def test_a_row():
    for kind in ("rows", "columns", "between"):
        row, right = stored(kind, 1, 60), stored("between", 60, 70)
        assert error_of(product(row, right, None, 1), row, right) < 1e-5
        assert error_of(product(row, right, row[0, :1], 1), row, right, row[0, :1]) < 1e-5


@needs_brgemm
@pytest.mark.parametrize("threads", [1, 2])
def test_batches(threads, monkeypatch):
    monkeypatch.setattr(products, "_PER_THREAD", 2**12)
    for batches in (1, 3, 16):
        left = torch.randn(batches, 30, 20)
        right = torch.randn(batches, 40, 20).transpose(1, 2)
        bias = torch.randn(batches, 1, 40)
        assert error_of(product(left, right, bias, threads), left, right, bias) < 1e-5
        shared = right[:1].expand(batches, 20, 40)
        assert error_of(product(left, shared, None, threads), left, shared) < 1e-5


@needs_brgemm
def test_infinities_and_nans_go_where_they_do_in_eager():
    left, right = torch.randn(20, 40), torch.randn(40, 30)
    left[3, 5], left[7, 1], right[2, 9] = float("inf"), float("nan"), -float("inf")
    result = product(left, right, None, 1)
    torch.testing.assert_close(result, left @ right, equal_nan=True)


def test_blocks_cover_what_they_cut_and_fit_the_buffers():
    for rows, depth, columns in [*SIZES, (4096, 64, 4096), (64, 256, 256), (70, 2000, 64)]:
        for kinds, threads in itertools.product(
            itertools.product(["rows", "columns"], repeat=2), [1, 2, 7, 64]
        ):
            left = matrix_of(
                torch.empty(rows, depth) if kinds[0] == "rows" else torch.empty(depth, rows).t()
            )
            right = matrix_of(
                torch.empty(depth, columns)
                if kinds[1] == "rows"
                else torch.empty(columns, depth).t()
            )
            blocks = cut(left, right, threads)
            assert 1 <= blocks.threads <= threads
            assert 1 <= blocks.row_block <= rows
            assert 1 <= blocks.panel <= blocks.column_block <= columns
            if not left.by_rows:
                assert blocks.row_block <= 64
                assert blocks.depth_block <= 384
            if not right.by_rows:
                assert blocks.panel <= 64
                assert blocks.depth_block <= 384


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (torch.empty(1, 5), torch.empty(8, 5).t()),
        (torch.empty(1, 1024), torch.empty(1024, 1024)),
        (torch.empty(8, 5), torch.empty(5, 1)),
        (torch.empty(8, 0), torch.empty(0, 8)),
        (torch.empty(8, 1).expand(8, 5), torch.empty(5, 8)),
        (torch.empty(8, 10)[:, ::2], torch.empty(5, 8)),
    ],
    ids=["row by columns", "large row", "column", "empty", "expanded", "strided"],
)
def test_what_is_left_to_torch(left, right):
    result = matrix_of(torch.empty(left.shape[0], right.shape[1]))
    assert plan(matrix_of(left), matrix_of(right), result, None, 1) is None


def test_a_large_product_is_left_to_mkl_where_it_is_fast(monkeypatch):
    large, small = torch.empty(512, 512), torch.empty(64, 64)
    monkeypatch.setattr(products, "_mkl_is_fast", lambda: True)
    assert plan(matrix_of(large), matrix_of(large), matrix_of(large), None, 1) is None
    assert plan(matrix_of(small), matrix_of(small), matrix_of(small), None, 1) is not None


# --- in compiled graphs ---------------------------------------------------------------------------


def linear(x, weight, bias):
    return torch.nn.functional.linear(x, weight, bias).relu()


def operands(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = (40, 30), (20, 30), (20,)
    return [
        torch.randn(shape, dtype=dtype, generator=generator, requires_grad=True) for shape in shapes
    ]


def code_of(function, *inputs) -> str:
    """What Inductor generates for a forward and a backward."""

    return run_for_code(lambda: function(*inputs).sum().backward())[1]


@needs_brgemm
def test_forward_and_backward_use_it():
    inputs = operands()
    code = code_of(funcaot.compile(linear), *inputs)
    assert code.count("run_product(") == 3
    assert "extern_kernels." not in code.split("def call", 1)[1]
    gradients = [each.grad for each in inputs]
    expected = torch.autograd.grad(linear(*inputs).sum(), inputs)
    torch.testing.assert_close(gradients, list(expected))


@needs_brgemm
def test_batched_products_use_it():
    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    inputs = [torch.randn(6, 10, 8, requires_grad=True) for _ in range(3)]
    assert code_of(funcaot.compile(attention), *inputs).count("run_product(") == 6
    gradients = [each.grad for each in inputs]
    expected = torch.autograd.grad(attention(*inputs).sum(), inputs)
    torch.testing.assert_close(gradients, list(expected))


@needs_brgemm
@pytest.mark.parametrize("reason", ["dtype", "precision", "onednn", "alpha"])
def test_other_products_stay_torchs(reason, monkeypatch):
    function, inputs = linear, operands(torch.float64 if reason == "dtype" else torch.float32)
    if reason == "precision":
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "high")
    elif reason == "onednn":
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    elif reason == "alpha":

        def function(x, weight, bias):
            return torch.addmm(bias, x.detach(), weight.detach().t(), alpha=2)

    code = code_of(funcaot.compile(function), *inputs)
    assert "run_product(" not in code


def test_a_machine_without_a_compiler_runs_torchs_products(monkeypatch):
    monkeypatch.setattr(products, "_native_or_reason", lambda: "no compiler")
    with pytest.raises(ImportError, match="no compiler"):
        products.native()
    inputs = operands()
    assert "run_product(" not in code_of(funcaot.compile(linear), *inputs)
    expected = torch.autograd.grad(linear(*inputs).sum(), inputs)
    torch.testing.assert_close([each.grad for each in inputs], list(expected))
