"""Packed sequences: packed, run through recurrent layers and put side by side, to second order."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import funcaot
from tests.hostile import COMPILER

LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
LENGTHS = [torch.tensor([5, 3, 3]), torch.tensor([2, 5, 3])]


def orders(function, layer, lengths, batch_first):
    """Results and two gradients."""
    generator = torch.Generator().manual_seed(5)
    shape = (3, 5, 2) if batch_first else (5, 3, 2)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
    y, ends, sizes = function(x, lengths)
    leaves = [x, *layer.parameters()]
    first = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
    return [y, ends, sizes, *first, *second]


SLOW = pytest.mark.slow
CASES = [
    ("gru", False, "eager"),
    pytest.param("lstm", True, COMPILER, marks=SLOW),
    pytest.param("rnn", False, COMPILER, marks=SLOW),
    pytest.param("lstm", False, "inductor", marks=[SLOW, pytest.mark.long]),
]


@pytest.mark.parametrize(("name", "batch_first", "backend"), CASES)
def test_packed_sequences(name, batch_first, backend):
    torch.manual_seed(1)
    layer = LAYERS[name](2, 3, batch_first=batch_first).double()

    def function(x, lengths):
        packed = pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        y, ends = pad_packed_sequence(layer(packed)[0], batch_first, 0.5, total_length=6)
        return y, ends, packed.batch_sizes

    compiled = funcaot.compile(function, backend=backend)
    for lengths in (*LENGTHS, LENGTHS[0]):
        found = orders(compiled, layer, lengths, batch_first)
        wanted = orders(function, layer, lengths, batch_first)
        torch.testing.assert_close(found, wanted)
        assert [x.stride() for x in found] == [x.stride() for x in wanted]


@pytest.mark.parametrize("lengths", [[3, 5, 2], [5, 3, 0], [5, 3]], ids=str)
def test_what_torch_refuses_to_pack_is_refused(lengths):
    def function(x):
        return pack_padded_sequence(x, lengths).data

    with pytest.raises(RuntimeError) as eager:
        function(torch.ones(5, 3, 2))
    with pytest.raises(RuntimeError) as compiled:
        funcaot.compile(function, backend="eager")(torch.ones(5, 3, 2))
    assert str(eager.value).splitlines()[0] in str(compiled.value)
