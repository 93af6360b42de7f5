"""torch.compile with the lazy pipeline as its backend: Functions, open sizes, backwards inside."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.errors import FuncaotError, UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
    # Dynamo itself looks at the gradients of tensors that come back after a graph break.
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning"),
]


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled_by_dynamo(function, backend="eager", **options):
    return torch.compile(function, backend="funcaot", options={"compiler": backend}, **options)


class OneArgument(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        ctx.rows = x.shape[0]
        return (x * w).sin()

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        inner = gradient * (x * w).cos()
        return 2 * inner * w * ctx.rows, inner * x  # deliberately not the derivative


def _split(base):
    class Split(base):
        @staticmethod
        def forward(x, w):
            return (x * w).sin(), x > 0

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.mark_non_differentiable(output[1])

        @staticmethod
        def backward(ctx, gradient, _):
            x, w = ctx.saved_tensors
            with torch.no_grad():
                scale = gradient.abs() + 1
            return gradient * (x * w).cos() * w * scale, 3 * gradient * x

    return Split


class Called(torch.autograd.Function):
    """Takes an object, so that Dynamo traces it by itself."""

    @staticmethod
    def forward(ctx, x, w, function):
        ctx.save_for_backward(x, w)
        ctx.product, ctx.rows = x * w, x.shape[0]
        return function(x) * w

    @staticmethod
    def backward(ctx, gradient):
        x, w = ctx.saved_tensors
        return gradient * ctx.product * ctx.rows, 7 * gradient * x * w, None


class Unneeded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, w)
        return x * w, x + w

    @staticmethod
    def backward(ctx, first, second):
        x, w = ctx.saved_tensors
        if second is None:
            return 5 * first * w, first * x
        return first * w + second, first * x + second


Plain, Ours = _split(torch.autograd.Function), _split(funcaot.Function)

FUNCTIONS = {
    "no Function": lambda x, w: (x * w).sin().sum(),
    "forward takes ctx": lambda x, w: OneArgument.apply(x, w).sum() * 2,
    "setup_context": lambda x, w: Plain.apply(x.cos(), w)[0].sum(),
    "funcaot.Function": lambda x, w: Ours.apply(x, w.exp())[0].sum(),
    "a gradient that isn't there": lambda x, w: Unneeded.apply(x, w)[0].sum(),
    "the size is used": lambda x, w: (x * w).reshape(x.shape[0], 1).sum() * x.shape[0],
}


def _with_a_break(x, w):
    y = OneArgument.apply(x, w)
    torch._dynamo.graph_break()
    return (y * w).sum()


FUNCTIONS["a graph break"] = _with_a_break


def _derivatives(function, size=3, order=2):
    generator = torch.Generator().manual_seed(size)
    x, w = (torch.randn(size, generator=generator, requires_grad=True) for _ in range(2))
    total = function(x, w)
    found = [total.detach()]
    for _ in range(order):
        gradients = torch.autograd.grad(total, (x, w), create_graph=True, allow_unused=True)
        found += gradients
        total = sum(gradient.square().sum() for gradient in gradients if gradient is not None)
    return found


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_values_and_derivatives_are_eagers(function):
    compiled = compiled_by_dynamo(function)
    for _ in range(3):
        assert_close(_derivatives(compiled), _derivatives(function))


@pytest.mark.parametrize("name", ["forward takes ctx", "funcaot.Function"])
def test_the_same_on_inductor(name):
    compiled = compiled_by_dynamo(FUNCTIONS[name], "inductor")
    for _ in range(2):
        assert_close(_derivatives(compiled, order=1), _derivatives(FUNCTIONS[name], order=1))


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_one_program_for_several_sizes(function, dynamic):
    compiled = compiled_by_dynamo(function, dynamic=dynamic)
    for size in (4, 5, 7, 9, 4):
        assert_close(_derivatives(compiled, size, 1), _derivatives(function, size, 1))
    found = funcaot.report(compiled)
    graphs = 2 if function is _with_a_break else 1
    # Without `dynamic`, Dynamo compiles the first size by itself.
    assert len(found.entries) == graphs * (1 if dynamic else 2)
    assert found.graphs_compiled == 2 * len(found.entries)


def test_only_sizes_that_may_change_are_open():
    module = nn.Linear(3, 2)
    compiled = compiled_by_dynamo(module, dynamic=True)
    for rows in (4, 5, 6):
        assert_close(compiled(torch.ones(rows, 3)), module(torch.ones(rows, 3)))
    (entry,) = funcaot.report(compiled).entries
    assert "float32[2, 3]" in str(entry.signature)


@pytest.mark.parametrize("dynamic", [True, False])
def test_a_function_that_dynamo_traces_can_be_differentiated_once(dynamic):
    def function(x, w):
        return Called.apply(x.sin(), w, lambda y: 2 * y).sum()

    compiled = compiled_by_dynamo(function, dynamic=dynamic)
    for size in (4, 5, 7):
        assert_close(_derivatives(compiled, size, 1), _derivatives(function, size, 1))
    with pytest.raises(UnsupportedError, match="no second derivative"):
        _derivatives(compiled)


def test_other_backends_see_what_they_saw():
    targets = []

    def backend(graph, inputs):
        targets.extend(str(node.target) for node in graph.graph.nodes)
        return graph

    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    compiled_by_dynamo(FUNCTIONS["setup_context"])(x, w)
    torch.compiler.reset()
    torch.compile(FUNCTIONS["setup_context"], backend=backend)(x, w)
    assert "autograd_function_apply" in targets


# --- backwards and optimizers inside ------------------------------------------------------------


@pytest.fixture
def frames(monkeypatch):
    """Files and functions that Dynamo looks into."""
    seen = []
    from torch._dynamo import convert_frame

    original = convert_frame._compile

    def compile_frame(code, *args, **kwargs):
        seen.append(f"{code.co_filename}:{code.co_name}")
        return original(code, *args, **kwargs)

    monkeypatch.setattr(convert_frame, "_compile", compile_frame)
    return seen


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_backward_inside(function, frames):
    def step(x, w):
        function(x, w).backward()
        return x.grad * 2

    compiled = compiled_by_dynamo(step)
    for _ in range(3):
        results = []
        for run in (step, compiled):
            x, w = (torch.full((3,), value, requires_grad=True) for value in (0.3, 0.7))
            results.append([run(x, w), x.grad, w.grad])
        assert_close(results[1], results[0])
    assert frames
    assert not [frame for frame in frames if "/funcaot/" in frame or "<funcaot" in frame]


def test_gradients_inside():
    def function(x, w):
        (gradient,) = torch.autograd.grad((x * w).sin().sum(), x, create_graph=True)
        return gradient.square().sum()

    compiled = compiled_by_dynamo(function)
    for _ in range(3):
        assert_close(_derivatives(compiled), _derivatives(function))


@pytest.mark.parametrize("inside", [True, False], ids=["step inside", "step outside"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_training(kind, inside):
    def train(compiler):
        torch.manual_seed(0)
        module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        optimizer = kind(module.parameters(), lr=0.05)

        def step(x):
            optimizer.zero_grad()
            loss = module(x).square().sum()
            loss.backward()
            if inside:
                optimizer.step()
            return loss.detach()

        run = compiler(step)
        losses = []
        for k in range(4):
            losses.append(run(torch.full((2, 3), 1.0 + k, dtype=torch.float64)))
            if not inside:
                optimizer.step()
        return [*losses, *(parameter.detach() for parameter in module.parameters())]

    # Dynamo's own rewriting of AdamW rounds differently.
    expected = train(lambda step: torch.compile(step, backend="eager"))
    torch.compiler.reset()
    assert_close(train(compiled_by_dynamo), expected)


# --- the report ---------------------------------------------------------------------------------


def test_the_report_of_what_torch_compile_returned():
    compiled = compiled_by_dynamo(_with_a_break)
    with pytest.raises(FuncaotError, match="call it first"):
        funcaot.report(compiled)
    x, w = (torch.ones(3, requires_grad=True) for _ in range(2))
    compiled(x, w).backward()
    found = funcaot.report(compiled)
    assert found.name == "_with_a_break"
    assert (len(found.entries), found.graphs_compiled, found.backward_traces) == (2, 4, 2)
    assert "requires_grad" in str(found)
    with pytest.raises(FuncaotError, match="found no graph"):
        funcaot.report(torch.compile(lambda x: x, backend="eager"))


def test_the_report_of_a_module():
    module = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    compiled = compiled_by_dynamo(module)
    compiled(torch.ones(2, 3)).sum().backward()
    assert funcaot.report(compiled).backward_traces == 1
