"""Tensors that a function makes of sizes: what is computed of them stays open, and is known.

The oracle is the function in eager mode, and for each op the tensor itself.
"""

import random

import pytest
import torch

import funcaot
from funcaot.aot.tape.known import made_of_numbers

CASES = {
    "tensor": lambda x: x.sum() / torch.tensor(x.shape[0]),
    "a half": lambda x: x.sum() * torch.tensor(x.shape[0] / 2),
    "a list": lambda x: (x.sum() * torch.tensor([x.shape[0], 2])).sum(),
    "lists in a list": lambda x: x.sum() * torch.tensor([[x.shape[0], 1.5], list(x.shape)]),
    "a shape": lambda x: x.sum() * torch.tensor(x.shape),
    "shapes": lambda x: x.sum() * torch.tensor([x.shape, x.t().shape]),
    "float64": lambda x: x.sum() * torch.tensor(x.shape[0], dtype=torch.float64),
    "int32": lambda x: x.sum() * torch.tensor(x.shape, dtype=torch.int32),
    "bfloat16": lambda x: x.sum() * torch.tensor(x.shape, dtype=torch.bfloat16),
    "as_tensor": lambda x: x.sum() * torch.as_tensor(x.shape[0]),
    "asarray": lambda x: x.sum() * torch.asarray([x.shape[0]]),
    "new_tensor": lambda x: x.sum() * x.new_tensor([x.shape[0], x.shape[1] * 2]),
    "beside a tensor": lambda x: x.sum() * torch.tensor([x.detach().max(), x.shape[0]]),
    "a condition": lambda x: x.sum() * torch.tensor(x.shape[0] > 2),
    "arange": lambda x: x * torch.arange(torch.tensor(x.shape[0]))[:, None],
    "linspace": lambda x: x * torch.linspace(0, 1, torch.tensor(x.shape[0]))[:, None],
    "a slice": lambda x: x[: torch.tensor(x.shape[0]) - 1],
    "an index": lambda x: x[torch.tensor(x.shape[0]) - 1],
    "item": lambda x: x.sum() * torch.tensor(x.shape[0]).item(),
    "a view": lambda x: x.reshape(torch.tensor(x.shape[0] * x.shape[1])),
    "prod": lambda x: x.reshape(int(torch.tensor(x.shape).prod())),
    "tolist": lambda x: x.reshape(torch.tensor(x.shape).flip(0).tolist()),
    "zeros": lambda x: x.sum() + torch.zeros(torch.tensor(x.shape[0])),
    "split": lambda x: x.split(torch.tensor([2, x.shape[0] - 2]).tolist())[1],
    "max": lambda x: x[: torch.max(torch.tensor(2), torch.tensor(x.shape[0]) // 2)],
    "clamp": lambda x: x[: torch.tensor(x.shape[0]).clamp(2, 6)],
    "offsets": lambda x: x[torch.tensor([1, x.shape[0] - 2]).cumsum(0) - 1],
    "positions": lambda x: x[512 - torch.tensor(min(x.shape[0], 512)) - 512 :],
}


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_it_stays_open(function):
    compiled = funcaot.compile(function, backend="eager")
    for size in (8, 9, 10, 13, 5, 9):
        x = torch.rand(size, 3, requires_grad=True)
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(y.exp().sum(), x)[0] for y in (found, expected))
        torch.testing.assert_close(*gradients)
    assert funcaot.report(compiled).cache_misses <= 3


@pytest.mark.slow
@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_on_inductor(function):
    compiled = funcaot.compile(function)
    for size in (8, 9, 12):
        x = torch.rand(size, 3, requires_grad=True)
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(y.exp().sum(), x)[0] for y in (found, expected))
        torch.testing.assert_close(*gradients)


def test_nothing_of_it_is_brought_by_a_call():
    compiled = funcaot.compile(CASES["tolist"], backend="eager")
    compiled(torch.rand(4, 3))
    assert "tolist" not in str(funcaot.report(compiled))


def test_a_number_of_values_is_still_brought():
    def function(x, count):
        return x[: torch.minimum(count, torch.tensor(x.shape[0]))]

    compiled = funcaot.compile(function, backend="eager")
    for size, count in ((8, 3), (9, 4), (9, 20), (7, 2)):
        x, count = torch.rand(size, 2), torch.tensor(count)
        torch.testing.assert_close(compiled(x, count), function(x, count))


