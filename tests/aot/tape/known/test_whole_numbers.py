"""Whole numbers that a function reads off tensors stay open: two programs serve all values.

The oracle is the function itself in eager mode.
"""

import copy
import dataclasses
import pickle
import warnings

import pytest
import torch

import funcaot
from funcaot.errors import RecompileWarning


def pooled(x, batch):
    groups = int(batch.max()) + 1
    rows = torch.zeros(groups, x.shape[1], dtype=x.dtype).index_add(0, batch, x.sin())
    return rows.pow(2).sum()


def read_by_item(x, batch):
    groups = batch.max().item() + 1
    return torch.zeros(groups, 3, dtype=x.dtype).index_add(0, batch, x.sin()).pow(2).sum()


def several(x, batch):
    count = max(int(batch.max()), int(batch[0])) + 1
    if count < 2:
        return x.sum()
    last = int(batch.max())
    rows = torch.zeros(count * last, 3, dtype=x.dtype).index_add(0, batch, x.sin())
    return rows[:last].pow(2).sum() + x[:count].cos().sum()


def asked_for_its_class(x, batch):
    count = int(batch.max())
    known = isinstance(count, int) and type(count) is int and not isinstance(count, str | bytes)
    return x[:count].pow(3).sum() if known else x.sum()


def in_a_comprehension(x, batch):
    first, last = (int(edge) for edge in (batch.max(), batch.max() + 1))
    return x[first:].pow(3).sum() + x[:last].sin().sum()


def batches():
    """Twenty of varying rows and groups."""
    generator = torch.Generator().manual_seed(0)
    groups = [4, 5, 3, 7, 9, 6, 9, 8, 5, 4, 3, 4, 5, 6, 7, 8, 4, 3, 5, 6]
    for rows, count in zip([12, 15, *range(10, 28)], groups, strict=True):
        x = torch.rand(rows, 3, generator=generator, dtype=torch.float64, requires_grad=True)
        drawn = torch.randint(0, count, (rows - count,), generator=generator)
        yield x, torch.cat([torch.arange(count), drawn])


def results(function, x, batch):
    value = function(x, batch)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    return value, first, second


def check(function, backend):
    compiled = funcaot.compile(function, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for given in batches():
            found, expected = results(compiled, *given), results(function, *given)
            torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    return funcaot.report(compiled)


CASES = [pooled, read_by_item, several, asked_for_its_class, in_a_comprehension]


@pytest.mark.parametrize("function", CASES)
def test_two_programs_serve_all_values(function):
    report = check(function, "eager")
    assert report.cache_misses == len(report.entries) == 2


@pytest.mark.slow
@pytest.mark.parametrize("function", [pooled, several])
def test_two_programs_serve_all_values_on_inductor(function):
    assert check(function, "inductor").cache_misses == 2


def test_what_is_returned_is_a_number():
    def function(x):
        return x * 2, int(x.max()) + 1, [x.min().item()]

    compiled = funcaot.compile(function, backend="eager")
    for last in (5, 6, 7, 8, 1, 0, -3):
        x = torch.arange(last, last + 4)
        _, number, (least,) = compiled(x)
        assert (number, least) == (last + 4, last)
        assert type(number) is type(least) is int
        assert pickle.loads(pickle.dumps(number)) == copy.copy(number) == last + 4


@dataclasses.dataclass
class Counted:
    rows: torch.Tensor
    count: int = 0
    kind: type = int


class Whole(int):
    pass


def test_int_is_int_everywhere_else():
    """The code that calls it with a tensor uses it in other ways too."""

    def function(x, index):
        made: int = int(index)
        kinds = {int: "whole", float: "real"}
        assert kinds[type(made)] == "whole"
        assert made.__class__ is int
        assert issubclass(Whole, int)
        assert int.from_bytes(b"\x01\x00", "little") == int("1") == int(1.5) == int("0x1", base=16)
        assert [int(text) for text in "12"] == list(map(int, "12")) == [1, 2]
        kept = Counted(x[:made] * 2, Whole(3), int)
        return kept, int, (int | None), list[int]

    compiled = funcaot.compile(function, backend="eager")
    for number in (3, 4, 5, 6):
        x = torch.rand(8)
        kept, kind, *types = compiled(x, torch.tensor(number))
        assert kind is int
        assert kept.kind is int
        assert type(kept.count) is Whole
        assert types == [int | None, list[int]]
        assert torch.equal(kept.rows, x[:number] * 2)
    assert len(compiled.entries) <= 2
    assert "int" not in globals()


def test_what_needs_the_number_has_a_program_for_each():
    def loop(x, count):
        for _ in range(int(count)):
            x = x.sin()
        return x

    compiled = funcaot.compile(loop, backend="eager")
    for size, count in ((4, 2), (5, 3), (6, 2), (7, 3), (8, 2)):
        x = torch.rand(size)
        assert torch.equal(compiled(x, torch.tensor(count)), loop(x, torch.tensor(count)))
    assert len(compiled.entries) == 3  # sizes stay open


def test_a_whole_step_that_starts_with_zero_grad():
    layers = []
    steps = []
    for _ in range(2):
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.1)

        def step(x, batch, layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            rows = torch.zeros(int(batch.max()) + 1, 2).index_add(0, batch, layer(x))
            loss = rows.pow(2).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        layers.append(layer)
        steps.append(step)
    compiled = funcaot.compile(steps[0], backend="eager")
    for x, batch in batches():
        x = x.detach().float()
        torch.testing.assert_close(compiled(x, batch), steps[1](x, batch))
    torch.testing.assert_close(layers[0].weight, layers[1].weight)
    assert len(compiled.entries) <= 2
