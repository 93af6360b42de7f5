"""Mutations of inputs and aliases among outputs, each against eager in everything that shows."""

import itertools

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.effects.effect_cases import ALIASES, MUTATIONS
from tests.aot.programs.differential import Inputs, Stricter, check, compare, run


def make_inputs(kind):
    def make():
        leaf = torch.arange(6.0, dtype=torch.float64).view(2, 3) + 1
        w = torch.tensor(1.5, dtype=torch.float64, requires_grad=kind != "plain")
        if kind == "plain":
            return Inputs([leaf, w], [], [])
        if kind == "plain and a weight":
            return Inputs([leaf, w], [], [w])
        leaf.requires_grad_()
        if kind == "leaf":
            return Inputs([leaf, w], [], [leaf, w])
        if kind == "non-leaf":
            return Inputs([leaf * 1, w], [], [leaf, w])
        base = torch.cat([leaf * 1, leaf * 2])
        return Inputs([base[1:3], w], [base], [leaf, w])

    return make


KINDS = [
    "non-leaf",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("plain", "plain and a weight", "leaf", "view")
    ),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_matrix(mutation, kind):
    write = MUTATIONS[mutation]
    unsupported = 0
    for (name, alias), grad_mode, first in itertools.product(
        ALIASES.items(), (True, False), (True, False)
    ):
        if kind == "leaf" and grad_mode and mutation in ("t_", "unsqueeze_"):
            continue

        def function(x, w, alias=alias, first=first):
            if first:
                write(x, w)
            outputs = alias(x)
            if not first:
                write(x, w)
            return outputs

        try:
            check(function, make_inputs(kind), grad_mode=grad_mode)
        except (UnsupportedError, Stricter):
            unsupported += 1
        except AssertionError as error:
            raise AssertionError(
                f"{name}, grad mode {grad_mode}, first {first}: {error}"
            ) from error
    metadata = mutation in ("t_", "write and t_", "unsqueeze_", "transpose_ and write")
    assert unsupported == 0 or metadata, unsupported


def overlapping(*slices, grad=True, detached=False):
    def make():
        leaf = torch.arange(8.0, dtype=torch.float64).requires_grad_(grad)
        base = leaf * 1
        views = [base[part] for part in slices]
        if detached:
            views[1] = views[1].detach()
        return Inputs(views, [base], [leaf] if grad else [])

    return make


OVERLAPS = {
    "partly": (slice(0, 4), slice(2, 6)),
    "the same": (slice(0, 4), slice(0, 4)),
    "inside": (slice(0, 8), slice(2, 6)),
    "disjoint": (slice(0, 4), slice(4, 8)),
}


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("overlap", OVERLAPS)
def test_overlapping_inputs(overlap, grad, detached):
    def size(part, n=8):
        return part.stop - part.start

    first, second = OVERLAPS[overlap]
    n = min(size(first), size(second))

    def write_first(x, y):
        x.mul_(2)
        return x[:n] + y[:n], y

    def write_both(x, y):
        y.add_(1)
        x.mul_(3)
        return y.sin(), x

    def read_then_write(x, y):
        z = y * 5
        x.add_(1)
        return z, y[1:]

    for function in (write_first, write_both, read_then_write):
        for grad_mode in (True, False):
            make = overlapping(first, second, grad=grad, detached=detached)
            check(function, make, grad_mode=grad_mode)


def test_the_overlap_is_part_of_the_signature():
    def function(x, y):
        x.mul_(2)
        return x + y

    compiled = funcaot.compile(function, backend="eager")
    for first, second in ((0, 4), (0, 2), (2, 0), (0, 4), (0, 0), (0, 2), (4, 0)):
        make = overlapping(slice(first, first + 4), slice(second, second + 4))
        check(function, make, compiled=compiled)
    assert len(compiled.entries) == 5  # in each order apart, 2 behind, and the same


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_overlap_with_another_dtype(dtype):
    def make():
        base = torch.arange(8.0, dtype=torch.float64)
        return Inputs([base[:4], base[2:].view(dtype)], [base], [])

    def function(x, y):
        x.mul_(2)
        return y + 1

    check(function, make, derivatives=False)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.resize_(2),
        lambda x: x.resize_(2, 3),
        lambda x: x.mul_(2).resize_(3),
        lambda x: x.as_strided_((2,), (2,)),
        lambda x: x.swapaxes_(0, 1),
        lambda x: x.squeeze_(),
    ],
)
def test_metadata(function):
    def make():
        return Inputs([torch.arange(6.0, dtype=torch.float64).view(2, 3) + 1], [], [])

    check(function, make)


def test_a_larger_size():
    def function(x):
        x.resize_(3, 4).zero_()
        return x + 1

    check(function, lambda: Inputs([torch.ones(2, 3)], [], []))


def test_set_():
    def to_the_other(x, y):
        x.set_(y)
        return x * 2

    def to_an_intermediate(x, y):
        x.set_(y * 3)
        return x

    for function in (to_the_other, to_an_intermediate):
        make = lambda: Inputs([torch.ones(3), torch.zeros(2, 2)], [], [])  # noqa: E731
        eager = run(function, make(), grad_mode=True)
        compare(eager, run(funcaot.compile(function, backend="eager"), make(), grad_mode=True), "")


