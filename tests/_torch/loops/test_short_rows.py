"""Rows of float64 that are shorter than the vectors Inductor takes: by one vector, and right."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import funcaot

sys.path.insert(0, str(Path(__file__).parent.parent))
from generated_code import lines_in_loops, run_for_code

VECTOR = torch._inductor.cpu_vec_isa.pick_vec_isa().bit_width() // 64


def smeared(distance, centres):
    return torch.exp(-2 * (distance.unsqueeze(-1) - centres) ** 2)


def several(x):
    """What the loops of a program do with rows, each in a way of its own."""
    rows, width = x.shape
    places = torch.arange(width)
    whole = (x * 10).to(torch.int64)
    return {
        "exponentials": torch.exp(x) * places,
        "by place": torch.where(places < width // 2, x.sin(), x * 2),
        "by value": torch.where(x > 0, x.exp(), torch.where(x == x.round(), 1.0, x)),
        "compared": x > x.mean(),
        "a mask of two": torch.where((x > 0) & (x < 1), x, -x),
        "narrow": (x * 3).to(torch.float32),
        "whole": whole * places - whole % 3,
        "short": whole.to(torch.int32),
        "padded": torch.nn.functional.pad(x.cos(), (1, 2), value=3.0),
        "joined": torch.cat([x, x.tanh()], 1),
        "rolled": x.roll(1, 1) * x,
        "taken": x.gather(1, places.flip(0).expand(rows, width)).exp(),
        "softmax": x.softmax(1),
        "sum of rows": x.exp().sum(0),
        "sums in rows": x.exp().sum(1),
        "most": x.amax(1) + x.argmax(1),
        "variance": torch.cat(torch.var_mean(x, 1)),
        "across": torch.cat(torch.var_mean(x * 2, 0)),
        "so far": x.cumsum(1),
        "turned": (x.t().contiguous() * 2).sin(),
        "any": (x > 1).any(1),
        "rounded": x.round().remainder(3) + x.floor(),
        "narrow weights": x * x.to(torch.bfloat16),
    }


def with_gradients(function, x):
    """Results of a function, and its gradient with respect to what it is given."""
    x = x.clone().requires_grad_()
    results = function(x)
    smooth = [value for value in results.values() if value.requires_grad]
    gradients = torch.autograd.grad([value.sum() for value in smooth], x)
    return {name: value.detach() for name, value in results.items()}, gradients


@pytest.mark.skipif(VECTOR < 4, reason="vectors of this machine are shorter than the row")
def test_exponentials_of_a_row_are_computed_together():
    centres = torch.linspace(0.6, 3.0, VECTOR, dtype=torch.float64)
    distance = torch.rand(50, dtype=torch.float64)
    compiled = funcaot.compile(smeared)
    found, code = run_for_code(lambda: compiled(distance, centres))
    assert lines_in_loops(code, ".exp()")
    assert not re.search(r"std::exp\(", code)
    torch.testing.assert_close(found, smeared(distance, centres))


WIDTHS = [
    pytest.param(width, marks=pytest.mark.long) for width in (*range(2, 18), 24) if width != 8
]


@pytest.mark.parametrize("width", [8, *WIDTHS])
def test_values_and_gradients(width):
    x = torch.randn(6, width, dtype=torch.float64, generator=torch.Generator().manual_seed(width))
    torch.testing.assert_close(
        with_gradients(funcaot.compile(several), x), with_gradients(several, x)
    )
