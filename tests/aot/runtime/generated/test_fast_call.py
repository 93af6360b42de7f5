"""Generated code means what the general path means: calls with it, without it, in eager."""

import contextlib

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.aot.runtime.module import compiled_of


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 * x  # deliberately not the derivative


def wave(x):
    return x.sin().exp()


def several(x, y):
    return {"sum": x + y, "pair": [x * y, (x.exp(), y)], "nothing": None, "number": 3}


def with_indices(x):
    values, indices = x.max(dim=-1)
    return values * 2, indices


def views(x):
    middle = x * 2
    return middle, middle[1], x.t()


def mixed(x, y):
    return x.detach() * 2, (x * y).sum(), x > 0


def odd_rule(x):
    return Doubled.apply(x).sum(-1)


def unused(x, y):
    return x * 2


def adds_in_place(x, y):
    x.add_(y)
    return x * 2


def square():
    return torch.randn(3, 3, dtype=torch.float64)


FUNCTIONS = {
    "one tensor": (wave, 1),
    "several outputs": (several, 2),
    "integer output": (with_indices, 1),
    "views": (views, 1),
    "mixed": (mixed, 2),
    "odd rule": (odd_rule, 1),
    "unused": (unused, 2),
}


@pytest.fixture(params=[True, False], ids=["generated", "general"])
def path(request):
    with funcaot.config.patch(fast_path=request.param):
        yield request.param


def warmed(function, *args, calls=3):
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(calls):
        outputs = floats(compiled(*args))
        if any(out.requires_grad for out in outputs):
            total = sum(out.sum() for out in outputs if out.requires_grad)
            total.backward()
            for arg in args:
                arg.grad = None
    return compiled


def floats(tree):
    leaves = torch.utils._pytree.tree_leaves(tree)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def uses_generated(compiled):
    return bool(compiled._cache._chain)


def describe(tensors):
    return [(t.shape, t.stride(), t.dtype, t.requires_grad, t.is_leaf) for t in tensors]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("requires", ["all", "first", "none"])
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad, torch.inference_mode])
def test_values_and_metadata(path, name, requires, mode):
    function, count = FUNCTIONS[name]
    needs = {
        "all": [True] * count,
        "first": [True] + [False] * (count - 1),
        "none": [False] * count,
    }
    args = [square().requires_grad_(need) for need in needs[requires]]
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(4):
        with mode():
            ours, theirs = compiled(*args), function(*args)
        assert torch.utils._pytree.tree_structure(ours) == torch.utils._pytree.tree_structure(
            theirs
        )
        assert_close(floats(ours), floats(theirs))
        assert describe(floats(ours)) == describe(floats(theirs))
        for ours_one, theirs_one in zip(floats(ours), floats(theirs), strict=True):
            assert ours_one._is_view() == theirs_one._is_view()
            for arg in args:
                assert (ours_one is arg) == (theirs_one is arg)
    assert uses_generated(compiled) == path
    assert funcaot.report(compiled).cache_misses == 1


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("which", ["every", "first", "last", "same tangent"])
def test_gradients_for_some_of_the_outputs(path, name, which):
    function, count = FUNCTIONS[name]
    args = [square().requires_grad_() for _ in range(count)]
    compiled = warmed(function, *args)
    for _ in range(4):
        ours = [out for out in floats(compiled(*args)) if out.requires_grad]
        theirs = [out for out in floats(function(*args)) if out.requires_grad]
        if which in ("first", "last"):
            pick = slice(0, 1) if which == "first" else slice(-1, None)
            ours, theirs = ours[pick], theirs[pick]
        if which == "same tangent":
            shared = torch.randn_like(ours[0])
            tangents = [
                shared if out.shape == shared.shape else torch.randn_like(out) for out in ours
            ]
        else:
            tangents = [torch.randn_like(out) for out in ours]
        assert_close(
            torch.autograd.grad(ours, args, tangents, allow_unused=True),
            torch.autograd.grad(theirs, args, tangents, allow_unused=True),
        )


def test_every_layout_of_a_tangent(path):
    x = square().requires_grad_()
    compiled = warmed(odd_rule, x)
    for _ in range(3):
        for tangent in (
            torch.randn(3, dtype=torch.float64),
            torch.randn((), dtype=torch.float64).expand(3),
            torch.randn(6, dtype=torch.float64)[::2],
            torch.randn(3, dtype=torch.float64, requires_grad=True),
        ):
            ours = torch.autograd.grad(compiled(x), x, tangent)
            assert_close(ours, torch.autograd.grad(odd_rule(x), x, tangent))


