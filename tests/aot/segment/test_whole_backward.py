"""A Function that fills ``.grad`` asks in its backward whether all of the graph is derived."""

import pytest
import torch
from torch import nn

import funcaot


class Again(torch.autograd.Function):
    """Runs a block again in its backward, as checkpoints and reversible blocks do."""

    @staticmethod
    def forward(ctx, x, block, *weights):
        ctx.block, ctx.weights = block, weights
        ctx.save_for_backward(x)
        with torch.no_grad():
            return block(x)

    @staticmethod
    def backward(ctx, gradient):
        if not torch.autograd._is_checkpoint_valid():
            raise RuntimeError("not compatible with .grad()")
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.block(x)
        found = torch.autograd.grad(output, (x, *ctx.weights), gradient)
        return found[0], None, *found[1:]


class Told(torch.autograd.Function):
    """Its gradient is what it is told, in a run of the engine of its own too."""

    inside = None

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if Told.inside is None:
            return gradient * (2 if torch.autograd._is_checkpoint_valid() else 3)
        with torch.enable_grad():
            x = gradient.detach().requires_grad_()
            y = Asking.apply(x).sum()
        if Told.inside == "grad":
            return torch.autograd.grad(y, x)[0]
        inputs = [x] if Told.inside == "inputs" else None
        torch.autograd.backward(y, inputs=inputs)
        return x.grad


class Asking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (5 if torch.autograd._is_checkpoint_valid() else 7)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return Again.apply(self.first(x), self.block, *self.block.parameters())


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_it_is_told_what_it_is_in_eager(backend):
    plain, model = Model(), Model()
    compiled = funcaot.compile(model, backend=backend)
    for size in (3, 2, 5, 3):
        x = torch.randn(size, 4)
        for function in (plain, compiled):
            function(x).square().sum().backward()
        for first, second in zip(plain.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(second.grad, first.grad)
        loss = compiled(x).square().sum()
        with pytest.raises(RuntimeError, match=r"not compatible with \.grad"):
            torch.autograd.grad(loss, list(model.parameters()))


WAYS = {
    "backward": lambda loss, x: loss.backward(),
    "inputs": lambda loss, x: loss.backward(inputs=[x]),
    "grad": lambda loss, x: setattr(x, "grad", torch.autograd.grad(loss, x)[0]),
}


def gradient(function, way):
    x = torch.ones(3, requires_grad=True)
    WAYS[way](function(x).sum(), x)
    return x.grad[0].item()


@pytest.mark.parametrize("inside", [None, "backward", "inputs", "grad"])
@pytest.mark.parametrize("first", WAYS)
def test_a_backward_is_for_one_answer(first, inside, monkeypatch):
    monkeypatch.setattr(Told, "inside", inside)

    def function(x):
        return Told.apply(x.sin().asin())

    compiled = funcaot.compile(function, backend="eager")
    for way in (first, *WAYS, *WAYS):
        assert gradient(compiled, way) == pytest.approx(gradient(function, way)), way


def test_nobody_is_told_outside_of_a_trace():
    assert torch.autograd._is_checkpoint_valid.__module__ == "torch.autograd"
