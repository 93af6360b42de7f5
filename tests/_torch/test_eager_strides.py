"""Results have eager's strides also where an op's symbolic version has others."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import funcaot

TURNED = torch.arange(30.0).add(1).div(31).reshape(6, 5).mT
PLAIN = torch.arange(30.0).add(2).div(40).reshape(5, 6)
IMAGES = torch.arange(120.0).reshape(2, 5, 3, 4).to(memory_format=torch.channels_last)

OPS = {
    "copysign": lambda a, b, c: torch.copysign(a, b - 0.5),
    "floor_divide": lambda a, b, c: torch.floor_divide(a, b),
    "div floor": lambda a, b, c: torch.div(a, b, rounding_mode="floor"),
    "div trunc": lambda a, b, c: torch.div(a, b, rounding_mode="trunc"),
    "addr": lambda a, b, c: torch.addr(a, b[:, 0], b[0], beta=0.0),
    "xlogy": lambda a, b, c: torch.xlogy(a, b),
    "logsigmoid": lambda a, b, c: F.logsigmoid(a),
    "binary_cross_entropy": lambda a, b, c: F.binary_cross_entropy(a, b, reduction="none"),
    "isin": lambda a, b, c: torch.isin(a, b),
    "roll": lambda a, b, c: torch.roll(c, -1, 0),
    "roll twice": lambda a, b, c: torch.roll(c, (1, 1), (0, 1)),
    "channel_shuffle": lambda a, b, c: F.channel_shuffle(c[:, :4], 2),
    "memory of a roll": lambda a, b, c: torch.roll(c, -1, 0).as_strided((5, 4), (4, 1)),
    "roll of what is contiguous": lambda a, b, c: torch.roll(c.contiguous(), 1, 1),
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", OPS)
def test_strides_and_values(name, dynamic):
    function = OPS[name]
    compiled = funcaot.compile(function, backend="eager", dynamic=dynamic)
    for a, b, c in [(TURNED, PLAIN, IMAGES), (TURNED.contiguous(), PLAIN, IMAGES.contiguous())]:
        ours, expected = compiled(a, b, c), function(a, b, c)
        assert ours.stride() == expected.stride()
        assert_close(ours, expected)


@pytest.mark.parametrize("name", ["copysign", "roll", "xlogy", "logsigmoid", "memory of a roll"])
def test_gradients(name):
    function = OPS[name]
    compiled = funcaot.compile(function, backend="eager")
    inputs = [value.detach().requires_grad_() for value in (TURNED, PLAIN, IMAGES)]
    found = []
    for called in (compiled, function):
        y = called(*inputs)
        weights = torch.arange(float(y.numel())).reshape(y.shape)
        found.append(torch.autograd.grad((y * weights).sum(), inputs, allow_unused=True))
    assert_close(*found)
