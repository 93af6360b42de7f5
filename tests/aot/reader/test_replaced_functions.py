"""Functions of ``torch.nn.functional`` that somebody replaces, which torch's own modules call."""

import pytest
import torch

import funcaot

REPLACED = {
    "linear": (torch.nn.Linear(3, 3), lambda x, weight, bias=None: x * 7),
    "relu": (torch.nn.Sequential(torch.nn.Identity(), torch.nn.ReLU()), lambda x, inplace: -x),
    "layer_norm": (torch.nn.LayerNorm(3), lambda x, *settings: x - 1),
}


@pytest.mark.parametrize("name", REPLACED)
def test_replaced_and_restored(monkeypatch, name):
    module, function = REPLACED[name]
    x = torch.randn(2, 3)
    compiled = funcaot.compile(module, backend="eager")
    before = compiled(x)
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, name, function)
        torch.testing.assert_close(compiled(x), module(x))
        assert not torch.equal(compiled(x), before)
    torch.testing.assert_close(compiled(x), before)
