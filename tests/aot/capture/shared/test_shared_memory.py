"""Inputs that share memory: who writes where."""

import pytest
import torch

from tests.aot.programs.differential import Inputs, check


def _write_both(a, b):
    a.mul_(3)
    b.mul_(2)
    return a + b


def _write_first(a, b):
    a.mul_(3)
    return a + b


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [_write_both, _write_first])
@pytest.mark.parametrize("offset", [23, 25, 28])
@pytest.mark.parametrize("step", [8, 9])
def test_inputs_with_gaps_side_by_side(step, offset, function, grad):
    """The memory that stands for one input must not hold what the other one wrote."""

    def make():
        leaf = torch.arange(80.0, dtype=torch.float64, requires_grad=grad)
        whole = leaf + 1
        first = whole.as_strided((4, 4), (step, 1), 0)
        second = whole.as_strided((4, 4), (step, 1), offset)
        return Inputs([first, second], [leaf, whole], [leaf])

    check(function, make)


@pytest.mark.parametrize("order", [1, -1])
def test_an_input_without_gaps_in_the_gap_of_another(order):
    def make():
        whole = torch.arange(24.0, dtype=torch.float64)
        inputs = [whole[:12].view(3, 4)[:, :2], whole[10:12]]
        return Inputs(inputs[::order], [whole], [])

    check(lambda a, b: (a.mul_(3), b.mul_(2), a.sum() + b.sum())[-1], make)
