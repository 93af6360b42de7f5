"""Sharded tensors of other sizes from call to call, and of other sizes on each rank."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import funcaot
from tests.distributed.cases import chosen
from tests.distributed.ranks import Ranks


def _made(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _local(tensor):
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _derivatives(function, x, w, twice: bool):
    """What it returns, how that is placed, and the local parts of its derivatives."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    value = function(x, w)
    placed = value.placements if isinstance(value, DTensor) else None
    total = value.square().sum()
    total = total.full_tensor() if isinstance(total, DTensor) else total
    first = torch.autograd.grad(total, (x, w), create_graph=twice)
    found = [_local(value), *map(_local, first)]
    if twice:
        squares = sum((_local(each) ** 2).sum() for each in first)
        found += map(_local, torch.autograd.grad(squares, (x, w)))
    return [each.detach() for each in found], placed, value.shape


def _sizes(name: str) -> int:
    """Compare with eager; how many programs there are in the end."""
    mesh = dist.init_device_mesh("cpu", (2,))
    of_rows, whole = [Shard(0)], [Replicate()]

    def product(x, w):
        return (x @ w).sin()

    def gathered(x, w):
        return (x @ w).sin().full_tensor()

    cases = {
        "even": (product, of_rows, whole, (4, 6, 8, 10, 6), True),
        "uneven": (product, of_rows, whole, (5, 7, 9, 4, 1, 3), True),
        "whole": (product, whole, whole, (4, 5, 6, 7), True),
        "columns": (product, [Shard(1)], of_rows, (4, 6, 8, 5, 7), False),
        "gathered": (gathered, of_rows, whole, (4, 6, 8, 5, 7), True),
        "summed": (lambda x, w: (x.sum(0) * w.sum(1)).sin(), of_rows, whole, (4, 6, 5, 7), True),
    }
    function, of_x, of_w, sizes, twice = cases[name]
    compiled = funcaot.compile(function, backend=chosen.backend)
    for size in sizes:
        shapes = ((3, size), (size, 4)) if name == "columns" else ((size, 3), (3, 4))
        x, w = _made(*shapes[0]), _made(*shapes[1])
        given = distribute_tensor(x, mesh, of_x), distribute_tensor(w, mesh, of_w)
        expected = _derivatives(function, *given, twice)
        found = _derivatives(compiled, *given, twice)
        torch.testing.assert_close(found[0], expected[0], msg=lambda m, n=size: f"{n}: {m}")
        assert found[1:] == expected[1:], (size, found[1:], expected[1:])
    return len(compiled.entries)


CASES = ("even", "uneven", "whole", "columns", "gathered", "summed")


@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(ranks: Ranks, name):
    counts = ranks.run(_sizes, name, deadline=200)
    # With parts of one row or of none, there are more.
    assert max(counts) <= (4 if name == "uneven" else 3)


def _returned() -> None:
    """What ``to_local`` gives out is a tensor of its own, or an argument's memory."""
    mesh = dist.init_device_mesh("cpu", (2,))

    def doubled(x):
        return (DTensor.from_local(x, mesh, [Shard(0)]) * 2).to_local()

    compiled = funcaot.compile(doubled, backend=chosen.backend)
    for size in (2, 3, 4):
        x = _made(size, 3).requires_grad_()
        value = compiled(x)
        torch.testing.assert_close(value, x * 2)
        value.square().sum().backward()
        torch.testing.assert_close(x.grad, x * 8)
    shared = funcaot.compile(lambda x: x.to_local(), backend=chosen.backend)
    for size in (4, 6, 5):
        leaf = distribute_tensor(_made(size, 3), mesh, [Shard(0)]).requires_grad_()
        given = leaf * 1
        value = shared(given)
        assert value.data_ptr() == given.to_local().data_ptr()
        for result in (value, given.to_local()):
            with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
                result.mul_(3)
        value.square().sum().backward()
        torch.testing.assert_close(leaf.grad.to_local(), leaf.to_local() * 2)


