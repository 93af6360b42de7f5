"""Products of a column and a row are computed along with what is around them, as eager does."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import funcaot

sys.path.insert(0, str(Path(__file__).parent))
from generated_code import run_for_code

PRODUCTS = ("run_product(", "extern_kernels.")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_eager_to_the_sign_of_a_zero(dtype):
    numbers = [0.0, -0.0, 1.0, -2.0, float("inf"), float("nan"), 1e-30, 1e30]
    column = torch.tensor(numbers, dtype=dtype)[:, None]
    row = torch.tensor([*numbers, 3.0], dtype=dtype)[None]
    compiled = funcaot.compile(torch.mm)
    for _ in range(3):
        made, expected = compiled(column, row), column @ row
        assert torch.equal(made.isnan(), expected.isnan())
        assert torch.equal(made.nan_to_num(), expected.nan_to_num())
        numeric = ~expected.isnan()
        assert torch.equal(made.signbit()[numeric], expected.signbit()[numeric])
        column, row = column.flip(0), row * 2


@pytest.mark.parametrize("rows", [1, 27])
def test_the_gradient_of_one_output_asks_no_library(rows):
    net = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 1)).double()
    compiled = funcaot.compile(torch.func.grad(lambda x: net(x).sum()))
    x = torch.rand(rows, 8, dtype=torch.float64)
    made, code = run_for_code(lambda: compiled(x))
    torch.testing.assert_close(made, torch.func.grad(lambda x: net(x).sum())(x))
    if rows > 1:
        # The first layer, its gradient; the energy itself isn't wanted.
        assert sum(code.count(each) for each in PRODUCTS) == 2


def test_whole_numbers_and_others_stay_torchs():
    for dtype in (torch.int8, torch.int64, torch.bfloat16):
        column = torch.arange(-40, 40)[:, None].to(dtype)
        made = funcaot.compile(torch.mm)(column, column.mT.contiguous())
        assert torch.equal(made, column @ column.mT), dtype
