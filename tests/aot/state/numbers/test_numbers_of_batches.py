"""Numbers in objects of which each call gets a new one stay open, wherever they are in there."""

import pytest
import torch

import funcaot


class Batch:
    """What a loader makes for each step."""

    def __init__(self, **attributes):
        vars(self).update(attributes)


def attribute(x, n):
    return Batch(x=x, n=n), lambda batch: batch.n


def entry(x, n):
    return Batch(x=x, store={"n": n, "k": 1}), lambda batch: batch.store["n"]


def entry_beside_tensors(x, n):
    return Batch(store={"x": x, "n": n}, x=x), lambda batch: batch.store["n"]


def item_beside_tensors(x, n):
    return Batch(store=[x, n], x=x), lambda batch: batch.store[1]


def entry_in_an_item(x, n):
    return Batch(store=[x, {"y": x, "n": n}], x=x), lambda batch: batch.store[1]["n"]


def numbers_in_an_item(x, n):
    return Batch(store=[x, {"n": n}], x=x), lambda batch: batch.store[1]["n"]


def object_in_an_entry(x, n):
    return Batch(store={"inner": Batch(y=x, n=n)}, x=x), lambda batch: batch.store["inner"].n


def entry_of_an_inner_object(x, n):
    inner = Batch(store={"x": x, "n": n})
    return Batch(store=[inner], x=x), lambda batch: batch.store[0].store["n"]


PLACES = [
    attribute,
    entry,
    entry_beside_tensors,
    item_beside_tensors,
    entry_in_an_item,
    numbers_in_an_item,
    object_in_an_entry,
    entry_of_an_inner_object,
]


@pytest.mark.parametrize(("kind", "sizes"), [(int, True), (float, False)], ids=["sizes", "floats"])
@pytest.mark.parametrize("place", PLACES)
def test_batches_of_other_numbers_share_a_program(place, kind, sizes):
    """Two programs for all of them: one for what came first, one for all others."""
    _, read = place(torch.ones(1), kind(0))

    def loss(batch):
        n = read(batch)
        return (batch.x * n).sin() + n / 3

    compiled = funcaot.compile(loss, backend="eager")
    for step in range(5):
        x = torch.linspace(0, 1, 3 + step * sizes)
        batch, _ = place(x, kind(2 + step))
        torch.testing.assert_close(compiled(batch), loss(batch))
    assert funcaot.report(compiled).cache_misses <= 2


@pytest.mark.parametrize("place", PLACES)
def test_a_branch_on_such_a_number(place):
    """What is compared with a number counts for calls of all others."""
    _, read = place(torch.ones(1), 0)

    def loss(batch):
        return batch.x * 2 if read(batch) > 4 else batch.x.exp() + read(batch)

    compiled = funcaot.compile(loss, backend="eager")
    for n in (2, 3, 8, 5):
        batch, _ = place(torch.linspace(0, 1, 3), n)
        torch.testing.assert_close(compiled(batch), loss(batch))


def test_a_number_that_is_counted_on():
    """The object of the call has its own count after it."""

    def count(batch):
        batch.store["n"] += 1
        return batch.store["x"] * batch.store["n"]

    compiled = funcaot.compile(count, backend="eager")
    x = torch.linspace(0, 1, 3)
    for n in (2, 7, 3, 11):
        ours, theirs = (Batch(store={"x": x, "n": n}) for _ in range(2))
        torch.testing.assert_close(compiled(ours), count(theirs))
        assert ours.store["n"] == theirs.store["n"] == n + 1
