"""Objects of classes that torch itself has, given or reached: what their own code reads is found."""

import pytest
import torch
from torch.testing import assert_close
from torch.testing._internal.opinfo.core import SampleInput
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset

import funcaot

DATA = TensorDataset(torch.arange(6.0).view(3, 2), torch.arange(3))
LOADER = DataLoader(DATA, batch_size=2)


def with_a_dataset(make):
    return lambda: make(TensorDataset(torch.randn(3, 2), torch.arange(3)))


CASES = {
    "an item of a dataset": (lambda data: data[1][0] * data[2][1], with_a_dataset(lambda d: d)),
    "all items": (lambda data: sum(x.sum() * y for x, y in data), with_a_dataset(lambda d: d)),
    "a subset": (lambda data: data[0][0] * 2, with_a_dataset(lambda d: Subset(d, [2, 0]))),
    "two datasets": (lambda data: data[4][0] * 2, with_a_dataset(lambda d: ConcatDataset([d, d]))),
    "stacked": (lambda data: data[1][1] * 2, with_a_dataset(lambda d: StackDataset(d.tensors[0], d.tensors[0] + 1))),
    "reached": (lambda x: DATA[1][0] * x, lambda: torch.randn(2)),
    "a loader": (lambda x: sum((batch @ x).sum() for batch, _ in LOADER), lambda: torch.randn(2)),
    "slots": (lambda s: s.input * s.args[0], lambda: SampleInput(torch.randn(3), args=(torch.randn(3),))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_they_hold_is_found_and_is_of_each_call(name):
    function, make = CASES[name]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        given = make()
        assert_close(compiled(given), function(given), rtol=0, atol=0)
    assert funcaot.report(compiled).cache_misses == 1


def test_what_a_dataset_holds_may_be_another():
    data = TensorDataset(torch.ones(3, 2))
    compiled = funcaot.compile(lambda x: data[0][0] * x, backend="eager")
    for _ in range(3):
        data.tensors = (torch.randn(3, 2),)
        assert_close(compiled(torch.ones(2)), data.tensors[0][0])
