"""Lazy modules: the first call makes parameters as eager does, the next one is compiled."""

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError
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


class MakesLayer(nn.Module):
    def forward(self, x):
        if not hasattr(self, "layer"):
            self.layer = nn.Linear(x.shape[-1], 2)
        return self.layer(x)


class FillsNone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = None

    def forward(self, x):
        if self.layer is None:
            self.layer = nn.Sequential(nn.Linear(x.shape[-1], 2), nn.BatchNorm1d(2))
        return self.layer(x)


class MakesParameter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_parameter("weight", None)

    def forward(self, x):
        if self.weight is None:
            self.weight = nn.Parameter(torch.randn(x.shape[-1], 2))
        return x @ self.weight


class LayerForEachSize(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleDict()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        size = str(x.shape[-1])
        if size not in self.layers:
            self.layers[size] = nn.Linear(x.shape[-1], 2)
        return self.layers[size](x) * self.calls


class LayerInEachCall(nn.Module):
    def forward(self, x):
        self.layer = nn.Linear(x.shape[-1], 2)
        return self.layer(x)


def story(make, compiles):
    torch.manual_seed(0)
    model = make()
    called = compiles(model)
    found = []
    for size in (3, 3, 4, 3, 4, 4) if make is LayerForEachSize else (3, 3, 3):
        result = called(torch.arange(4.0 * size).reshape(4, size))
        result.sum().backward()
        found.append(result.detach())
    found += [*model.buffers(), *(p.detach() for p in model.parameters())]
    return found + [p.grad for p in model.parameters()], called


@pytest.mark.parametrize("make", [MakesLayer, FillsNone, MakesParameter, LayerForEachSize])
def test_layers_and_parameters_that_a_first_call_makes(make):
    expected, _ = story(make, lambda model: model)
    found, compiled = story(make, lambda model: funcaot.compile(model, backend=COMPILER))
    torch.testing.assert_close(found, expected)
    assert 1 <= len(funcaot.report(compiled).entries) <= 3


@pytest.mark.parametrize("fullgraph", [True, False])
def test_layers_that_every_call_makes(fullgraph):
    expected, _ = story(LayerInEachCall, lambda model: model)
    found, compiled = story(
        LayerInEachCall,
        lambda model: funcaot.compile(model, backend="eager", fullgraph=fullgraph),
    )
    torch.testing.assert_close(found, expected)

    def more():
        for _ in range(6):
            compiled(torch.ones(4, 3))

    message = "makes a module .Linear. and keeps it, in every call"
    if fullgraph:
        with pytest.raises(UnsupportedError, match=message):
            more()
    else:
        with pytest.warns(CaptureWarning, match=message):
            more()
