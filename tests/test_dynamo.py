"""torch.compile with the lazy pipeline as its backend."""

import copy
import enum
import pickle
import sys
import types

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.testing import assert_close

import funcaot
from funcaot.dynamo import add_to_accelerate, dynamo_backend
from funcaot.errors import FuncaotError


def energy(x, weight):
    return (x @ weight).tanh().pow(2).sum()


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_double_backward_through_torch_compile():
    compiled = torch.compile(energy, backend=dynamo_backend, options={"compiler": "eager"})
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    found = []
    for function in (energy, compiled):
        (force,) = torch.autograd.grad(function(x, weight), x, create_graph=True)
        found.append((force, *torch.autograd.grad(force.pow(2).sum(), (x, weight))))
    assert_close(found[1], found[0])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_trains():
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    compiled = torch.compile(module, backend=dynamo_backend, options={"compiler": "eager"})
    x = torch.randn(5, 4)
    expected = torch.autograd.grad(module(x).sum(), list(module.parameters()))
    actual = torch.autograd.grad(compiled(x).sum(), list(module.parameters()))
    assert_close(actual, expected)


@pytest.mark.parametrize(
    "arguments", [{"mode": "max-autotune"}, {"options": {"colour": 1}}], ids=["mode", "options"]
)
def test_unknown_modes_and_options_are_refused(arguments):
    graph = torch.fx.symbolic_trace(torch.nn.Identity())
    with pytest.raises(FuncaotError, match="Instead: leave"):
        dynamo_backend(graph, [], **arguments)


# --- both kinds of compiled functions, one in another -------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torch_compile_looks_into_what_is_compiled_here():
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    inner = funcaot.compile(lambda x: x.sin(), backend="eager")
    module = funcaot.compile(torch.nn.Linear(3, 3), backend="eager")

    def function(x):
        return module(inner(x)) * 2

    x = torch.randn(2, 3)
    outer = torch.compile(function, backend=backend, fullgraph=True)
    assert_close(outer(x), function(x))
    assert_close(torch.compile(module, backend=backend, fullgraph=True)(x), module(x))
    assert len(graphs) == 2


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_compile_compiled_is_looked_into():
    inner = torch.compile(lambda x: x.sin() * 2, backend="eager")
    compiled = funcaot.compile(lambda x: inner(x).cos().sum(), backend="eager")
    x = torch.randn(3, requires_grad=True)
    (ours,) = torch.autograd.grad(compiled(x), x)
    assert_close(ours, torch.autograd.grad((x.sin() * 2).cos().sum(), x)[0])
    assert "aten.sin" in str(compiled.entries[0].capture.tape.graph)
    assert_close(inner(x), x.sin() * 2)


def test_fake_tensors_run_the_function_itself():
    compiled = funcaot.compile(lambda x: x @ x, backend="eager")
    with FakeTensorMode():
        assert compiled(torch.empty(3, 3)).shape == (3, 3)
    assert funcaot.report(compiled).entries == ()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_export_of_a_compiled_module():
    module = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    exported = torch.export.export(funcaot.compile(module, backend="eager"), (x,))
    assert_close(exported.module()(x), module(x))


# --- Functions inside torch.compile -------------------------------------------------------------


class Scaled(funcaot.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, weight):
        return x * weight

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return 3 * gradient * weight, 5 * gradient * x  # deliberately not the derivative


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("kept_whole", [False, True])
def test_a_function_inside_torch_compile(kept_whole, backend):
    class Here(Scaled):
        pass

    if kept_whole:
        torch._dynamo.allow_in_graph(Here)

    def function(x, weight):
        return Here.apply(x, weight).sin()

    def transformed(x, weight):
        return torch.func.grad(lambda x: function(x, weight).sum())(x)

    x, weight = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    expected = torch.autograd.grad(function(x, weight).sum(), (x, weight))
    assert_close(torch.autograd.grad(compiled(x, weight).sum(), (x, weight)), expected)
    compiled = torch.compile(transformed, backend=backend, fullgraph=True)
    assert_close(compiled(x, weight), transformed(x, weight))
    if kept_whole:
        each = torch.func.vmap(transformed)
        compiled = torch.compile(each, backend=backend, fullgraph=True)
        assert_close(compiled(x, weight), each(x, weight))


class ListOfBackends(str, enum.Enum):  # noqa: UP042 - as Accelerate has it
    """As Accelerate has it."""

    NO = "NO"
    INDUCTOR = "INDUCTOR"


def test_a_closed_list_of_names_takes_ours(monkeypatch):
    accelerate = types.ModuleType("accelerate.utils")
    accelerate.DynamoBackend = ListOfBackends  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate", types.ModuleType("accelerate"))
    monkeypatch.setitem(sys.modules, "accelerate.utils", accelerate)
    with pytest.raises(ValueError, match="FUNCAOT"):
        ListOfBackends("FUNCAOT")
    add_to_accelerate()
    added = ListOfBackends("funcaot".upper())
    add_to_accelerate()
    assert ListOfBackends("FUNCAOT") is added
    assert copy.deepcopy(added) is pickle.loads(pickle.dumps(added)) is added
    # What Accelerate makes of it.
    assert added != ListOfBackends.NO
    assert added.value.lower() == "funcaot"
