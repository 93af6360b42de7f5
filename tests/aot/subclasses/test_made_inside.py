"""Wrappers that a function makes of tensors that it closes over, as quantized layers do."""

import warnings

import pytest
import torch
from torch.nn.utils import parametrize

import funcaot
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, made, same, two

MAKES = {
    "both": lambda p, q, x: TwoTensor(p, q),
    "twice one": lambda p, q, x: TwoTensor(p, p),
    "one and computed": lambda p, q, x: TwoTensor(p, p * 2),
    "one and an argument": lambda p, q, x: TwoTensor(p, x.detach() if not p.requires_grad else x),
    "with metadata": lambda p, q, x: Factor(p, 3),
    "detached": lambda p, q, x: TwoTensor(p.detach(), q.detach()),
    "nested": lambda p, q, x: TwoTensor(TwoTensor(p, q), TwoTensor(q, p)),
    "quantized": lambda p, q, x: Int8.of(p.detach()),
}
USES = {
    "times": lambda w, x: w * 2,
    "with an argument": lambda w, x: (w * x).sin(),
    "product": lambda w, x: x @ w.t(),
}


@pytest.mark.parametrize("grad", [False, True], ids=["plain", "graded"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("make", MAKES)
@pytest.mark.filterwarnings("error::UserWarning")
def test_as_in_eager(make, use, grad):
    p, q = made(1, 3, 4, grad=grad), made(2, 3, 4, grad=grad)

    def function(x):
        return USES[use](MAKES[make](p, q, x), x)

    compiled = funcaot.compile(function, backend="eager")
    for seed in range(3):
        x, y = made(seed, 3, 4), made(seed, 3, 4)
        found, wanted = compiled(x), function(y)
        same(found, wanted)
        if wanted.requires_grad:
            given = [x, p, q], [y, p, q]
            kinds = [[each for each in group if each.requires_grad] for group in given]
            grads = [
                torch.autograd.grad(result.sum(), leaves, allow_unused=True)
                for result, leaves in zip((found, wanted), kinds, strict=True)
            ]
            same(*grads)
        with torch.no_grad():
            p.mul_(2)
    assert len(compiled.entries) == 1


class QuantizedLinear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        weight = Int8.of(made(0, 3, 4, grad=False))
        self.register_buffer("numbers", weight.data_8)
        self.register_buffer("scale", weight.scale)
        self.bias = torch.nn.Parameter(made(1, 3, grad=False))

    def forward(self, x):
        return torch.nn.functional.linear(x, Int8(self.numbers, self.scale), self.bias)


class ToTwo(torch.nn.Module):
    def forward(self, x):
        return TwoTensor(x, x * 2)


def parametrized():
    layer = torch.nn.Linear(4, 3, bias=False)
    with torch.no_grad():
        layer.weight.copy_(made(3, 3, 4))
    parametrize.register_parametrization(layer, "weight", ToTwo(), unsafe=True)
    return layer


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("layer", "kind"), [(QuantizedLinear, made), (parametrized, two)])
def test_layers(layer, kind, backend):
    layers = layer(), layer()
    compiled = funcaot.compile(layers[0], backend=backend)
    for seed in range(3):
        inputs = kind(seed, 2, 4), kind(seed, 2, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error", funcaot.errors.CaptureWarning)
            found = compiled(inputs[0])
        wanted = layers[1](inputs[1])
        same(found, wanted)
        found.sum().backward()
        wanted.sum().backward()
        same(
            *[
                [x.grad, *[p.grad for p in m.parameters()]]
                for x, m in zip(inputs, layers, strict=True)
            ]
        )


def test_one_that_is_returned_holds_the_tensors_themselves():
    p, q = made(1, 3, grad=False), made(2, 3, grad=False)
    compiled = funcaot.compile(lambda x: (TwoTensor(p, q), x * 2), backend="eager")
    for _ in range(2):
        found, _ = compiled(made(0, 3))
        assert found.a is p
        assert found.b is q


@pytest.mark.parametrize(
    "transform",
    [
        lambda w: torch.func.grad(lambda y: (y * y).sum())(w),
        lambda w: torch.func.vmap(lambda y: y.sin())(w),
        lambda w: torch.func.jvp(lambda y: y.sin(), (w,), (w,))[1],
    ],
    ids=["grad", "vmap", "jvp"],
)
def test_transforms_of_them(transform):
    p, q = made(1, 3, 4, grad=False), made(2, 3, 4, grad=False)

    def function(x):
        return transform(TwoTensor(p, q)) * x

    compiled = funcaot.compile(function, backend="eager", fullgraph=True)
    for seed in range(2):
        same(compiled(made(seed, 3, 4)), function(made(seed, 3, 4)))
