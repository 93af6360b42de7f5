"""The proofs about graphs, on graphs that break them, and that no graph goes around them."""

import pytest
import torch
from torch import fx

import funcaot
from funcaot import config
from funcaot.aot.effects import analysis
from funcaot.aot.graph import graph_checks
from funcaot.aot.graph.graph_checks import NO_ROLES, Roles
from funcaot.errors import GraphError
from tests.aot.programs.differential import Inputs, check

aten = torch.ops.aten


def module_of(graph):
    return fx.GraphModule(torch.nn.Module(), graph)


def test_a_mutating_op_is_named_and_the_graph_shown():
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.add_.Tensor, (x, 1))
    graph.output((y,))
    with pytest.raises(GraphError, match="add_") as caught:
        graph_checks.check_functional(module_of(graph), "graph of f")
    assert "placeholder" in str(caught.value)


@pytest.mark.parametrize("kind", ["of an input", "of a result", "of a split", "twice"])
def test_a_result_that_shares_memory_is_named_and_the_graph_shown(kind):
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.add.Tensor, (x, 1))
    if kind == "of a split":
        parts = graph.call_function(aten.split.Tensor, (y, 1))
        first, second = (
            graph.call_function(graph_checks.graphs.GETITEM, (parts, i)) for i in (0, 1)
        )
        graph.output((first, second))
    elif kind == "twice":
        graph.output((y, y))
    else:
        start = x if kind == "of an input" else y
        flat = graph.call_function(aten.t.default, (start,))
        graph.output((y, graph.call_function(aten.view.default, (flat, [6]))))
    module = module_of(graph)
    with pytest.raises(GraphError, match="shares memory") as caught:
        graph_checks.check_results_apart(module, Roles(frozenset((0, 1))), "graph of f")
    assert "placeholder" in str(caught.value)
    graph_checks.check_results_apart(module, NO_ROLES, "graph of f's backward")
    if kind != "of an input":
        graph_checks.check_results_apart(
            module, Roles(frozenset((0,)), frozenset((1,))), "graph that writes"
        )


@pytest.mark.parametrize("kind", ["late", "twice", "another op"])
def test_a_graph_writes_into_its_inputs_at_its_end_and_only_there(kind):
    graph = fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(aten.add.Tensor, (x, 1))
    graph.call_function(aten.copy_.default, (x, y))
    module = module_of(graph)
    graph_checks.check_writes_last(module, "graph of f")
    if kind == "late":
        graph.call_function(aten.sin.default, (y,))
    elif kind == "twice":
        graph.call_function(aten.copy_.default, (x, y))
    else:
        graph.call_function(aten.mul_.Tensor, (x, y))
    with pytest.raises(GraphError, match="before it has computed everything"):
        graph_checks.check_writes_last(module, "graph of f")


def effects(x, buffer):
    """Writes, a view of an input, an intermediate and its views."""
    buffer.mul_(2).add_(1)
    y = x.sin() * buffer
    return x.t(), y, y[0], (x * 3).t()


PROGRAMS = {
    "call": lambda f, x, m: f(x, m),
    "backward": lambda f, x, m: torch.autograd.grad(f(x, m)[1].sum(), x),
    "second order": lambda f, x, m: torch.func.grad(
        lambda x: torch.func.grad(lambda x: (f(x, m.clone())[1] ** 2).sum())(x).sum()
    )(x),
    "jvp": lambda f, x, m: torch.func.jvp(lambda x: f(x, m.clone()), (x,), (x,)),
    "vmap": lambda f, x, m: torch.func.vmap(lambda x: f(x[None], m.clone()))(x),
    "vmap of grad": lambda f, x, m: torch.func.vmap(
        torch.func.grad(lambda x: f(x[None], m.clone())[1].sum())
    )(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_graph_that_is_compiled_is_looked_at(name, monkeypatch):
    looked_at, compiled_graphs = [], []
    for proof in ("check_functional", "check_results_apart"):
        original = getattr(graph_checks, proof)

        def noting(module, *rest, original=original):
            looked_at.append(module)
            return original(module, *rest)

        monkeypatch.setattr(graph_checks, proof, noting)

    def backend(module, examples):
        compiled_graphs.append(module)
        return module.forward

    assert config.get().check_aliases
    compiled = funcaot.compile(effects, backend=backend)
    x = torch.rand(2, 3, requires_grad=True)
    PROGRAMS[name](compiled, x, torch.ones(()))
    assert compiled_graphs
    for module in compiled_graphs:
        assert sum(module is other for other in looked_at) == 2


def turned(x):
    """Changes no data, only what autograd knows of the memory that ``x`` is a part of."""
    x.transpose_(0, -1)
    return x


def part_of_a_tensor():
    leaf = torch.linspace(0.3, 1.7, 12, dtype=torch.float64, requires_grad=True)
    whole = leaf * 1.0
    return Inputs([whole[::2]], [whole], [leaf])


def test_a_base_that_is_only_recorded_anew_becomes_a_copy():
    check(turned, part_of_a_tensor)


def test_a_view_of_shared_memory_is_found_where_the_analysis_returns_it(monkeypatch):
    monkeypatch.setattr(analysis._Mutations, "_apart", lambda self, tensor: tensor)
    with pytest.raises(GraphError, match="shares memory with 'shared_0'") as caught:
        funcaot.compile(turned, backend="eager")(*part_of_a_tensor().args)
    assert "placeholder" in str(caught.value)
