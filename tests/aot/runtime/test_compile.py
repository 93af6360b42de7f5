"""funcaot.compile on functions: structure, closures, aliases, mutation, backends."""

from collections import namedtuple

import pytest
import torch
from torch.testing import assert_close

import funcaot

Pair = namedtuple("Pair", ["left", "right"])


def test_trees_of_arguments_and_results():
    def f(tree, *, factor):
        a, (b, none), text = tree["a"], tree["b"], tree["text"]
        assert none is None
        return Pair(a * factor, {"sum": a + b, "text": text, "n": 3})

    tree = {"a": torch.ones(2), "b": (torch.ones(2), None), "text": "kept"}
    result = funcaot.compile(f, backend="eager")(tree, factor=2)
    assert isinstance(result, Pair)
    assert_close(result.left, torch.full((2,), 2.0))
    assert result.right["text"] == "kept"
    assert result.right["n"] == 3


def test_constants_are_part_of_the_signature():
    compiled = funcaot.compile(lambda x, n: x * n, backend="eager")
    x = torch.ones(2)
    for n in (2, 3, 2.0, True, 2):
        assert_close(compiled(x, n), x * n)
    assert len(funcaot.report(compiled).entries) == 4


def test_a_closed_over_tensor_is_an_input():
    weight = torch.ones(3, requires_grad=True)

    @funcaot.compile(backend="eager")
    def f(x):
        return (weight * x).sum()

    x = torch.arange(3.0)
    f(x).backward()
    assert_close(weight.grad, x)
    with torch.no_grad():
        weight.mul_(5)
    assert_close(f(x), (5 * x).sum())


def test_a_rebound_closure_is_seen():
    weight = torch.ones(3)

    def f(x):
        return weight * x

    compiled = funcaot.compile(f, backend="eager")
    x = torch.arange(3.0)
    assert_close(compiled(x), x)
    weight = torch.full((3,), 2.0)
    assert_close(compiled(x), 2 * x)
    weight = torch.full((3,), 3.0, requires_grad=True)
    assert_close(compiled(x), 3 * x)


def test_an_input_that_is_mutated():
    def f(x):
        x.mul_(2)
        return x + 1

    mine, theirs = torch.ones(3), torch.ones(3)
    compiled = funcaot.compile(f, backend="eager")
    for _ in range(2):
        assert_close(compiled(mine), f(theirs))
        assert_close(mine, theirs)


def test_a_mutated_input_takes_part_in_autograd():
    def f(x, w):
        x.mul_(w)
        return x.sin().sum()

    compiled = funcaot.compile(f, backend="eager")
    gradients = []
    for function in (f, compiled):
        leaf = torch.arange(3.0, requires_grad=True)
        w = torch.full((3,), 0.5, requires_grad=True)
        x = leaf * 1
        y = function(x, w)
        gradients.append(torch.autograd.grad(y + x.square().sum(), (leaf, w)))
    assert_close(gradients[1], gradients[0])


def test_outputs_that_alias_inputs():
    def f(x):
        return x, x.t(), x[1:], x * 2

    compiled = funcaot.compile(f, backend="eager")
    x = torch.randn(3, 4)
    same, transposed, part, fresh = compiled(x)
    assert same is x
    assert transposed.data_ptr() == x.data_ptr()
    assert transposed.stride() == x.t().stride()
    assert part.storage_offset() == 4
    assert fresh.data_ptr() != x.data_ptr()
    part.zero_()
    assert x[1:].eq(0).all()


def test_a_leaf_that_requires_grad_raises_as_in_eager():
    compiled = funcaot.compile(lambda x: x.mul_(2), backend="eager")
    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        compiled(torch.ones(2, requires_grad=True))


def test_inductor_is_the_default_and_runs():
    compiled = funcaot.compile(lambda x: (x.sin() * 2).sum())
    x = torch.randn(5, requires_grad=True)
    compiled(x).backward()
    entry = funcaot.report(compiled).entries[0]
    assert entry.graphs[0].compiler == "inductor"
    assert entry.backwards[0].graphs[0].compiler == "inductor"
    assert_close(x.grad, 2 * x.detach().cos())


def test_a_function_is_a_backend():
    seen = []

    def backend(graph, inputs):
        seen.append((graph, inputs))
        return graph

    compiled = funcaot.compile(lambda x: x.sin().sum(), backend=backend)
    x = torch.randn(3, requires_grad=True)
    compiled(x).backward()
    assert_close(x.grad, x.detach().cos())
    assert len(seen) == 2
    assert funcaot.report(compiled).backend == "backend"


def test_aot_function_with_two_compilers():
    seen = []

    def note(kind):
        def compiler(graph, inputs):
            seen.append(kind)
            return graph

        return compiler

    f = funcaot.aot_function(lambda x: x.sin().sum(), note("forward"), note("backward"))
    x = torch.randn(3, requires_grad=True)
    y = f(x)
    assert seen == ["forward"]
    y.backward()
    assert seen == ["forward", "backward"]
    assert_close(x.grad, x.detach().cos())


def test_aot_module():
    module = torch.nn.Linear(3, 2)
    compiled = funcaot.aot_module(module, lambda graph, inputs: graph)
    x = torch.randn(4, 3)
    assert_close(compiled(x), module(x))


def test_eager_draws_the_same_random_numbers():
    def f(x):
        return torch.nn.functional.dropout(x, 0.5).sum() + torch.rand(3).sum()

    compiled = funcaot.compile(f, backend="eager")
    x = torch.randn(100, requires_grad=True)
    states = []
    for function in (f, compiled):
        torch.manual_seed(3)
        (gradient,) = torch.autograd.grad(function(x), x)
        states.append((gradient, torch.get_rng_state()))
    assert_close(states[1], states[0])


def test_no_grad_and_grad_are_different_entries():
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    x = torch.ones(2, requires_grad=True)
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    assert compiled(x).requires_grad
    assert len(funcaot.report(compiled).entries) == 2