def test_double_backward_after_plain_ones(path):
    x = square().requires_grad_()
    compiled = warmed(wave, x)
    for _ in range(3):
        (ours,) = torch.autograd.grad(compiled(x).sum(), x, create_graph=True)
        (theirs,) = torch.autograd.grad(wave(x).sum(), x, create_graph=True)
        assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), x))
        torch.autograd.grad(compiled(x).sum(), x)


def test_double_backward_through_what_is_not_saved(path):
    x, y = square().requires_grad_(), square().requires_grad_()

    def function(x, y):
        return (x + y).sin()

    compiled = warmed(function, x, y)
    for _ in range(3):
        ours = torch.autograd.grad(compiled(x, y).sum(), (x, y), create_graph=True)
        theirs = torch.autograd.grad(function(x, y).sum(), (x, y), create_graph=True)
        assert_close(
            torch.autograd.grad(sum(g.sum() for g in ours), (x, y)),
            torch.autograd.grad(sum(g.sum() for g in theirs), (x, y)),
        )


def test_backward_twice_with_and_without_the_graph(path):
    x = square().requires_grad_()
    compiled = warmed(wave, x)
    out = compiled(x).sum()
    first = torch.autograd.grad(out, x, retain_graph=True)
    assert_close(torch.autograd.grad(out, x), first)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        torch.autograd.grad(out, x)


def test_a_saved_tensor_that_was_modified(path):
    x = square().requires_grad_()
    compiled = warmed(wave, x)
    for _ in range(2):
        middle = x * 1
        out = compiled(middle)
        with torch.no_grad():
            middle.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_hooks_that_change_the_layout_of_what_was_saved(path, backend):
    x = torch.randn(4, 3, dtype=torch.float64).t().requires_grad_()
    compiled = funcaot.compile(wave, backend=backend)
    for _ in range(3):
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t.contiguous()):
            (ours,) = torch.autograd.grad(compiled(x).sum(), x)
        assert_close(ours, torch.autograd.grad(wave(x).sum(), x)[0])
        (ours,) = torch.autograd.grad(compiled(x).sum(), x)
        assert_close(ours, torch.autograd.grad(wave(x).sum(), x)[0])


def test_batched_gradients(path):
    x = square().requires_grad_()
    compiled = warmed(odd_rule, x)
    rows = torch.eye(3, dtype=torch.float64)
    for _ in range(2):
        ours = torch.autograd.grad(compiled(x), x, rows, is_grads_batched=True)
        assert_close(ours, torch.autograd.grad(odd_rule(x), x, rows, is_grads_batched=True))
        out = compiled(x)
        pull = torch.func.vmap(
            lambda row, out=out: torch.autograd.grad(out, x, row, retain_graph=True)[0]
        )
        assert_close(pull(rows), ours[0])


def test_transforms_around_a_function_with_generated_code(path):
    x = square()
    compiled = warmed(wave, x)
    for _ in range(2):
        assert_close(torch.func.vmap(compiled)(x), wave(x))
        assert_close(torch.func.jacrev(compiled)(x), torch.func.jacrev(wave)(x))
        assert_close(torch.func.jacfwd(compiled)(x), torch.func.jacfwd(wave)(x))
        assert_close(
            torch.func.hessian(lambda v: compiled(v).sum())(x),
            torch.func.hessian(lambda v: wave(v).sum())(x),
        )
        assert_close(compiled(x), wave(x))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, torch.ones_like(x))
            assert_close(
                forward_ad.unpack_dual(compiled(dual)).tangent,
                forward_ad.unpack_dual(wave(dual)).tangent,
            )


def test_generated_code_made_under_a_transform_would_be_wrong(path):
    x = square()
    compiled = funcaot.compile(wave, backend="eager")
    for _ in range(4):
        assert_close(torch.func.vmap(compiled)(x), wave(x))
    assert_close(compiled(x[0]), wave(x[0]))
    for _ in range(4):
        assert_close(compiled(x[0]), wave(x[0]))
        assert_close(torch.func.vmap(compiled)(x), wave(x))


def test_mutation(path):
    compiled = funcaot.compile(adds_in_place, backend="eager")
    for _ in range(4):
        ours, theirs, y = square(), None, square()
        theirs = ours.clone()
        version = ours._version
        assert_close(compiled(ours, y), adds_in_place(theirs, y))
        assert_close(ours, theirs)
        assert ours._version > version