def test_of_a_constant_that_is_written_to():
    def function(x):
        sizes = torch.tensor([x.shape[0], 3])
        sizes[0] -= 2
        sizes.mul_(2).sub_(1)
        return x[: sizes[1] - 2], x.sum() * int(sizes[0])

    compiled = funcaot.compile(function, backend="eager")
    for size in (8, 9, 11, 8):
        x = torch.rand(size, 2)
        torch.testing.assert_close(compiled(x), function(x))
    assert funcaot.report(compiled).cache_misses <= 3


@pytest.mark.parametrize("number", [300, -1])
def test_a_size_that_a_dtype_cannot_hold_raises_as_in_eager(number):
    def function(x):
        return x.sum() * torch.tensor(x.shape[0] + number, dtype=torch.uint8)

    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.rand(1, 2)) if number < 0 else None
    for size in (0, 0, 3) if number < 0 else (5, 6, 7):
        x = torch.rand(size, 2)
        try:
            expected = function(x)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), expected)


# --- each op, by the tensor ---------------------------------------------------------------------


def _computed(draw, n):
    """A tensor of whole numbers made by some ops that are drawn."""
    t = torch.tensor([[n, 3, -2], [7, n - 1, 4]])
    for _ in range(draw.randint(1, 5)):
        t = draw.choice(_STEPS)(t, draw, n)
    return t


_STEPS = [
    lambda t, draw, n: t + draw.choice([1, n, -3]),
    lambda t, draw, n: draw.choice([1, n]) - t,
    lambda t, draw, n: t * draw.choice([2, -1]),
    lambda t, draw, n: -t,
    lambda t, draw, n: t // draw.choice([2, -3, n]),
    lambda t, draw, n: t % draw.choice([2, -3, n]),
    lambda t, draw, n: torch.div(t, draw.choice([2, 5]), rounding_mode="floor"),
    lambda t, draw, n: torch.minimum(t, torch.tensor(n)),
    lambda t, draw, n: t.clamp(draw.choice([-1, None]), draw.choice([5, n])),
    lambda t, draw, n: t.clamp_min(2),
    lambda t, draw, n: t.sum(draw.randrange(t.dim()), keepdim=True) if t.dim() else t.sum(),
    lambda t, draw, n: t.prod(draw.randrange(t.dim())) if t.dim() else t.prod(),
    lambda t, draw, n: t.cumsum(draw.randrange(t.dim())) if t.dim() else t,
    lambda t, draw, n: torch.stack([t, t + 1], draw.choice([0, -1])) if t.numel() < 9 else t,
    lambda t, draw, n: torch.cat([t, t]) if t.dim() and t.numel() < 9 else t,
    lambda t, draw, n: t[draw.choice([0, -1])] if t.dim() else t,
    lambda t, draw, n: t[..., :2] if t.dim() else t,
    lambda t, draw, n: t[..., ::2] if t.dim() else t,
    lambda t, draw, n: t.flatten(),
    lambda t, draw, n: t.unsqueeze(draw.choice([0, -1])),
    lambda t, draw, n: t.squeeze(),
    lambda t, draw, n: t.expand(2, *t.shape) if t.numel() < 9 else t,
    lambda t, draw, n: t.flip(0) if t.dim() else t,
    lambda t, draw, n: t.permute(*reversed(range(t.dim()))),
    lambda t, draw, n: t.to(torch.int64).clone().detach(),
]


def _check_programs(seed, monkeypatch):
    known = []
    numbers_in = made_of_numbers.numbers_in

    def noting(node, root):
        known.append(numbers_in(node, root))
        return known[-1]

    monkeypatch.setattr(made_of_numbers, "numbers_in", noting)

    def function(x):
        numbers = _computed(random.Random(seed), x.shape[0])
        listed = numbers.tolist() if numbers.dim() else [numbers.item()]
        return x.sum() * numbers, x.exp().sum() * torch.tensor(listed).sum()

    compiled = funcaot.compile(function, backend="eager")
    for size in (8, 9, 12, 5):
        x = torch.rand(size, 3, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), function(x))
    return known


@pytest.mark.parametrize("seed", range(30))
def test_programs_of_ops(seed, monkeypatch):
    known = _check_programs(seed, monkeypatch)
    assert known
    assert None not in known


@pytest.mark.long
@pytest.mark.parametrize("seed", range(30, 330))
def test_more_programs_of_ops(seed, monkeypatch):
    assert None not in _check_programs(seed, monkeypatch)
