"""What a backward queues, to run when all of it is over, runs after each, or is refused."""

import pytest
import torch

import funcaot
from funcaot.errors import OutsideError

WAYS = {"engine": torch.autograd.Variable._execution_engine.queue_callback}
if hasattr(torch.autograd.graph, "queue_callback"):  # since torch 2.15
    WAYS["graph"] = torch.autograd.graph.queue_callback
RAN = []


def queue(way, what=1):
    WAYS[way](lambda: RAN.append(what))


class Queueing(torch.autograd.Function):
    @staticmethod
    def forward(x, way):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.way = inputs[1]

    @staticmethod
    def backward(ctx, cotangent):
        queue(ctx.way)
        return cotangent * 2, None


def of_a_function(x, way):
    return Queueing.apply(x, way).sin()


def of_a_parameter(x, way):
    return LAYERS[way](x)


def with_hooks(way):
    layer = torch.nn.Linear(3, 3)
    layer.weight.register_hook(lambda gradient: queue(way))
    layer.bias.register_post_accumulate_grad_hook(lambda bias: queue(way, 2))
    return layer


LAYERS = {way: with_hooks(way) for way in WAYS}


def of_a_tensor(x, way):
    x = x.sin()
    x.register_hook(lambda gradient: queue(way))
    return x.exp()


def in_the_function(x, way):
    x = x.detach().requires_grad_()
    Queueing.apply(x, way).sin().sum().backward()
    return x.grad * x


def ran_by(function, way):
    """What has run after each of three calls with their backwards, in any order, and gradients."""
    RAN.clear()
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(3):
        x = torch.rand(3, generator=generator).requires_grad_()
        y = function(x, way)
        if y.requires_grad:
            y.sum().backward()
        found.append((sorted(RAN), x.grad))
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("function", [of_a_function, in_the_function, of_a_parameter])
def test_it_runs_after_each(function, way):
    compiled = funcaot.compile(function, backend="eager")
    torch.testing.assert_close(ran_by(compiled, way), ran_by(function, way))


@pytest.mark.parametrize("way", WAYS)
def test_that_of_a_hook_inside_is_refused(way):
    y = funcaot.compile(of_a_tensor, backend="eager")(torch.rand(3, requires_grad=True), way)
    with pytest.raises(OutsideError, match="has something run after the backward"):
        y.sum().backward()


@pytest.mark.parametrize("way", WAYS)
def test_that_of_a_module_is_refused(way):
    layer = torch.nn.Linear(3, 3)
    layer.register_full_backward_hook(lambda *given: queue(way))
    y = funcaot.compile(layer, backend="eager")(torch.rand(3, requires_grad=True))
    with pytest.raises(OutsideError, match="has something run after the backward"):
        y.sum().backward()
