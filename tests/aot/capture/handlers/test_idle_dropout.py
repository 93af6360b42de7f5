"""Dropout that drops nothing or everything draws what eager draws, also with open sizes."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot


def plain(size):
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(size))


def jagged(size):
    return torch.nested.nested_tensor_from_jagged(plain(size), torch.tensor([0, 1, size]))


DROPOUTS = {
    "function": lambda x, p, training: F.dropout(x, p, training),
    "in place": lambda x, p, training: F.dropout(x * 1, p, training, True),
    "torch": lambda x, p, training: torch.dropout(x, p, training),
    "torch, in place": lambda x, p, training: torch.dropout_(x * 1, p, training),
    "module": lambda x, p, training: torch.nn.Dropout(p).train(training)(x),
}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("probability", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("make", [plain, jagged])
@pytest.mark.parametrize("name", DROPOUTS)
def test_draws_as_eager_does(name, make, probability, training):
    if make is jagged and "in place" in name:
        pytest.skip("eager has none")

    def function(x):
        return DROPOUTS[name](x, probability, training)

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 4, 6):
        results = []
        for each in (compiled, function):
            x = make(size)
            torch.manual_seed(0)
            found = each(x)
            values = found.values() if found.is_nested else found
            results.append((values, found is x, torch.get_rng_state()))
        (one, same, state), (other, same_too, state_too) = results
        assert_close(one, other)
        assert same == same_too
        assert torch.equal(state, state_too)
    assert len(compiled.entries) == 2


def test_everything_dropped_of_what_is_no_number():
    compiled = funcaot.compile(lambda x: F.dropout(x, 1.0), backend="eager")
    for size in (3, 4):
        assert compiled(torch.full((size,), torch.inf)).isnan().all()
