"""Sizes that values decide stay open: two programs serve all counts, at two orders.

The oracle is the function itself in eager mode.
"""

import warnings

import pytest
import torch

import funcaot
from funcaot.errors import RecompileWarning


def neighbours(x):
    """An energy of the pairs that are near each other, which are looked for inside."""
    distances = (x[:, None] - x[None]).pow(2).sum(-1)
    near = (distances < 0.5) & ~torch.eye(x.shape[0], dtype=torch.bool)
    i, j = near.nonzero(as_tuple=True)
    pairs = (x[i] - x[j]).pow(2).sum(-1) + 0.1
    return torch.zeros(x.shape[0], dtype=x.dtype).index_add(0, i, pairs.sqrt()).pow(2).sum()


def masked(x):
    return x[x > 0.5].pow(3).sum() + x[(x[:, 0] > 0.3), :].sin().sum()


def selected(x):
    return torch.masked_select(x, x[:, :1] > 0.4).pow(3).sum()


def assigned(x):
    y = x * 2
    mask = x[:, 0] > 0.5
    y[mask] = x[mask].pow(3)
    return y.pow(2).sum()


def distinct(x):
    values, where = torch.unique((x[:, 0] * 4).long(), return_inverse=True)
    return (
        torch.zeros(values.shape[0], dtype=x.dtype)
        .index_add(0, where, x.pow(3).sum(-1))
        .cos()
        .sum()
    )


def repeated(x):
    counts = (x[:, 0] * 3).long() + 1
    return torch.repeat_interleave(x, counts, dim=0).pow(3).sum()


def one_after_the_other(x):
    chosen = x[x[:, 0] > 0.3]
    return chosen[chosen[:, 1] > 0.3].pow(3).sum()


MORE = [selected, assigned, distinct, repeated, one_after_the_other]
FUNCTIONS = [neighbours, masked, *(pytest.param(f, marks=pytest.mark.slow) for f in MORE)]


def results(function, x):
    value = function(x)
    (first,) = torch.autograd.grad(value, x, create_graph=True)
    (second,) = torch.autograd.grad(first.pow(2).sum(), x)
    return value, first, second


def check(function, backend, sizes):
    generator = torch.Generator().manual_seed(0)
    compiled = funcaot.compile(function, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        for size in sizes:
            x = torch.rand(size, 3, generator=generator, dtype=torch.float64, requires_grad=True)
            torch.testing.assert_close(
                results(compiled, x), results(function, x), rtol=1e-10, atol=1e-10
            )
    return funcaot.report(compiled)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_two_programs_serve_all_counts(function):
    sizes = [12, 15, *range(10, 28)]
    report = check(function, "eager", sizes)
    assert report.cache_misses == len(report.entries) == 2


@pytest.mark.slow
@pytest.mark.long
def test_two_programs_serve_all_counts_on_inductor():
    assert check(neighbours, "inductor", [12, 15, *range(10, 28)]).cache_misses == 2


def test_none_and_one():
    compiled = funcaot.compile(masked, backend="eager")
    for x in (torch.zeros(3, 2), torch.eye(3)[:, :2], torch.ones(3, 2), torch.ones(4, 2)):
        assert torch.allclose(compiled(x), masked(x))


def test_what_changes_changes_once():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0
            self.register_buffer("seen", torch.zeros(()))
            self.kept = None

        def forward(self, x, log):
            self.seen += 1
            log.append(x.sum())
            self.kept = x[x > 0.5]
            x.mul_(2)
            return self.kept.sum() + self.seen

    plain, module = Counting(), Counting()
    compiled = funcaot.compile(module, backend="eager")
    logs = [], []
    for size in (4, 5, 6, 7):
        x = torch.rand(size)
        given = x.clone(), x.clone()
        assert torch.equal(compiled(given[0], logs[0]), plain(given[1], logs[1]))
        assert torch.equal(*given)
        assert torch.equal(module.kept, plain.kept)
        assert torch.equal(module.seen, plain.seen)
    torch.testing.assert_close(*logs)


def test_random_numbers_are_drawn_once():
    def dropped(x):
        y = torch.nn.functional.dropout(x, 0.5)
        return y[y > 0].sum() + torch.rand(())

    compiled = funcaot.compile(dropped, backend="eager")
    for size in (8, 9, 10):
        x = torch.rand(size)
        torch.manual_seed(size)
        found = compiled(x)
        torch.manual_seed(size)
        assert torch.equal(found, dropped(x))


def test_an_error_of_the_function_leaves_nothing_behind():
    def fails(x, flag):
        chosen = x[x > 0.5]
        if flag:
            raise ValueError("mine")
        return chosen.sum()

    compiled = funcaot.compile(fails, backend="eager")
    with pytest.raises(ValueError, match="mine"):
        compiled(torch.rand(4), True)
    x = torch.rand(4)
    assert torch.equal(compiled(x, False), fails(x, False))


def test_a_caught_error_is_the_users_own():
    """A function that catches every error meets none that it wouldn't meet in eager mode."""

    def careful(x):
        try:
            return x[x > 0.5].sum()
        except Exception:  # noqa: BLE001 - as users do
            return x.sum() * 0

    compiled = funcaot.compile(careful, backend="eager")
    for size in (4, 5, 6):
        x = torch.rand(size)
        assert torch.equal(compiled(x), careful(x))


def test_under_vmap_and_grad():
    compiled = funcaot.compile(masked, backend="eager")
    x = torch.rand(5, 3)
    assert torch.allclose(torch.func.grad(compiled)(x), torch.func.grad(masked)(x))


def test_a_number_that_a_mask_selects():
    def number(x):
        return torch.masked_select(x * 2, x > 0)

    compiled = funcaot.compile(number, backend="eager")
    for value in (2.0, -1.0):
        x = torch.tensor(value, requires_grad=True)
        torch.testing.assert_close(compiled(x), number(x))


class Kept:
    """Holds a tensor, and a note of what was computed."""

    def __init__(self, x):
        self.x, self.notes = x, {}


def test_what_changes_changes_once_beside_objects_whose_tensors_change_in_size():
    def function(kept, count):
        count.add_(1)
        kept.notes[len(kept.notes)] = kept.x * 2
        y = kept.x * count
        return y[y > 1.5].pow(2).sum() + y.sum()

    compiled = funcaot.compile(function, backend="eager")
    counts = torch.zeros(()), torch.zeros(())
    for length in (3, 4, 5, 4, 3):
        kept = [Kept(torch.arange(length) * 1.0) for _ in counts]
        results = [f(*given) for f, *given in zip((function, compiled), kept, counts, strict=True)]
        torch.testing.assert_close(*results)
        assert counts[0] == counts[1]
        assert [len(each.notes) for each in kept] == [1, 1]
    assert funcaot.report(compiled).cache_misses == 2


def test_the_report_names_the_op_and_the_line_whose_numbers_a_program_needs():
    def function(x):
        found = x[(x > 0).nonzero()[:, 0]]
        return found.sum() if len(found) > 3 else found.sin().sum()

    compiled = funcaot.compile(function, backend="eager")
    for count in (3, 9):
        x = torch.linspace(-1, 1, count)
        assert torch.equal(compiled(x), function(x))
    line = function.__code__.co_firstlineno + 1
    assert f"nonzero at test_sized_calls.py:{line}" in str(funcaot.report(compiled))