def test_running_statistics(path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
    copy = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).double()
    copy.load_state_dict(module.state_dict())
    compiled = funcaot.compile(module, backend="eager")
    for _ in range(4):
        x = square()
        ours, theirs = compiled(x), copy(x)
        assert_close(ours, theirs)
        assert_close(
            torch.autograd.grad(ours.sin().sum(), list(module.parameters())),
            torch.autograd.grad(theirs.sin().sum(), list(copy.parameters())),
        )
        assert_close(list(module.buffers()), list(copy.buffers()))
    assert all(entry.forward.watched == () for entry in compiled_of(compiled).entries)


@pytest.mark.parametrize("last", [torch.relu, torch.exp, torch.tanh, lambda x: x.softmax(0)])
def test_a_result_that_its_own_gradient_needs(last):
    """It isn't watched, since autograd checks its version: calls take the generated path."""

    def function(x):
        return last(x * 2)

    compiled = funcaot.compile(function, backend="eager")
    x = square().requires_grad_()
    (ours,) = torch.autograd.grad(compiled(x).sum(), x)
    assert_close(ours, torch.autograd.grad(function(x).sum(), x)[0])
    assert all(entry.forward.watched == () for entry in compiled.entries)
    result = compiled(x)
    result.detach().zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_running_statistics_may_change_before_the_backward():
    module = nn.BatchNorm1d(3).double()
    compiled = funcaot.compile(module, backend="eager")
    x = square()
    expected = torch.autograd.grad(module(x).sin().sum(), module.weight)
    result = compiled(x).sin().sum()
    module.running_mean.zero_()
    assert_close(torch.autograd.grad(result, module.weight), expected)


def test_autocast_in_the_call_and_around_the_backward(path):
    weight = torch.randn(3, 3, requires_grad=True)

    def function(x):
        with torch.autocast("cpu", enabled=False):
            kept = x @ weight
        return kept, x @ weight

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(4):
        x = torch.randn(3, 3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            ours, theirs = compiled(x), function(x)
        assert [out.dtype for out in ours] == [torch.float32, torch.bfloat16]
        assert_close(ours, theirs)
        assert_close(
            torch.autograd.grad(ours[0].sum(), weight), torch.autograd.grad(theirs[0].sum(), weight)
        )


def test_autocast_only_around_the_backward(path):
    weight = torch.randn(3, 3, requires_grad=True)

    def function(x):
        return x @ weight

    compiled = funcaot.compile(function, backend="eager")
    for step in range(6):
        x = torch.randn(3, 3, requires_grad=True)
        ours, theirs = compiled(x), function(x)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=step % 2 > 0):
            ours = torch.autograd.grad(ours.sum(), (x, weight))
            theirs = torch.autograd.grad(theirs.sum(), (x, weight))
        assert [g.dtype for g in ours] == [g.dtype for g in theirs]
        assert_close(ours, theirs, rtol=0, atol=0)


def test_random_numbers_are_drawn_anew(path):
    compiled = funcaot.compile(lambda x: torch.nn.functional.dropout(x, 0.5), backend="eager")
    x = torch.ones(100, requires_grad=True)
    for seed in range(4):
        torch.manual_seed(seed)
        ours = compiled(x)
        torch.manual_seed(seed)
        theirs = torch.nn.functional.dropout(x, 0.5)
        assert_close(ours, theirs)
        assert_close(torch.autograd.grad(ours.sum(), x), torch.autograd.grad(theirs.sum(), x))


def test_keyword_and_nested_arguments(path):
    def function(x, *, options, pair=(1, 2)):
        return x * options["a"][0] + options["b"] * pair[0]

    compiled = funcaot.compile(function, backend="eager")
    x, a, b = square(), square(), square()
    for pair in ((1, 2), (3, 4), (1, 2), (3, 4)):
        for options in ({"a": [a], "b": b}, {"b": a, "a": [b]}):
            for _ in range(2):
                assert_close(
                    compiled(x, options=options, pair=pair), function(x, options=options, pair=pair)
                )
    assert funcaot.report(compiled).cache_misses == 4


def test_nodes_are_named_after_the_function(path):
    x = square().requires_grad_()
    compiled = warmed(wave, x)
    assert compiled(x).grad_fn.name() == "waveBackward"


def test_the_fast_path_can_be_switched_off_and_on():
    x = square()
    compiled = warmed(wave, x)
    assert uses_generated(compiled)
    with funcaot.config.patch(fast_path=False):
        assert not uses_generated(compiled)
        compiled(x)
        assert not uses_generated(compiled)
    compiled(x)
    assert uses_generated(compiled)
    assert funcaot.report(compiled).cache_misses == 1
