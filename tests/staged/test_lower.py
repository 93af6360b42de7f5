"""``funcaot.lower``: what would be compiled, and what it costs, before a call."""

import pytest
import torch
from torch import nn

import funcaot
from funcaot.errors import UnsupportedError


def energy(x, w):
    return (x @ w).tanh().sum()


def spec(*shape, requires_grad=False):
    return torch.empty(shape, device="meta", requires_grad=requires_grad)


def ops(module):
    return [str(node.target) for node in module.graph.nodes if node.op == "call_function"]


class Tripled(funcaot.Function):
    @staticmethod
    def forward(x):
        return x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output * 3


def test_graphs_of_specs():
    lowered = funcaot.lower(energy, spec(8, 4), spec(4, 2, requires_grad=True))
    assert ops(lowered.graph) == ["aten.mm.default", "aten.tanh.default", "aten.sum.default"]
    assert "aten.tanh_backward.default" in ops(lowered.backward)
    assert 'primal_0: "f32[8, 4]"' in lowered.code
    assert repr(lowered) == "<funcaot lowered energy: float32[8, 4], float32[4, 2] requires_grad>"


def test_without_grad_there_is_no_backward():
    lowered = funcaot.lower(energy, spec(8, 4), spec(4, 2))
    assert lowered.backward is None
    assert lowered.backward_cost is None


def test_the_cost():
    lowered = funcaot.lower(energy, spec(8, 4), spec(4, 2))
    cost = lowered.cost
    assert cost.flops == 2 * 8 * 4 * 2 + 16 + 1
    assert cost.bytes_read == 4 * (32 + 8)
    assert cost.bytes_written == 4
    # The product and its tanh at once.
    assert cost.peak_memory == 4 * 2 * 16
    assert str(cost) == "145 flops, 160 bytes read, 4 bytes written, 128 bytes at the peak"


def test_views_cost_nothing_and_keep_memory():
    lowered = funcaot.lower(lambda x: (x * 2).t()[0].sin(), spec(4, 4))
    assert lowered.cost.flops == 16 + 4
    assert lowered.cost.peak_memory == 4 * (16 + 4)


def test_a_function_of_the_user_counts_by_its_ops():
    lowered = funcaot.lower(Tripled.apply, spec(10, requires_grad=True))
    assert lowered.cost.flops == 10
    assert lowered.backward_cost.flops == 10


def test_effects_are_told_and_not_made():
    x = torch.ones(3)
    lowered = funcaot.lower(lambda x: x.add_(1).sum(), x)
    assert "input 0" in lowered.effects
    assert torch.equal(x, torch.ones(3))


def test_compiling_serves_the_call_that_was_described():
    x, w = torch.rand(8, 4), torch.rand(4, 2, requires_grad=True)
    looked = funcaot.compile(energy, backend="eager")
    compiled = funcaot.lower(looked, spec(8, 4), spec(4, 2, requires_grad=True)).compile()
    result = compiled(x, w)
    torch.testing.assert_close(result, energy(x, w))
    (gradient,) = torch.autograd.grad(result, w)
    torch.testing.assert_close(gradient, torch.autograd.grad(energy(x, w), w)[0])
    assert funcaot.report(compiled).cache_misses == 0
    assert funcaot.report(looked).entries == ()
    assert funcaot.report(compiled).backend == "eager"


def test_a_module():
    module = nn.Linear(4, 2)
    compiled = funcaot.lower(funcaot.compile(module, backend="eager"), spec(8, 4)).compile()
    x = torch.rand(8, 4)
    torch.testing.assert_close(compiled(x), module(x))
    with torch.no_grad():
        module.weight.zero_()
    torch.testing.assert_close(compiled(x), module(x))
    assert len(funcaot.report(compiled).entries) == 1
    assert funcaot.lower(module, spec(8, 4)).cost.flops == 2 * 8 * 4 * 2


def test_inside_of_a_transform():
    with pytest.raises(UnsupportedError, match="inside of a transform"):
        torch.func.vmap(lambda x: funcaot.lower(torch.sin, x))(torch.ones(3))


def test_exceptions_pass_through():
    def wrong(x):
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        funcaot.lower(wrong, spec(3))
