"""A whole number in a tensor that a function closes over, read in each way that Python has.

Somebody writes to the tensor between calls. The oracle is the function in eager mode.
"""

import itertools
import math
import operator

import pytest
import torch
from torch import nn
from torch.nn import functional

import funcaot

NUMBERS = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]


def written(x, n):
    y = x * 1
    y[:n] = 0
    y[n, n - 2 :] = 3
    return y.sum()


def without(n):
    numbers = list(NUMBERS)
    del numbers[n]
    return sum(numbers)


WAYS = {
    "end of a slice": lambda x, n: x[:n],
    "beginning of a slice": lambda x, n: x[n:],
    "step of a slice": lambda x, n: x[::n],
    "slice in a tuple": lambda x, n: x[1:, : n - 2],
    "a slice object": lambda x, n: x[slice(n)],
    "both ends": lambda x, n: x[n - 2 : n],
    "written": written,
    "index": lambda x, n: x[n],
    "min": lambda x, n: x[: min(n, 5)],
    "max": lambda x, n: x[: max(n, 3)],
    "of a result": lambda x, n: torch.einsum("ij->i", x)[:n],
    "range": lambda x, n: x * len(range(n)),
    "loop": lambda x, n: sum(x[i] for i in range(n)),
    "list index": lambda x, n: x * NUMBERS[n],
    "list slice": lambda x, n: x * sum(NUMBERS[:n]),
    "list without": lambda x, n: x * without(n),
    "text index": lambda x, n: x * int("123456789"[n]),
    "repeated list": lambda x, n: x * len([1] * n),
    "int": lambda x, n: x * int(n),
    "float": lambda x, n: x * float(n),
    "bool": lambda x, n: x * bool(n - 4),
    "branch": lambda x, n: x if n - 4 else -x,
    "comparison": lambda x, n: x if n == 4 else -x,
    "and": lambda x, n: x * ((n - 4) and 3),
    "item": lambda x, n: x * n.item(),
    "tolist": lambda x, n: x * n.tolist(),
    "operator.index": lambda x, n: x * operator.index(n),
    "Size": lambda x, n: x.sum() * torch.ones(torch.Size([n, 2])),
    "sizes": lambda x, n: x.sum() * torch.ones(n, 2),
    "sizes in a tuple": lambda x, n: x.sum() * torch.ones((n, 2)),
    "expand": lambda x, n: x.sum().expand(n),
    "arange": lambda x, n: x.sum() * torch.arange(n),
    "narrow": lambda x, n: x.narrow(0, 0, n),
    "topk": lambda x, n: x.topk(n, 0)[0],
    "split": lambda x, n: x.split(int(n))[0],
    "interpolate": lambda x, n: functional.interpolate(x[None, None], size=(n, n)),
    "pad": lambda x, n: functional.pad(x, (0, n), value=1.0),
    "one_hot": lambda x, n: x.sum() * functional.one_hot(torch.tensor([0, 1]), n + 2),
    "tensor": lambda x, n: x.sum() * torch.tensor([n, 1]),
    "fill_": lambda x, n: x.sum() * torch.zeros(2).fill_(n),
    "sqrt": lambda x, n: x * math.sqrt(n),
    "comb": lambda x, n: x * math.comb(6, n),
    "hex": lambda x, n: x * int(hex(n), 16),
    "islice": lambda x, n: x * sum(itertools.islice(NUMBERS, n.item())),
    "clamp": lambda x, n: (9 * x).clamp(max=n),
    "pow": lambda x, n: x.pow(n),
}


class Holder(nn.Module):
    """A module that holds the number, as a buffer or in a list."""

    def __init__(self, way, buffer):
        super().__init__()
        self.way, self.held = way, []
        if buffer:
            self.register_buffer("n", torch.tensor(4))
        else:
            self.held.append(torch.tensor(4))

    @property
    def number(self):
        return self.held[0] if self.held else self.n

    def forward(self, x):
        return self.way(x, self.number)


@pytest.mark.parametrize("buffer", [True, False])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_as_it_is_now(way, buffer):
    module = Holder(way, buffer)
    compiled = funcaot.compile(module, backend="eager")
    for number in (4, 4, 3, 4, 5):
        module.number.fill_(number)
        x = torch.rand(8, 3, requires_grad=True)
        found, expected = compiled(x), module(x)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(y.exp().sum(), x)[0] for y in (found, expected))
        torch.testing.assert_close(*gradients)


@pytest.mark.slow
@pytest.mark.parametrize("way", [WAYS["end of a slice"], WAYS["slice in a tuple"], written])
def test_on_inductor(way):
    module = Holder(way, buffer=True)
    compiled = funcaot.compile(module)
    for number in (4, 3, 5):
        module.number.fill_(number)
        x = torch.rand(8, 3)
        torch.testing.assert_close(compiled(x), module(x))
