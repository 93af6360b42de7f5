"""Transforms straight over a compiled function: one program, equal to eager; else the levels."""

import pytest
import torch
from torch import func
from torch.testing import assert_close

import funcaot
from funcaot._torch.dynamo.transform_calls import Transform, transform_of
from funcaot.aot.runtime.transform_stacks import stack_of
from tests.aot.segment import orders_cases as cases

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")


def scalar(x, w):
    return ((x @ w).tanh() ** 2).sum()


def with_aux(x, w):
    return scalar(x, w), {"sine": x.sin()}


def rows():
    return torch.randn(5, 4, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)


STACKS = {
    "vmap(grad(f))": (scalar, lambda f: func.vmap(func.grad(f), (0, None))),
    "vmap(grad_and_value(f))": (
        with_aux,
        lambda f: func.vmap(func.grad_and_value(f, has_aux=True), (0, None)),
    ),
    "vmap(jacrev(grad(f)))": (scalar, lambda f: func.vmap(func.jacrev(func.grad(f)), (0, None))),
    "vmap(hessian(f))": (scalar, lambda f: func.vmap(func.hessian(f), (0, None), out_dims=1)),
    "vmap(f)": (scalar, lambda f: func.vmap(f, in_dims=(0, None))),
    "grad(f)": (scalar, lambda f: func.grad(f, argnums=(0, 1))),
    "grad_and_value(f)": (scalar, lambda f: func.grad_and_value(f, argnums=1)),
    "vmap(vmap(f))": (
        scalar,
        lambda f: lambda x, w: func.vmap(func.vmap(f, (0, None)), (None, 0))(x, w.expand(2, 4, 3)),
    ),
}


def names_of(compiled):
    return [transformed.name for transformed in funcaot.report(compiled).transformed]


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_is_one_program(name):
    function, transformed = STACKS[name]
    compiled = cases.compiled(function)
    x, w = rows()
    expected = transformed(function)(x, w)
    assert_close(transformed(compiled)(x, w), expected)
    counted = funcaot.report(compiled)
    assert counted.graphs_compiled == 1
    assert counted.entries == ()
    assert names_of(compiled) == [
        name.replace("hessian(f)", "jacfwd(jacrev(f))").replace("(f)", f"({function.__name__})")
    ]
    # New transforms that do the same find the same program.
    assert_close(transformed(compiled)(x, w), expected)
    again = funcaot.report(compiled)
    assert (again.graphs_compiled, again.cache_misses) == (1, counted.cache_misses)
    assert again.cache_hits > counted.cache_hits


def test_the_report_shows_it_below_the_function():
    compiled = cases.compiled(scalar)
    func.vmap(func.grad(compiled), (0, None))(*rows())
    text = str(funcaot.report(compiled))
    assert "\n  vmap(grad(scalar)): 1 signature(s)\n" in text
    assert "run by" in text


def test_arguments_of_transforms_tell_programs_apart():
    compiled = cases.compiled(scalar)
    x, w = rows()
    for argnums in (0, 1, (0, 1)):
        assert_close(func.grad(compiled, argnums)(x, w), func.grad(scalar, argnums)(x, w))
    assert names_of(compiled) == ["grad(scalar)"] * 3


def test_trees_of_batch_dimensions():
    def function(operands, scale):
        return (operands["x"] * scale).sum() * operands["w"].sum()

    x, w = rows()
    compiled = cases.compiled(function)
    operands = {"x": x, "w": w}
    dims = ({"x": 0, "w": None}, None)
    result = func.vmap(compiled, in_dims=dims)(operands, x[0])
    assert_close(result, func.vmap(function, in_dims=dims)(operands, x[0]))
    assert names_of(compiled) == ["vmap(function)"]


def test_what_comes_out_can_be_differentiated():
    x, w = (operand.requires_grad_() for operand in rows())

    def second(f):
        gradients = func.vmap(func.grad(f), (0, None))(x, w)
        return torch.autograd.grad(gradients.sin().sum(), (x, w), create_graph=True)

    compiled = cases.compiled(scalar)
    assert_close(second(compiled), second(scalar))
    assert names_of(compiled) == ["vmap(grad(scalar))"]


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_random_numbers_are_eagers(randomness):
    def noisy(x):
        return (x * torch.rand_like(x)).sum()

    x, _ = rows()
    results = []
    for f in (noisy, cases.compiled(noisy)):
        torch.manual_seed(1)
        results.append(func.vmap(func.grad(f), randomness=randomness)(x))
    assert_close(results[1], results[0])


def test_writes_in_place_reach_the_caller():
    def write(x, w):
        x.mul_(2)
        return (x * w.sum()).sum()

    results = []
    for f in (write, cases.compiled(write)):
        torch.manual_seed(0)
        x, w = rows()
        results.append((func.vmap(f, (0, None))(x, w), x))
    assert_close(results[1], results[0])


