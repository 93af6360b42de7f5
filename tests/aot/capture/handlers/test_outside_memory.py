"""Tensors of memory that isn't torch's: read as it is, written to and given out by no program."""

import numpy as np
import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

TABLE = np.arange(6.0).reshape(2, 3)
COLUMNS = np.arange(12.0).reshape(2, 6)[:, ::2]
MAKERS = {"from_numpy": torch.from_numpy, "as_tensor": torch.as_tensor, "asarray": torch.asarray}
ARRAYS = {"whole": TABLE, "strided": COLUMNS}


def compiled(function):
    return funcaot.compile(function, backend="eager")


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_read(make, array):
    function = compiled(lambda x: x * make(array)[1] + make(array).sum())
    array = array.copy()
    for _ in range(3):
        x = torch.ones(3, dtype=torch.float64)
        expected = x * torch.tensor(array)[1] + array.sum()
        torch.testing.assert_close(function(x), expected)


def write(tensor):
    tensor.add_(1)


def write_to_a_view(tensor):
    tensor[0] = 7


def write_out(tensor):
    torch.mul(tensor, 2, out=tensor)


@pytest.mark.parametrize("change", [write, write_to_a_view, write_out])
@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_written_to(make, array, change):
    def function(x):
        tensor = make(array)
        change(tensor)
        return x * tensor[1]

    before = array.copy()
    with pytest.raises(UnsupportedError, match="isn't torch's"):
        compiled(function)(torch.ones(3, dtype=torch.float64))
    assert (array == before).all()


@pytest.mark.parametrize("view", [lambda t: t, lambda t: t[1:], lambda t: t.T])
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_given_out(make, view):
    with pytest.raises(UnsupportedError, match="shares memory"):
        compiled(lambda x: (x * 2, view(make(TABLE))))(torch.ones(3))
    found = compiled(lambda x: view(make(TABLE)).clone())(torch.ones(3))
    torch.testing.assert_close(found, view(torch.tensor(TABLE)))


def test_an_array_of_the_functions_own():
    def function(x):
        tensor = torch.from_numpy(np.arange(3.0))
        tensor.add_(x)
        return tensor

    function = compiled(function)
    for _ in range(3):
        found = function(torch.ones(3, dtype=torch.float64))
        torch.testing.assert_close(found, torch.arange(1.0, 4.0, dtype=torch.float64))
        found.zero_()


def test_an_array_that_is_written_to_after_its_tensor_was_made():
    def function(x):
        array = np.arange(3.0)
        tensor = torch.from_numpy(array)
        array[0] = 5
        return x + tensor

    with pytest.raises(UnsupportedError, match="then writes to that memory"):
        compiled(function)(torch.ones(3))
