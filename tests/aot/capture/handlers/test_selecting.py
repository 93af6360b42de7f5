"""Indices that sizes are part of select by them, and one program serves all sizes.

The oracle is the function in eager mode.
"""

import pytest
import torch

import funcaot


def last_written(x):
    y = x * 2
    y[x.shape[0] - 1] = 0
    return y.sum() + (y * y).sum()


def parts_written(x):
    y = x * 2
    y[x.shape[0] - 1, 1:] = x[0, 0]
    y[..., x.shape[1] - 1] += 1
    y[None, 0, x.shape[0] // 9] *= 3
    return (y * y).sum()


def by_a_mask_written(x):
    y = x * 2
    y[x.shape[0] - 2, torch.tensor([True, False, True])] = x[0, :2]
    return (y * y).sum()


def input_written(x):
    x.mul_(2)[x.shape[0] - 2] = 1
    return (x * x).sum()


CASES = {
    "the last": lambda x: x[x.shape[0] - 1],
    "of it the first": lambda x: x[x.shape[0] - 1, 0],
    "by a tuple of one": lambda x: x[(x.shape[0] - 1,)],
    "beside None": lambda x: x[None, x.shape[0] - 1, ..., None],
    "beside a slice": lambda x: x[1:, x.shape[1] - 1],
    "after an ellipsis": lambda x: x[..., x.shape[0] // 4],
    "from the end": lambda x: x[-(x.shape[0] // 2)],
    "two": lambda x: x[x.shape[0] - 1, x.shape[0] // 4],
    "beside a tensor": lambda x: x[x.shape[0] - 1, torch.tensor([0, 1])],
    "between tensors": lambda x: x.expand(2, *x.shape)[
        torch.tensor([0, 1]), x.shape[0] - 1, torch.tensor([1, 2])
    ],
    "beside a mask": lambda x: x[:, None][x.shape[0] - 1, :, torch.tensor([True, False, True])],
    "a list": lambda x: x[[0, x.shape[0] - 1]],
    "a list in a tuple": lambda x: x[[0, x.shape[0] - 1], [1, 2]],
    "a view of a column": lambda x: x[:, 0][x.shape[0] - 1],
    "in a loop": lambda x: sum(x[i] * i for i in (0, x.shape[0] // 2, x.shape[0] - 1)),
    "last_written": last_written,
    "parts_written": parts_written,
    "by_a_mask_written": by_a_mask_written,
}


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_one_program_for_all_sizes(function):
    compiled = funcaot.compile(function, backend="eager")
    for size in (8, 9, 10, 11, 9):
        x = torch.rand(size, 3, requires_grad=True)
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride()
        assert found._is_view() == expected._is_view()
        gradients = (torch.autograd.grad(y.exp().sum(), x)[0] for y in (found, expected))
        torch.testing.assert_close(*gradients)
    assert funcaot.report(compiled).cache_misses <= 2


def test_an_argument_is_written_to():
    compiled = funcaot.compile(input_written, backend="eager")
    for size in (8, 9, 10, 13):
        x = torch.rand(size, 3)
        y = x.clone()
        torch.testing.assert_close(compiled(x), input_written(y))
        torch.testing.assert_close(x, y)
        assert x._version == y._version
    assert funcaot.report(compiled).cache_misses <= 2


@pytest.mark.parametrize("size", [3, 4, 5])
def test_too_far(size):
    def function(x):
        return x[x.shape[0] - 1, x.shape[0]]

    compiled = funcaot.compile(function, backend="eager")
    for length in (1, 2, size):
        x = torch.rand(length, 3)
        try:
            expected = function(x)
        except IndexError:
            with pytest.raises(IndexError):
                compiled(x)
        else:
            torch.testing.assert_close(compiled(x), expected)


def test_too_many():
    compiled = funcaot.compile(lambda x: x[0, 0, x.shape[0] - 1], backend="eager")
    for size in (4, 5):
        with pytest.raises(IndexError, match="too many indices"):
            compiled(torch.rand(size, 3))
