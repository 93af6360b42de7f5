"""Open sizes in backwards, in derivatives of second order and under transforms."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import funcaot
from tests.aot.signature.dynamic_cases import (
    CASES,
    attention,
    check,
    check_equal,
    custom,
    graphs_of,
    heads,
)


def test_derivatives_of_second_order():
    def energy(x, w):
        return ((x @ w).tanh() ** 2).sum(0)

    compiled = funcaot.compile(energy, backend="eager")
    for size in (3, 4, 5, 6, 7):
        x, w = torch.randn(size, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
        found = []
        for function in (compiled, energy):
            result = function(x, w).sum()
            (first,) = torch.autograd.grad(result, x, create_graph=True)
            second = torch.autograd.grad((first**2).sum(), (x, w))
            found.append((result, first, second))
        check_equal(*found)
    assert len(compiled.entries) == 2
    assert graphs_of(compiled) == 6


def test_a_backward_that_asks_for_a_size():
    class Choosing(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.size = inputs[0].shape[0]

        @staticmethod
        def backward(ctx, gradient):
            return gradient * (10 if ctx.size < 6 else 20)

    compiled = funcaot.compile(Choosing.apply, backend="eager", dynamic=True)
    waiting = []
    for size in (4, 8, 5, 9):
        x = torch.randn(size, 2, requires_grad=True)
        waiting.append((x, compiled(x)))
    for x, y in waiting:
        y.backward(torch.ones_like(y))
        assert x.grad is not None
        assert x.grad.unique().tolist() == [10.0 if x.shape[0] < 6 else 20.0]
    assert len(compiled.entries) == 1
    assert graphs_of(compiled) == 3


def test_transforms_run_programs_of_their_own():
    compiled = funcaot.compile(custom, backend="eager")
    for size in (3, 4, 5):
        check(custom, compiled, [(size, 2)], ("contiguous",))
    batch = torch.randn(7, 5, 2)
    assert len(compiled.entries) == 2
    check_equal(torch.vmap(compiled)(batch), torch.vmap(custom)(batch))
    summed = [lambda x, f=f: f(x).sum() for f in (compiled, custom)]
    check_equal(*(torch.vmap(torch.func.grad(f))(batch) for f in summed))
    compiled = funcaot.compile(heads, backend="eager", dynamic=True)
    x, tangent = torch.randn(2, 5, 6)
    compiled(x)
    check_equal(*(torch.func.jvp(f, (x,), (tangent,)) for f in (compiled, heads)))


def test_batched_gradients_of_a_call_with_open_sizes():
    compiled = funcaot.compile(custom, backend="eager", dynamic=True)
    compiled(torch.randn(3, 2))
    x = torch.randn(4, 2, requires_grad=True)
    batch = torch.randn(5, 4, 2)
    for size in (4, 6):
        x, batch = torch.randn(size, 2, requires_grad=True), torch.randn(5, size, 2)
        results = [f(x) for f in (compiled, custom)]
        check_equal(
            *(
                torch.autograd.grad(y, x, batch, is_grads_batched=True, retain_graph=True)
                for y in results
            )
        )
        check_equal(
            *(
                torch.vmap(lambda v, y=y, x=x: torch.autograd.grad(y, x, v, retain_graph=True)[0])(
                    batch
                )
                for y in results
            )
        )


def double_in_numpy(x):
    return torch.from_numpy(x.detach().numpy() * 2)


@pytest.mark.parametrize("double", [double_in_numpy, lambda x: x * 2], ids=["both", "backward"])
def test_a_function_on_real_values_has_a_program_per_size(double):
    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return double(x)

        @staticmethod
        def backward(ctx, gradient):
            return double_in_numpy(gradient)

    compiled = funcaot.compile(lambda x: Doubling.apply(x), backend="eager")
    for size in (3, 4, 5):
        check(Doubling.apply, compiled, [(size,)], ("contiguous",))
    assert len(compiled.entries) == 3


def test_gradients_in_ever_new_layouts_stop_being_compiled_for():
    seen = []

    def count(graph, inputs):
        seen.append(graph)
        return graph

    compiled = funcaot.compile(attention, backend=count, dynamic=True)

    def run():
        for gap in range(12):
            inputs = [torch.randn(2, 4 + gap, 8, requires_grad=True) for _ in range(3)]
            results = [each(*inputs) for each in (compiled, attention)]
            gradient = torch.randn(2, 4 + gap, 9 + gap)[..., :8]
            check_equal(*(torch.autograd.grad(y, inputs, gradient) for y in results))

    with pytest.warns(funcaot.errors.RecompileWarning, match="grad_outputs"):
        run()
    assert len(seen) == 1 + funcaot.config.get().backward_layouts


@pytest.mark.slow
def test_inductor_compiles_twice_for_many_sizes():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, padding=1),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(64, 5),
    )
    other = copy.deepcopy(model)
    compiled = funcaot.compile(model)
    for size in (2, 3, 4, 5, 6, 7):
        x = torch.randn(size, 3, 8, 8)
        result, expected = compiled(x), other(x)
        result.square().mean().backward()
        expected.square().mean().backward()
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
    mine, theirs = ([p.grad for p in m.parameters()] for m in (model, other))
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    assert graphs_of(compiled) == 4


@pytest.mark.slow
def test_inductor_with_transposed_gradients_of_open_size():
    compiled = funcaot.compile(attention, dynamic=True)
    for size in (5, 3, 7, 4):
        inputs = [torch.randn(2, size, 8, requires_grad=True) for _ in range(3)]
        result, expected = compiled(*inputs), attention(*inputs)
        for gradient in (
            torch.randn(2, size, 8),
            torch.randn(8, size, 2).permute(2, 1, 0),
            torch.ones(()).expand(2, size, 8),
        ):
            check_close(result, expected, inputs, gradient)
    # One more for each layout of gradients.
    assert graphs_of(compiled) <= 4


def check_close(result, expected, inputs, gradient):
    mine, theirs = (
        torch.autograd.grad(y, inputs, gradient, retain_graph=True) for y in (result, expected)
    )
    torch.testing.assert_close(mine, theirs)


_COMPILED = {
    name: funcaot.compile(function, backend="eager") for name, (function, _) in CASES.items()
}
# Ops that raise for few rows, or whose result isn't a number.
_ANY_SIZE = ("attention", "causal", "custom", "joins", "mlp", "ranges", "sizes", "two sizes")


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(_ANY_SIZE),
    size=st.integers(0, 12),
    kind=st.sampled_from(["contiguous", "expanded", "transposed"]),
)
def test_any_sequence_of_sizes_equals_eager(name, size, kind):
    if name in ("attention", "causal") and size == 0:
        size = 1
    function, shapes = CASES[name]
    check(function, _COMPILED[name], shapes(size), (kind,))
    assert len(_COMPILED[name].entries) <= 4


@pytest.mark.parametrize("kept", ["freed", "beside one that isn't"])
def test_a_step_keeps_a_result_whose_graph_it_freed(kept):
    """A loop over sizes takes two programs, and what is kept raises as in eager."""

    def step_of(weight, holder):
        def step(x):
            hidden = (x * weight).tanh()
            holder["freed"] = hidden * 2
            if kept != "freed":
                holder["whole"] = (x * weight).sin().sum()
            loss = hidden.square().sum()
            (gradient,) = torch.autograd.grad(loss, weight)
            return loss.detach(), gradient

        return step

    runs = []
    for compiler in (lambda step: step, lambda step: funcaot.compile(step, backend="eager")):
        weight, holder = torch.tensor([0.5, 0.3, 0.1], requires_grad=True), {}
        runs.append((weight, holder, compiler(step_of(weight, holder))))
    for count in range(4, 9):
        torch.manual_seed(count)
        x, found = torch.randn(count, 3), []
        for weight, holder, step in runs:
            found.append([*step(x), holder["freed"].detach()])
            if kept != "freed":
                found[-1] += torch.autograd.grad(holder["whole"], weight)
            with pytest.raises(RuntimeError, match="a second time"):
                holder["freed"].sum().backward()
        torch.testing.assert_close(*found)
    assert funcaot.report(runs[1][2]).cache_misses == 2


def test_a_backward_that_a_compiler_fails_on_with_open_sizes():
    """It is compiled for the sizes of each call; the forward stays open."""
    given = []

    def backend(module, examples):
        is_open = any(not isinstance(each, torch.Tensor) for each in examples)
        backward = any("tangent" in node.name for node in module.graph.nodes)
        given.append((backward, is_open))
        if backward and is_open:
            raise ValueError("open sizes")
        return module

    def function(x, w):
        return (x @ w).tanh() * x.shape[0]

    compiled = funcaot.compile(function, backend=backend, dynamic=True)
    for size in (3, 5, 3, 7):
        x, w = torch.randn(size, 4, requires_grad=True), torch.randn(4, 6, requires_grad=True)
        direction, found = torch.randn(size, 6), []
        for each in (compiled, function):
            result = each(x, w)
            found.append((result, torch.autograd.grad(result, (x, w), direction)))
        check_equal(*found)
    assert given.count((False, True)) == 1
    assert given.count((True, True)) == 1
    assert given.count((True, False)) == 3


def test_a_compiler_that_fails_on_every_backward_says_so():
    def backend(module, examples):
        if any("tangent" in node.name for node in module.graph.nodes):
            raise ValueError("no backwards")
        return module

    compiled = funcaot.compile(lambda x: x.sin() * x, backend=backend, dynamic=True)
    x = torch.randn(3, requires_grad=True)
    for _ in range(2):
        with pytest.raises(funcaot.errors.StageError, match="no backwards"):
            compiled(x).sum().backward()


@pytest.mark.slow
@pytest.mark.parametrize("transposed", [False, True])
def test_convolutions_with_kernels_of_any_size_on_inductor(transposed):
    operator = torch.nn.functional.conv_transpose2d if transposed else torch.nn.functional.conv2d

    def function(x, weight, bias):
        return operator(x, weight, bias, padding=2, dilation=2)

    compiled = funcaot.compile(function, dynamic=True)
    for size in (5, 6, 5):
        shapes = (2, 3, size + 4, size + 5), (3, 3, size - 2, size - 1), (3,)
        operands = [torch.randn(shape, requires_grad=True) for shape in shapes]
        direction, found = torch.randn_like(function(*operands)), []
        for each in (compiled, function):
            result = each(*operands)
            found.append((result.detach(), torch.autograd.grad(result, operands, direction)))
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)
