"""A branch on a number that the function draws, as layer drop has, goes by eager's numbers.

The oracle is the function itself in eager mode, from the same seed.
"""

import pytest
import torch

import funcaot


def layer_drop(x):
    for _ in range(2):
        x = x.sin() if torch.rand(()) < 0.5 else x + 1
    return x


def drawn_size(x):
    count = torch.randint(2, 5, (1,)).item()
    return x[:count].sum(), x * count


@pytest.mark.slow
@pytest.mark.parametrize("function", [layer_drop, drawn_size])
def test_as_in_eager(function):
    compiled = funcaot.compile(function)
    for seed in range(8):
        x = torch.rand(12)
        torch.manual_seed(seed)
        expected, state = function(x), torch.get_rng_state()
        torch.manual_seed(seed)
        torch.testing.assert_close(compiled(x), expected)
        assert torch.equal(torch.get_rng_state(), state)
    assert len(compiled.entries) <= 4