def dual(f, x, w):
    with torch.autograd.forward_ad.dual_level():
        x = torch.autograd.forward_ad.make_dual(x, x.cos())
        return torch.autograd.forward_ad.unpack_dual(func.grad(f)(x, w)).tangent


AROUND = {
    "a function between": lambda f, x, w: func.grad(lambda x, w: f(x, w))(x, w),
    "a level": lambda f, x, w: func.vmap(lambda x: func.grad(f)(x, w))(x),
    "another transform": lambda f, x, w: func.jvp(lambda x: func.grad(f)(x, w), (x,), (x,)),
    "dual numbers": dual,
    "chunks": lambda f, x, w: func.vmap(func.grad(f), (0, None), chunk_size=2)(x, w),
}


@pytest.mark.parametrize("way", AROUND)
def test_what_goes_through_the_levels(way):
    compiled = cases.compiled(scalar)
    x, w = rows()
    assert_close(AROUND[way](compiled, x, w), AROUND[way](scalar, x, w))
    assert names_of(compiled) == []
    assert funcaot.report(compiled).graphs_compiled > 0


def test_what_cant_be_captured_whole_goes_through_the_levels():
    seen = []

    def turn(x, w):
        seen.append("called")  # in each call; an attempt that fails takes its own out again
        x.t_()
        return (x.sum(1) * w).sum()

    compiled = funcaot.compile(turn, backend="eager")
    x, w = torch.randn(2, 3), torch.randn(3)
    results = []
    for _ in range(2):
        mine = x.clone()
        results.append((func.grad(compiled, argnums=1)(mine, w), mine))
    theirs = x.clone()
    expected = (func.grad(turn, argnums=1)(theirs, w), theirs)
    assert_close(results, [expected, expected])
    assert len(seen) == 3
    entries = funcaot.report(compiled).cache_misses
    func.grad(compiled, argnums=1)(x.clone(), w)
    assert len(seen) == 4
    assert funcaot.report(compiled).cache_misses == entries  # it isn't tried again


def test_a_mistake_is_torchs_error():
    compiled = cases.compiled(lambda x: x * 2)
    x, _ = rows()
    with pytest.raises(RuntimeError, match="to return a scalar Tensor"):
        func.grad(compiled)(x)
    with pytest.raises(ValueError, match="in_dim"):
        func.vmap(compiled, in_dims=7)(x)
    assert_close(func.vmap(compiled)(x), x * 2)


def test_forgetting():
    compiled = cases.compiled(scalar)
    func.grad(compiled)(*rows())
    compiled.clear()
    assert names_of(compiled) == []


def test_many_stacks_are_bounded():
    compiled = funcaot.compile(scalar, backend="eager")
    _, w = rows()
    with funcaot.config.patch(derived_programs=2):
        for dim in (0, 1, -1, -2):
            square = torch.randn(4, 4, dtype=torch.float64)
            result = func.vmap(compiled, in_dims=(dim, None))(square, w)
            assert_close(result, func.vmap(scalar, in_dims=(dim, None))(square, w))
    assert len(names_of(compiled)) == 2


def test_torch_compile_of_transforms_captures_them_as_before():
    funcaot.compile(scalar, backend="eager")  # torch's functions ask first, from here on
    x, w = rows()

    def function(x, w):
        return func.vmap(func.grad(scalar), (0, None))(x, w)

    torch._dynamo.reset()
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    assert_close(compiled(x, w), function(x, w))


# --- what tells stacks apart ----------------------------------------------------------------------


def test_the_transform_that_made_a_function():
    found = transform_of(func.vmap(scalar, in_dims=(0, None)))
    assert (found.name, found.function) == ("vmap", scalar)
    assert found.options["in_dims"] == (0, None)
    assert transform_of(scalar) is None
    assert transform_of(torch.sin) is None


def test_keys():
    def key(transformed):
        return stack_of(transform_of(transformed))[0].key

    assert key(func.grad(func.vmap(scalar))) == key(func.grad(func.vmap(scalar)))
    assert key(func.grad(scalar, 0)) != key(func.grad(scalar, (0,)))
    assert key(func.vmap(scalar, in_dims=(0, None))) != key(func.vmap(scalar, in_dims=[0, None]))
    assert key(func.vmap(scalar, in_dims=1)) != key(func.vmap(scalar, in_dims=True))
    assert stack_of(Transform("vmap", scalar, {"in_dims": object()})) is None


def test_each_call_is_asked_about_once(monkeypatch):
    asked = []
    monkeypatch.setattr(
        "funcaot.aot.runtime.outermost.stack_of", lambda each: asked.append(each.name)
    )
    x, w = rows()
    funcaot.compile(scalar)
    func.grad(scalar)(x, w)
    func.grad_and_value(scalar)(x, w)
    func.vmap(scalar, (0, None))(x, w)
    assert asked == ["grad", "grad_and_value", "vmap"]
