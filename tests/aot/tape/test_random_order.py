"""Draws in place fill memory in the order of the strides, compiled as in eager."""

import pytest
import torch
import torch.nn.functional as F

import funcaot


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.empty_like(x).bernoulli_(0.5),
        lambda x: F.dropout(x, 0.5),
        lambda x: torch.bernoulli(x.sigmoid()),
        lambda x: torch.rand_like(x),
        lambda x: torch.empty_like(x).normal_(),
    ],
)
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels_last"])
def test_numbers_and_strides_are_eagers(draw, layout):
    x = torch.randn(2, 3, 4, 5)
    if layout == "transposed":
        x = x.permute(1, 3, 0, 2)
    elif layout == "channels_last":
        x = x.contiguous(memory_format=torch.channels_last)
    found = []
    for run in (draw, funcaot.compile(draw, backend="eager")):
        torch.manual_seed(0)
        found.append(run(x))
    assert torch.equal(*found)
    assert found[0].stride() == found[1].stride()
