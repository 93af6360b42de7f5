"""What is captured: expected graphs and extraction."""

import pytest
import torch
from expecttest import TestCase
from torch import fx

import funcaot
from funcaot.aot.graph import graphs
from funcaot.errors import GraphError


class Branching(funcaot.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        if gradient.is_contiguous():
            return gradient * x.cos()
        return gradient * 7


def printed(module):
    """One line a node, without what differs between versions of torch."""
    lines = []
    for node in module.graph.nodes:
        target = getattr(node.target, "__name__", node.target)
        lines.append(f"{node.name} = {target}({', '.join(map(str, node.args))})")
    return "\n".join(lines)


class CapturedGraphs(TestCase):
    def test_forward_and_the_backward_of_two_layouts(self):
        def f(x):
            y = Branching.apply(x * 2)
            y = y + 0
            y.add_(1)
            return y.relu()

        x = torch.ones(2, 3, requires_grad=True)
        compiled = funcaot.compile(f, backend="eager")
        for tangent in (torch.ones(2, 3), torch.ones(3, 2).t()):
            torch.autograd.grad(compiled(x), x, tangent)
        entry = funcaot.report(compiled).entries[0]
        contiguous, transposed = (backward.graph for backward in entry.backwards)
        self.assertExpectedInline(
            printed(entry.forward_graph),
            """\
primal_0 = primal_0()
mul = mul.Tensor(primal_0, 2)
branching = Branching(mul)
add = add.Tensor(branching, 0)
add_1 = add.Tensor(add, 1)
relu = relu.default(add_1)
output = output((relu, mul))""",
        )
        self.assertExpectedInline(
            printed(contiguous),
            """\
mul = mul()
relu = relu()
tangent_0 = tangent_0()
threshold_backward = threshold_backward.default(tangent_0, relu, 0)
cos = cos.default(mul)
mul_1 = mul.Tensor(threshold_backward, cos)
mul_2 = mul.Tensor(mul_1, 2)
output = output((mul_2,))""",
        )
        self.assertExpectedInline(
            printed(transposed),
            """\
mul = mul()
relu = relu()
tangent_1 = tangent_1()
threshold_backward_1 = threshold_backward.default(tangent_1, relu, 0)
cos_1 = cos.default(mul)
mul_3 = mul.Tensor(threshold_backward_1, cos_1)
mul_4 = mul.Tensor(mul_3, 2)
output = output((mul_4,))""",
        )

    def test_a_mutated_input_becomes_an_output(self):
        def f(x):
            x.mul_(2)
            return x.t()

        compiled = funcaot.compile(f, backend="eager")
        compiled(torch.ones(2, 3))
        entry = funcaot.report(compiled).entries[0]
        self.assertExpectedInline(
            printed(entry.forward_graph),
            """\
primal_0 = primal_0()
mul = mul.Tensor(primal_0, 2)
output = output((mul,))""",
        )
        self.assertExpectedInline(str(entry.aliases), """('input 0.t()',)""")
        self.assertExpectedInline(str(entry.mutations), """(0,)""")


def test_extraction_names_the_input_that_is_missing():
    graph = fx.Graph()
    x = graph.placeholder("x")
    z = graph.placeholder("z")
    y = graph.call_function(torch.ops.aten.add.Tensor, (x, z))
    with pytest.raises(GraphError, match="'z'"):
        graphs.extract(torch.nn.Module(), [x], [y])


def test_views_are_followed_to_their_root():
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.add.Tensor, (x, 1))
    t = graph.call_function(torch.ops.aten.t.default, (y,))
    v = graph.call_function(torch.ops.aten.view.default, (t, [6]))
    assert graphs.view_root(v) is y
    assert graphs.view_source(y) is None
