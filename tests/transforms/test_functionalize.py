"""functionalize of Functions: values, updates of inputs, and graphs without in-place operations."""

from __future__ import annotations

import pytest
import torch
from torch.func import functionalize, grad, jvp, vjp, vmap
from torch.fx.experimental.proxy_tensor import make_fx

import funcaot
from funcaot import Function
from funcaot.transforms.tracing import FunctionNode

pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")

X = torch.linspace(-1.0, 1.5, 6, dtype=torch.float64).reshape(2, 3)


class Smooth(Function):
    """Works in place on a temporary and returns a view."""

    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        y = x.clone()
        y.mul_(2).add_(1)
        return y.view(-1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        g.mul_(2)
        return g.view(ctx.shape)


class AddOne(Function):
    generate_vmap_rule = True
    generate_jvp_rule = True

    @staticmethod
    def forward(x):
        return x.add_(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return 3 * g


def uses_dirty(x):
    z = x * 2
    AddOne.apply(z.view(-1))
    return (z * z).sum()


def in_place_ops(graph):
    names = [n.target._schema.name for n in graph.graph.nodes if hasattr(n.target, "_schema")]
    return [name for name in names if name.endswith("_") or name == "aten::copy_"]


def nodes(graph):
    return [n for n in graph.graph.nodes if isinstance(n.target, FunctionNode)]


@pytest.mark.parametrize("remove", ["mutations", "mutations_and_views"])
@pytest.mark.parametrize("inline", [False, True], ids=["node", "inline"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: lambda x: Smooth.apply(x).sum(),
        lambda: grad(lambda x: Smooth.apply(x).sin().sum()),
        lambda: vmap(grad(lambda x: Smooth.apply(x).sin().sum())),
        lambda: uses_dirty,
        lambda: grad(uses_dirty),
        lambda: vmap(grad(uses_dirty)),
        lambda: lambda x: jvp(uses_dirty, (x,), (x,)),
    ],
    ids=["call", "grad", "vmap_grad", "dirty", "grad_dirty", "vmap_grad_dirty", "jvp_dirty"],
)
def test_make_fx(make, inline, remove, request):
    function = functionalize(make(), remove=remove)
    expected = make()(X.clone())
    if inline:
        with funcaot.inline_functions():
            graph = make_fx(function)(X)
    else:
        graph = make_fx(function)(X)
    assert in_place_ops(graph) == []
    assert bool(nodes(graph)) is not inline
    torch.testing.assert_close(graph(X.clone()), expected)
    from_torch = "jvp" in request.node.callspec.id  # torch's own jvp leaves views behind
    if remove == "mutations_and_views" and inline and not from_torch:
        views = ("aten::view", "aten::transpose", "aten::unsqueeze", "aten::expand")
        names = [n.target._schema.name for n in graph.graph.nodes if hasattr(n.target, "_schema")]
        assert not set(names) & set(views)


def test_the_kept_node_keeps_its_rules():
    graph = make_fx(functionalize(lambda x: AddOne.apply(x * 1).sum()))(X)
    torch.testing.assert_close(grad(graph)(X), torch.full_like(X, 3.0))
    torch.testing.assert_close(vmap(grad(graph))(X), torch.full_like(X, 3.0))


def test_a_dirty_input_of_the_whole_function_is_written_back():
    x = X.clone()
    y = functionalize(lambda z: AddOne.apply(z))(x)
    torch.testing.assert_close(x, X + 1)
    torch.testing.assert_close(y, X + 1)


def test_aliases_of_a_dirty_input_see_the_update():
    def function(x):
        base = x * 1
        view, other = base[0], base.t()
        AddOne.apply(view)
        return base, other

    torch.testing.assert_close(functionalize(function)(X), function(X))


def test_grad_outside_functionalize():
    torch.testing.assert_close(grad(functionalize(uses_dirty))(X), grad(uses_dirty)(X))
    torch.testing.assert_close(
        vjp(functionalize(uses_dirty), X)[1](torch.tensor(1.0).double()),
        vjp(uses_dirty, X)[1](torch.tensor(1.0).double()),
    )
