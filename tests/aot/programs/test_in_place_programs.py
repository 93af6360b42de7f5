"""Random programs that write to their inputs and read what they overwrite, and what is proved."""

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import funcaot
from funcaot.aot.segment.in_place_proof import provable
from tests.aot.programs.in_place_programs import arguments, source_of, together
from tests.aot.programs.write_after import check_writes_after


def groups(start, count, size):
    return [list(range(first, first + size)) for first in range(start, start + count, size)]


def runs_in_eager(seed):
    try:
        together([seed])([arguments(seed)])
    except (RuntimeError, NameError):
        return False
    return True


def check(seeds, backend):
    seeds = [seed for seed in seeds if runs_in_eager(seed)]
    check_writes_after(
        together(seeds), lambda: ([arguments(seed) for seed in seeds],), backend=backend, calls=2
    )


@pytest.mark.parametrize("seeds", groups(0, 48, 8), ids=str)
def test_as_eager_whatever_is_written_after(seeds):
    check(seeds, "eager")


# The last are those that Inductor was once wrong about.
@pytest.mark.parametrize("seeds", [[2, 3, 5, 7, 11, 13, 17, 19], [1017, 1121]], ids=str)
def test_on_inductor(seeds):
    check(seeds, "inductor")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seeds", groups(2000, 240, 12), ids=str)
def test_many_on_inductor(seeds):
    check(seeds, "inductor")


def test_programs_are_what_their_seed_says():
    assert source_of(3) == source_of(3)
    assert len({source_of(seed) for seed in range(20)}) > 15


def shifts(x):
    x[1:] = x[:-1].clone()


def shifts_by_adding_zeros(x):
    x[1:] = x[:-1] + torch.zeros_like(x[:-1])


def accumulates_its_own_row(x, i):
    x.index_put_((i,), x[0].clone(), accumulate=True)


def returns_a_clone(x, v):
    x[0] = v
    return x.clone()


def rolls(x):
    x.copy_(x.roll(1, 0))


def moves_its_rows_within_new_memory(x, i):
    h = x.sin()
    h.index_copy_(0, i, h[1:3].clone())
    return h


WRONG_ONCE = {
    shifts: lambda: (torch.arange(24.0).view(6, 4),),
    shifts_by_adding_zeros: lambda: (torch.arange(24.0).view(6, 4),),
    accumulates_its_own_row: lambda: (torch.ones(3, 2), torch.tensor([0, 0])),
    returns_a_clone: lambda: (torch.zeros(3), torch.tensor(2.0)),
    rolls: lambda: (torch.arange(24.0).view(6, 4),),
    moves_its_rows_within_new_memory: lambda: (torch.arange(16.0).view(4, 4), torch.tensor([2, 0])),
}


@pytest.mark.parametrize("function", WRONG_ONCE, ids=lambda function: function.__name__)
def test_wrong_once(function):
    check_writes_after(function, WRONG_ONCE[function])


# Graphs as a compiler gets them: inputs a and b, then new values of some inputs, then results.
# Of each, which writes are proved.
N = 64
PROVED = {
    "its own elements": (lambda a, b: [a * 0.9 + b], [0], [0]),
    "each other's elements": (lambda a, b: [a * 0.9 + b, b * 2 + a], [0, 1], [0, 1]),
    "after a reduction": (lambda a, b: [a - a.sum()], [0], [0]),
    "after a product": (lambda a, b: [a - a @ a], [0], [0]),
    "a sum beside it": (lambda a, b: [a + b, a.sum()], [0], [0]),
    "swapped": (lambda a, b: [b.clone(), a.clone()], [0, 1], []),
    "swapped, plus zeros": (
        lambda a, b: [b + torch.zeros_like(b), a + torch.zeros_like(a)],
        [0, 1],
        [],
    ),
    "a copy of the other": (lambda a, b: [b * 1, b * a], [0, 1], []),
    "its transpose": (lambda a, b: [a.t().clone()], [0], []),
    "the other's transpose": (lambda a, b: [b.t() * 2 + a, b + 1], [0, 1], [0]),
    "one of its rows": (lambda a, b: [a + a[0]], [0], []),
    "what was there": (lambda a, b: [a + 1, a.clone()], [0], []),
    "few elements": (lambda a, b: [a - a[:, :2].sum(1, keepdim=True)], [0], []),
    "in order of size": (lambda a, b: [a.sort(0).values], [0], []),
    "a row": (lambda a, b: [torch.select_scatter(a, b[0], 0, 0)], [0], [0]),
    "its own row": (lambda a, b: [torch.select_scatter(a, a[1], 0, 0)], [0], []),
    "a row, and what was there": (
        lambda a, b: [torch.select_scatter(a, b[0], 0, 0), a.sum()],
        [0],
        [],
    ),
    "a row, and a clone": (
        lambda a, b: (lambda new: [new, new.clone()])(torch.select_scatter(a, b[0], 0, 0)),
        [0],
        [],
    ),
    "a row, and a product of it": (
        lambda a, b: (lambda new: [new, new @ b])(torch.select_scatter(a, b[0], 0, 0)),
        [0],
        [0],
    ),
    "part of a row": (
        lambda a, b: [
            torch.select_scatter(a, torch.slice_scatter(a.select(0, 1), b[0, :2], 0, 0, 2), 0, 1)
        ],
        [0],
        [0],
    ),
    "part of another row": (
        lambda a, b: [
            torch.select_scatter(a, torch.slice_scatter(a.select(0, 2), b[0, :2], 0, 0, 2), 0, 1)
        ],
        [0],
        [],
    ),
    "all at once": (
        lambda a, b: torch._foreach_add(torch._foreach_mul([a, b], 0.9), [b, a]),
        [0, 1],
        [0, 1],
    ),
    "all at once, the other's": (lambda a, b: torch._foreach_mul([b, a], 1), [0, 1], []),
}


@pytest.mark.parametrize("name", PROVED)
def test_what_is_proved(name):
    function, written, proved = PROVED[name]
    module = make_fx(function, tracing_mode="fake")(torch.rand(N, N), torch.rand(N, N))
    outputs = next(iter(reversed(module.graph.nodes))).args[0]
    pairs = [(position, index) for index, position in enumerate(written)]
    kept = range(len(written), len(outputs))
    assert [position for position, _ in provable(module, pairs, kept)] == proved


def step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
def test_an_optimizer_writes_all_it_has(name):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4))
    options = {"momentum": 0.9} if name == "SGD" else {}
    optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    compiled = funcaot.compile(step)
    for _ in range(3):
        compiled(model, optimizer, torch.rand(32, 8))
    entry = funcaot.report(compiled).entries[-1]
    assert entry.mutations
    assert entry.in_place == entry.mutations
