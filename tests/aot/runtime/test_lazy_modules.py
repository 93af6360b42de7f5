"""Lazy modules: the first call makes parameters as eager does, the next one is compiled."""

import pytest
import torch
from torch import nn

import funcaot
from tests.hostile import COMPILER


class Scaled(nn.modules.lazy.LazyModuleMixin, nn.Module):
    """Becomes another class when its parameters are made."""

    class Made(nn.Module):
        def forward(self, x):
            return self.weight * x + self.shift

    cls_to_become = Made

    def __init__(self):
        super().__init__()
        self.weight = nn.UninitializedParameter()
        self.register_buffer("shift", nn.UninitializedBuffer())

    def forward(self, x):
        return self.weight * x + self.shift

    def initialize_parameters(self, x):
        with torch.no_grad():
            self.weight.materialize(x.shape)
            self.shift.materialize(x.shape)
            self.weight.fill_(2.0)
            self.shift.fill_(1.0)


MODULES = {
    "linear": lambda: nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyLinear(2)),
    "normalized": lambda: nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d()),
    "convolutions": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 5)), nn.LazyConv1d(2, 3), nn.LazyBatchNorm1d(), nn.Flatten()
    ),
    "the user's": Scaled,
}


def trajectory(made, how, compiles):
    torch.manual_seed(0)
    model = MODULES[made]()

    def step(x):
        result = model(x)
        result.sum().backward()
        return result

    called = compiles({"module": model, "function": lambda x: model(x), "step": step}[how])
    found = [called(torch.arange(20.0).reshape(4, 5) + i).detach().clone() for i in range(3)]
    found += [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    found += [parameter.grad for parameter in model.parameters()]
    kinds = [type(module) for module in model.modules()]
    return found, kinds, called


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("how", ["module", "function", "step"])
@pytest.mark.parametrize("made", MODULES)
def test_the_first_call_is_eager(made, how, backend):
    expected, kinds, _ = trajectory(made, how, lambda function: function)
    found, found_kinds, called = trajectory(
        made, how, lambda function: funcaot.compile(function, backend=backend)
    )
    torch.testing.assert_close(found, expected)
    assert found_kinds == kinds
    assert len(funcaot.report(called).entries) == 1


@pytest.mark.slow
def test_on_inductor():
    expected, _, _ = trajectory("normalized", "step", lambda function: function)
    torch.testing.assert_close(trajectory("normalized", "step", funcaot.compile)[0], expected)