def test_attributes():
    def detach(x):
        y = x * 2
        x.detach_()
        return y

    def require(x):
        x.requires_grad_()
        return (x**2).sum()

    def make_non_leaf():
        leaf = torch.ones(3, requires_grad=True)
        return Inputs([leaf * 1], [], [leaf])

    check(detach, make_non_leaf)
    for called in (require, funcaot.compile(require, backend="eager")):
        x = torch.ones(3)
        called(x).backward()
        assert_close(x.grad, torch.full((3,), 2.0))


def test_the_plan_can_be_read():
    def function(x, y):
        x[0].mul_(2)
        y.t_()
        z = x * 3
        return x, x[1:], z[0], z, z[0], 7

    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.ones(2, 3), torch.ones(2, 3))
    assert str(compiled.entries[0].effects) == "\n".join(
        [
            "input 0: = result 1, version +1",
            "input 1: shape [3, 2] stride [1, 3], version +1",
            "output 0: input 0",
            "output 1: input 0.slice(0, 1, 9223372036854775807)",
            "output 2: result 0.select(0, 0)",
            "output 3: result 0",
            "output 4: result 0.select(0, 0)",
            "output 5: 7",
        ]
    )


def test_the_plan_of_shared_memory_can_be_read():
    def function(x, y):
        x.mul_(2)
        return y

    compiled = funcaot.compile(function, backend="eager")
    inputs = overlapping(slice(0, 4), slice(2, 6))()
    compiled(*inputs.args)
    assert str(compiled.entries[0].effects) == "\n".join(
        [
            "inputs 0, 1 share float64[8]",
            "shared memory 2: = result 0",
            "input 3: = result 1 with its gradient, version +1",
            "output 0: input 1",
        ]
    )


def test_a_mutated_argument_of_vmap():
    def function(x, buffer):
        buffer.add_(x.sum())
        return x * buffer

    x = torch.rand(4, 3)
    results = []
    for called in (function, funcaot.compile(function, backend="eager")):
        buffer = torch.zeros(4)
        results.append((torch.func.vmap(called)(x, buffer), buffer))
    assert_close(results[1], results[0])


def test_saved_tensors_are_checked():
    def saves_then_writes(x, y):
        z = x * y
        y.mul_(2)
        return z

    def writes_then_saves(x, y):
        y.mul_(2)
        return x * y

    for called in (saves_then_writes, funcaot.compile(saves_then_writes, backend="eager")):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            called(x, y).sum().backward()
    for called in (writes_then_saves, funcaot.compile(writes_then_saves, backend="eager")):
        x, y = torch.ones(3, requires_grad=True), torch.ones(3)
        z = called(x, y)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()


@pytest.mark.parametrize("grad", [False, True])
def test_the_generator_is_where_eager_leaves_it(grad):
    def function(x):
        unused = torch.rand(3)
        y = torch.nn.functional.dropout(x, 0.5) + torch.randn_like(x)
        return y.sin() + unused[0] * 0

    results = []
    for called in (function, funcaot.compile(function, backend="eager")):
        torch.manual_seed(3)
        x = torch.ones(5, requires_grad=grad)
        y = called(x)
        state = torch.get_rng_state()
        if grad:
            y.sum().backward()
            assert torch.equal(torch.get_rng_state(), state)
        results.append((y.detach(), x.grad, state))
    assert_close(results[1][:2], results[0][:2])
    assert torch.equal(results[1][2], results[0][2])


@pytest.mark.slow
def test_inductor_can_draw_the_numbers_of_eager():
    def function(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(3)

    results = []
    with funcaot.config.patch(fallback_random=True):
        for called in (function, funcaot.compile(function)):
            torch.manual_seed(3)
            results.append((called(torch.ones(3)), torch.get_rng_state()))
    assert_close(results[1], results[0])


def test_what_is_only_printed_or_counted_happens_once():
    calls = []

    class Remembering(torch.nn.Module):
        def forward(self, x):
            calls.append(1)
            y = x * 2
            self.last = y
            return y + 1

    compiled = funcaot.compile(Remembering(), backend="eager")
    for value in (1.0, 2.0):
        compiled(torch.full((2,), value))
        assert_close(compiled.last, torch.full((2,), value * 2))
    assert len(calls) == 1


def foreach_on_one_tensor_twice(x, w):
    torch._foreach_add_([x, x], 1.0)
    return x * w


def foreach_on_views(x, w):
    torch._foreach_mul_([x[:2], x[1:]], [w[:2], w[1:]])
    return x + 1


@pytest.mark.parametrize("function", [foreach_on_one_tensor_twice, foreach_on_views])
@pytest.mark.parametrize("views", [False, True])
def test_foreach_on_shared_memory(function, views):
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        results = []
        for call in (compiled, function):
            base = torch.arange(6.0).reshape(2, 3) + 1
            x, w = (base[0], base[1]) if views else (base[0].clone(), base[1].clone())
            result = call(x, w)
            results.append((result, x, w, base, torch.tensor([x._version, w._version])))
        assert_close(*results)


def test_an_input_that_changes_its_shape_is_saved_as_it_was():
    def function(x, w):
        x.unsqueeze_(0).transpose_(0, 1)
        return x * w

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        gradients = []
        for call in (compiled, function):
            leaf, w = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
            x = leaf * 1
            total = call(x, w).sum() + x.sum()
            gradients.append(torch.autograd.grad(total, [leaf, w]))
        assert_close(*gradients)


def test_a_tensor_set_to_another_storage_is_not_returned():
    def function(x):
        y = x.clone()
        y.set_(x.detach())
        return y

    with pytest.raises(UnsupportedError, match="set_"):
        funcaot.compile(function, backend="eager")(torch.ones(3))
