"""Functions whose backward closes over tensors of the call, which nobody saved for it."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.checkpoint import checkpoint

import funcaot
from tests.aot.subclasses.kinds import made, same
from tests.hostile import COMPILER


def new_style(forward, backward, base=torch.autograd.Function):
    members = {
        "forward": staticmethod(lambda x: forward(x)),
        "setup_context": staticmethod(lambda ctx, inputs, output: None),
        "backward": staticmethod(backward),
    }
    return type("Closing", (base,), members)


def of_funcaot(forward, backward):
    return new_style(forward, backward, funcaot.Function)


def old_style(forward, backward):
    members = {
        "forward": staticmethod(lambda ctx, x: forward(x)),
        "backward": staticmethod(backward),
    }
    return type("Closing", (torch.autograd.Function,), members)


def operand(x, kind):
    return kind(torch.sin, lambda ctx, g: g * x.cos()).apply(x) * 2


def between(x, kind):
    y, z = x * 3, x.exp()
    return kind(torch.sin, lambda ctx, g: g * y.cos() * z).apply(y)


def result(x, kind):
    y = kind(torch.exp, lambda ctx, g: g * y).apply(x)
    return y * 2


def deep(x, kind):
    held = {"all": [x.exp()]}

    def factor(g):
        return g * held["all"][0]

    def backward(ctx, g, other=x.cos()):  # noqa: B008  (a default is what is looked for)
        return factor(g) * other

    return kind(torch.sin, backward).apply(x * 2)


def without_grad(x, kind):
    with torch.no_grad():
        z = x.exp()
    return kind(torch.sin, lambda ctx, g: g * z).apply(x)


def written(x, kind):
    """Nobody counts writes to what wasn't saved: the backward reads the new values."""
    z = x.detach().clone()
    y = kind(torch.sin, lambda ctx, g: g * z).apply(x)
    z.add_(1)
    return y * z


def one_in_another(x, kind):
    def backward(ctx, g):
        return kind(lambda h: h * 2, lambda ctx, h: h * x).apply(g) * x

    return kind(torch.sin, backward).apply(x)


def drawn(x, kind):
    z = torch.rand_like(x)
    return kind(torch.sin, lambda ctx, g: g * z).apply(x)


def in_a_checkpoint(x, kind):
    return checkpoint(lambda y: operand(y, kind), x * 2, use_reentrant=False)


def gradient_inside(x, kind):
    (gradient,) = torch.autograd.grad(operand(x, kind).sum(), x, create_graph=True)
    return gradient * 2


PROGRAMS = [
    operand, between, result, deep, without_grad, written, one_in_another, drawn, in_a_checkpoint,
    gradient_inside,
]  # fmt: skip
TENSORS = {
    "plain": lambda seed: made(seed, 3),
    "wrapper": lambda seed: TwoTensor(
        made(seed, 3, grad=False), made(seed + 9, 3, grad=False)
    ).requires_grad_(),
}


def derivatives(function, kind, make, order=2):
    """Results and derivatives of three calls."""
    found = []
    for seed in range(3):
        torch.manual_seed(seed)
        x = make(seed)
        value = function(x, kind)
        found.append(value)
        for _ in range(order):
            if not value.requires_grad:
                break
            ones = torch.ones_like(value)
            (value,) = torch.autograd.grad(value, x, ones, create_graph=True)
            found.append(value)
    return found


CASES = [
    *[(program, tensor, old_style) for program in PROGRAMS for tensor in TENSORS],
    *[(program, "plain", new_style) for program in (result, one_in_another, in_a_checkpoint)],
    (between, "wrapper", new_style),
    (operand, "plain", of_funcaot),
]


@pytest.mark.parametrize(("program", "tensor", "kind"), CASES)
def test_as_in_eager(program, tensor, kind):
    compiled = funcaot.compile(program, backend=COMPILER, fullgraph=True)
    found = derivatives(compiled, kind, TENSORS[tensor])
    same(found, derivatives(program, kind, TENSORS[tensor]), rtol=1e-4, atol=1e-5)
    assert len(compiled.entries) == 1


def on_values(x, kind):
    """No graph can follow its forward."""
    z = x.exp()
    return kind(lambda y: y * y.sum().item(), lambda ctx, g: g * z).apply(x)


@pytest.mark.parametrize("kind", [old_style, new_style])
def test_a_function_on_real_values(kind):
    compiled = funcaot.compile(on_values, backend=COMPILER, fullgraph=True)
    found = derivatives(compiled, kind, TENSORS["plain"])
    same(found, derivatives(on_values, kind, TENSORS["plain"]), rtol=1e-4, atol=1e-5)


def test_on_the_default_backend():
    compiled = funcaot.compile(lambda x: between(x, old_style))
    found = derivatives(lambda x, kind: compiled(x), None, TENSORS["plain"])
    same(found, derivatives(between, old_style, TENSORS["plain"]), rtol=1e-4, atol=1e-5)
