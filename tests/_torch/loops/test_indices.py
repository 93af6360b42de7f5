"""Vectors of indices are checked without a copy: the same values, the same errors, less code."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

import funcaot

sys.path.insert(0, str(Path(__file__).parent.parent))
from generated_code import run_for_code

INDEX = torch.tensor([0, 4, -5, 2, 1, 3, -1, 0, 2] * 4)
COPY = re.compile(r"tmpbuf\[\w+\] = static_cast<int64_t>\(tmp\d+\[\w+\]\);")


def taken(x, index):
    return x[index] * 2


def ways(x, index):
    """What reads or writes by index, each in another way."""
    rows = x.expand(3, 5).contiguous()
    places = index.abs() % 5
    return {
        "taken": x[index],
        "of two": rows[places % 3, index],
        "narrow": x[index.to(torch.int32)] + 1,
        "gathered": rows.gather(1, places[:33].view(3, 11)),
        "padded": torch.nn.functional.pad(x[index], (1, 3)),
        "joined": torch.cat([x[index], x]),
        "where": torch.where(index > 0, x[index], index.to(x.dtype)),
        "the index": x[index] + index,
        "summed": x[index].sum(),
        "added": torch.zeros_like(x).index_add(0, places, x[index]),
        "put": x.index_put((index[:5],), x * 2, accumulate=True),
    }


def test_the_copy_is_left_out():
    _, code = run_for_code(lambda: funcaot.compile(taken)(torch.rand(5), INDEX))
    with funcaot.config.patch(without_patches="indices"):
        _, usual = run_for_code(lambda: funcaot.compile(taken)(torch.rand(5), INDEX))
    assert COPY.search(usual)
    assert not COPY.search(code)
    assert "index out of bounds" in code


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64])
def test_values(dtype):
    x = (torch.rand(5) * 9).to(dtype)
    found = funcaot.compile(ways)(x, INDEX)
    for name, value in ways(x, INDEX).items():
        torch.testing.assert_close(found[name], value, msg=lambda text, name=name: name + text)


@pytest.mark.parametrize("place", [3, 33])
@pytest.mark.parametrize("wrong", [5, -6])
def test_an_index_out_of_bounds_is_found(place, wrong):
    index = INDEX.clone()
    index[place] = wrong
    compiled = funcaot.compile(taken)
    x = torch.rand(5)
    assert torch.equal(compiled(x, INDEX), taken(x, INDEX))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        compiled(x, index)