def test_local_results(ranks: Ranks):
    ranks.run(_returned)


def _placed_by_size() -> int:
    """Results are where eager has them for each size, also where a program is there for others."""
    mesh = dist.init_device_mesh("cpu", (2,))

    def product(x, w):
        return x @ w

    compiled, seen = funcaot.compile(product, backend=chosen.backend), set()
    w = distribute_tensor(_made(8, 8), mesh, [Shard(1)])
    for size in (4, 6, 12, 16, 5, 7, 14, 2, 9):
        x = distribute_tensor(_made(size, 8), mesh, [Shard(0)])
        found, expected = compiled(x, w), product(x, w)
        assert found.placements == expected.placements, size
        torch.testing.assert_close(found.to_local(), expected.to_local())
        seen.add(found.placements)
    assert len(seen) == 2  # Which of the two is moved depends on the rows.
    return len(compiled.entries)


def test_placements_that_sizes_decide(ranks: Ranks):
    assert max(ranks.run(_placed_by_size)) <= 6


def _three_orders(sizes: tuple[int, ...]) -> int:
    """Derivatives of derivatives of derivatives, with respect to both operands."""
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))

    def product(x, w):
        return (x @ w).sin()

    def orders(function, x, w):
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        value, found = function(x, w), []
        found.append(value)
        total = value.square().sum().full_tensor()
        for order in range(3):
            grads = torch.autograd.grad(total, (x, w), create_graph=order < 2)
            found += grads
            total = sum(each.square().sum().full_tensor() for each in grads)
        return [each.full_tensor().detach() for each in found]

    compiled = funcaot.compile(product, backend=chosen.backend)
    w = distribute_tensor(_made(3, 4) / 4, mesh, [Replicate()])
    for size in sizes:
        x = distribute_tensor(_made(size, 3) / 4, mesh, [Shard(0)])
        found, expected = orders(compiled, x, w), orders(product, x, w)
        for order, (one, other) in enumerate(zip(found, expected, strict=True)):
            torch.testing.assert_close(one, other, msg=lambda m, o=order, n=size: f"{n}, {o}: {m}")
    return len(compiled.entries)


@pytest.mark.long
def test_third_order(ranks: Ranks):
    assert max(ranks.run(_three_orders, (4, 6, 8, 5, 7), deadline=200)) <= 3


def _parts_of_any_size() -> int:
    """Parts that aren't those of one whole: each rank has as many rows as it likes."""
    mesh, rank = dist.init_device_mesh("cpu", (dist.get_world_size(),)), dist.get_rank()

    def energy(x, w):
        whole = DTensor.from_local(x, mesh, [Shard(0)], run_check=False)
        w = DTensor.from_local(w, mesh, [Replicate()], run_check=False)
        return (whole @ w).tanh().sum().full_tensor()

    compiled = funcaot.compile(energy, backend=chosen.backend)
    for sizes in (
        (4, 6, 5),
        (6, 5, 7),
        (8, 2, 4),
        (3, 9, 6),
        (1, 4, 8),
        (7, 1, 2),
    ):  # Without rows on one rank, eager waits for ever.
        results = []
        for function in (compiled, energy):
            x = _made(sizes[rank], 3).requires_grad_()
            w = _made(3, 4).requires_grad_()
            value = function(x, w)
            results.append([value, *torch.autograd.grad(value.square(), (x, w))])
        torch.testing.assert_close(*results, msg=lambda m, s=sizes: f"{s}: {m}")
    return len(compiled.entries)


@pytest.fixture(scope="module")
def three() -> Iterator[Ranks]:
    made = Ranks(3)
    yield made
    made.stop()


def test_parts_of_any_size(three: Ranks):
    assert max(three.run(_parts_of_any_size)) <= 5


@pytest.mark.long
def test_three_ranks(three: Ranks):
    """The last has fewer rows than the others, or none."""
    assert max(three.run(_three_orders, (7, 8, 10, 4, 5, 2, 3, 11), deadline=300)) <= 7
