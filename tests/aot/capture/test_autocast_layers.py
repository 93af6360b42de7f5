"""Recurrent layers and attention under CPU autocast: dtypes are those of eager."""

import pytest
import torch
from torch import nn

import funcaot

LAYERS = {
    "LSTM": lambda: nn.LSTM(8, 8, batch_first=True),
    "LSTM, two layers, both ways": lambda: nn.LSTM(8, 8, 2, bidirectional=True),
    "LSTM with projections": lambda: nn.LSTM(8, 8, proj_size=4),
    "GRU": lambda: nn.GRU(8, 8),
    "RNN": lambda: nn.RNN(8, 8),
    "encoder layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0),
    "attention": lambda: nn.MultiheadAttention(8, 2),
}


def flat(value):
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value or () for tensor in flat(part)]


def outcome(layer, wrap, *, inside, grad):
    def function(x):
        operands = (x, x, x) if isinstance(layer, nn.MultiheadAttention) else (x,)
        if not inside:
            return layer(*operands)
        with torch.autocast("cpu", torch.bfloat16):
            return layer(*operands)

    compiled, found = wrap(function), []
    for index in range(2):
        torch.manual_seed(index)
        x = torch.randn(3, 5, 8, requires_grad=grad)
        layer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            results = flat(compiled(x))
        found += [result.detach() for result in results]
        if grad:
            sum((r.float() ** 2).sum() for r in results if r.requires_grad).backward()
            found += [x.grad, *(p.grad.clone() for p in layer.parameters())]
    return found


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("inside", [False, True], ids=["around", "inside"])
@pytest.mark.parametrize("grad", [False, True], ids=["no grad", "grad"])
def test_dtypes_are_those_of_eager(name, inside, grad):
    torch.manual_seed(0)
    layer = LAYERS[name]().requires_grad_(grad)
    wanted = outcome(layer, lambda f: f, inside=inside, grad=grad)
    found = outcome(layer, lambda f: funcaot.compile(f, backend="eager"), inside=inside, grad=grad)
    assert [tensor.dtype for tensor in found] == [tensor.dtype for tensor in wanted]
    torch.testing.assert_close(found, wanted, rtol=3e-2, atol=3e-2)
