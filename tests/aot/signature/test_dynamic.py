"""Open sizes: one program for many, equal to eager in values, strides and aliases."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import funcaot
from tests.aot.signature.dynamic_cases import CASES, check, check_equal, custom, graphs_of, mlp

# What can be done with one size for all: the functions that ask nothing about it.
_ALL_SIZES = [*range(3, 23)]


@pytest.mark.parametrize("name", CASES)
def test_twenty_sizes_take_two_programs(name):
    function, shapes = CASES[name]
    compiled = funcaot.compile(function, backend="eager")
    for size in _ALL_SIZES:
        check(function, compiled, shapes(size), ("contiguous",))
    # One for the first size, one for all others; a conv's backend choice depends on the batch.
    entries = 3 if name == "convolution" else 2
    assert len(compiled.entries) == entries
    assert graphs_of(compiled) == 2 * entries


@pytest.mark.parametrize("name", CASES)
def test_everything_open_equals_eager(name):
    function, shapes = CASES[name]
    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for size in (4, 3, 7, 2, 9):
        check(function, compiled, shapes(size), ("contiguous", "expanded", "transposed"))
    assert len(compiled.entries) < 5


@pytest.mark.parametrize("name", ["mlp", "attention", "ranges", "joins", "custom", "sizes"])
def test_sizes_of_one_and_none_have_programs_of_their_own(name):
    function, shapes = CASES[name]
    compiled = funcaot.compile(function, backend="eager")
    for size in (1, 4, 0, 5, 1, 0, 6, 2):
        check(function, compiled, shapes(size))
    described = [str(entry.signature) for entry in compiled.entries]
    assert len(described) == 3
    assert sum("s0" in text for text in described) == 1


def test_never_open():
    compiled = funcaot.compile(mlp, backend="eager", dynamic=False)
    for size in (3, 4, 5):
        check(mlp, compiled, CASES["mlp"][1](size), ("contiguous",))
    assert len(compiled.entries) == 3
    assert not any("s0" in str(entry.signature) for entry in compiled.entries)


def test_all_open_from_the_first_call():
    compiled = funcaot.compile(lambda x, y: x + y, backend="eager", dynamic=True)
    for size in (3, 4, 5):
        compiled(torch.randn(size, 2 * size), torch.randn(size, 2 * size))
    assert graphs_of(compiled) == 1
    assert str(compiled.entries[0].signature) == "float32[s0, s1], float32[s0, s1]"


def test_only_what_changed_is_open():
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    for size in (3, 4, 5):
        compiled(torch.randn(7, size, 2))
    first, second = (str(entry.signature) for entry in compiled.entries)
    assert (first, second) == ("float32[7, 3, 2]", "float32[7, s0, 2]")
    compiled(torch.randn(8, 5, 2))
    compiled(torch.randn(9, 6, 2))
    assert str(compiled.entries[-1].signature) == "float32[s0, s1, 2]"
    assert graphs_of(compiled) == 3


def test_a_program_for_the_very_size_is_preferred():
    compiled = funcaot.compile(lambda x: x * 2, backend="eager")
    for size in (3, 4, 3, 3):
        compiled(torch.randn(size))
    assert [entry.calls for entry in compiled.entries] == [2, 0]


def test_equal_sizes_share_a_symbol_and_unequal_ones_get_another_program():
    def outer(x, y):
        return x[:, None] * y

    compiled = funcaot.compile(outer, backend="eager", dynamic=True)
    check(outer, compiled, [(4,), (4,)])
    check(outer, compiled, [(5,), (5,)])
    assert len(compiled.entries) == 1
    check(outer, compiled, [(4,), (6,)])
    check(outer, compiled, [(7,), (3,)])
    assert len(compiled.entries) == 2


def test_a_branch_on_a_size_is_a_guard():
    def branching(x):
        return x.sin() if x.shape[0] > 6 else x.cos()

    compiled = funcaot.compile(branching, backend="eager", dynamic=True)
    for size in (3, 9, 6, 7, 4, 20):
        check(branching, compiled, [(size, 2)])
    guards = [entry.guards for entry in funcaot.report(compiled).entries]
    assert guards == [("s0 <= 6",), ("s0 > 6",)]
    assert "if s0 <= 6" in str(funcaot.report(compiled))


def test_a_loop_over_a_size_is_right_for_that_size_only():
    def loop(x):
        total = x[0]
        for index in range(1, x.shape[0]):
            total = total * x[index]
        return total

    compiled = funcaot.compile(loop, backend="eager")
    for size in (3, 4, 5, 3, 4):
        check(loop, compiled, [(size, 2)])
    assert len(compiled.entries) == 3


def test_functions_that_need_numbers_are_compiled_for_them():
    compiled = funcaot.compile(lambda x: x * len(range(x.shape[0])), backend="eager")
    for size in (3, 4, 5, 6, 4):
        check_equal(compiled(torch.ones(size)), torch.full((size,), float(size)))
    assert len(compiled.entries) == 4
    assert not any("s0" in str(entry.signature) for entry in compiled.entries)
    assert "one size only" in str(funcaot.report(compiled).entries[-1].closed)


def test_a_special_case_leaves_other_sizes_open():
    def function(x):
        return x.sin() if x.shape[0] == 4 else x.cos()

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 4, 5, 6, 7, 4):
        check(function, compiled, [(size,)])
    described = [str(entry.signature) for entry in compiled.entries]
    assert described == [f"float32[{n}] requires_grad" for n in ("3", "4", "s0")]


def test_layouts_with_open_sizes():
    def function(x):
        return (x * 2).reshape(-1), x.sum(1), x

    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for size in (4, 5, 6, 7):
        for x in (
            torch.randn(size, 3),
            torch.randn(3, size).t(),
            torch.randn(size, 6)[:, ::2],
            torch.randn(size, 1).expand(size, 3),
            torch.randn(2 * size, 3)[::2],
        ):
            check_equal(compiled(x), function(x))
    # The third and the last lie differently, but each like itself at every size.
    assert len(compiled.entries) == 5


def test_outputs_share_memory_as_in_eager():
    def function(x):
        y = x * 2
        return x[1:], x.t(), x.view(-1), y, y.view(-1)[::2], x.view(x.shape[0], 3, 2)

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 6)
        results = compiled(x)
        check_equal(results, function(x))
        owners = [result.untyped_storage().data_ptr() for result in results]
        assert owners[0] == owners[1] == owners[2] == owners[5] == x.untyped_storage().data_ptr()
        assert owners[3] == owners[4] != owners[0]
        assert [result._is_view() for result in results] == [True, True, True, False, True, True]
    assert len(compiled.entries) == 2


def test_an_input_of_open_size_is_overwritten():
    def step(weight, gradient):
        with torch.no_grad():
            weight.add_(gradient, alpha=-0.1)
        return (weight * gradient).sum()

    compiled = funcaot.compile(step, backend="eager")
    for size in (3, 4, 5, 6):
        mine = torch.randn(size, 2, requires_grad=True)
        theirs = mine.detach().clone().requires_grad_()
        gradient = torch.randn(size, 2)
        result, expected = compiled(mine, gradient), step(theirs, gradient)
        result.backward()
        expected.backward()
        check_equal((result, mine, mine.grad), (expected, theirs, theirs.grad))
        assert mine._version == theirs._version
    assert len(compiled.entries) == 2


def test_inputs_that_overlap_have_a_program_per_size():
    def function(x, y):
        x.add_(1)
        return y * 2

    compiled = funcaot.compile(function, backend="eager")
    for size in (4, 5, 6):
        mine, theirs = torch.zeros(size + 1), torch.zeros(size + 1)
        check_equal(compiled(mine[1:], mine[:-1]), function(theirs[1:], theirs[:-1]))
        check_equal(mine, theirs)
    reasons = [entry.closed for entry in funcaot.report(compiled).entries]
    assert "share memory" in str(reasons[-1])
    assert "for these sizes only" in str(funcaot.report(compiled))


def test_random_numbers_are_eagers():
    def function(x):
        return F.dropout(x, 0.5) + torch.rand(x.shape[0], 1)

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 4, requires_grad=True)
        found = []
        for each in (compiled, function):
            torch.manual_seed(size)
            result = each(x)
            found.append((result, torch.autograd.grad(result.sum(), x), torch.rand(1)))
        check_equal(*found)
    assert len(compiled.entries) == 2


def test_a_module():
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    )
    other = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.GELU(), torch.nn.Linear(8, 2)
    )
    other.load_state_dict(model.state_dict())
    compiled = funcaot.compile(model, backend="eager")
    for size in (5, 6, 7, 8):
        x = torch.randn(size, 4)
        result, expected = compiled(x), other(x)
        result.square().sum().backward()
        expected.square().sum().backward()
        check_equal(result, expected)
    check_equal([p.grad for p in model.parameters()], [p.grad for p in other.parameters()])
    check_equal(list(model.buffers()), list(other.buffers()))
    assert graphs_of(compiled) == 4


def test_a_size_that_a_module_keeps():
    class Keeping(torch.nn.Module):
        def forward(self, x):
            self.seen = x.shape[0]
            return x * 2

    model = Keeping()
    compiled = funcaot.compile(model, backend="eager", dynamic=True)
    for size in (3, 4):
        compiled(torch.randn(size))
        assert type(model.seen) is int


def test_state_is_kept_at_every_size():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            self.total = self.total + x.sum(0)
            return x * self.total

    mine, theirs = Counting(), Counting()
    compiled = funcaot.compile(mine, backend="eager")
    for size in (3, 4, 5, 6):
        x = torch.randn(size, 3)
        check_equal(compiled(x), theirs(x))
        check_equal(mine.total, theirs.total)
    assert len(funcaot.report(compiled).entries) == 2


def test_data_dependent_sizes_are_refused_with_the_line():
    def function(x):
        return x.nonzero()

    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    said = r"nonzero.*test_dynamic\.py:\d+"
    with (
        funcaot.config.patch(specialize_on_values=False),
        pytest.raises(funcaot.errors.UnsupportedError, match=said),
    ):
        compiled(torch.randn(4))


def test_what_reads_values_has_a_program_per_value():
    def function(x):
        return x * 2 if x.sum() > 0 else x * 3

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 4, 5):
        for sign in (1.0, -1.0):
            x = torch.full((size,), sign)
            check_equal(compiled(x), function(x))
    assert len(compiled.entries) == 4  # For each answer one of the first size, and one of any.


def test_users_errors_pass_through():
    def function(x):
        if x.shape[0] > 4:
            raise ValueError("too long")
        return x * 2

    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    compiled(torch.randn(3))
    with pytest.raises(ValueError, match="too long"):
        compiled(torch.randn(5))
    check_equal(compiled(torch.ones(4)), torch.full((4,), 2.0))
    assert len(compiled.entries) == 1


def test_a_compiler_gets_sizes_as_inputs():
    seen = []

    def show(graph, inputs):
        seen.append(inputs)
        return graph

    compiled = funcaot.compile(custom, backend=show, dynamic=True)
    for size in (3, 4, 5):
        check(custom, compiled, [(size, 2)], ("contiguous",))
    assert len(seen) == 2
    for inputs in seen:
        assert sum(isinstance(value, torch.SymInt) for value in inputs) == 2


def test_a_compiler_that_cannot_take_open_sizes():
    def picky(graph, inputs):
        if any(isinstance(value, torch.SymInt) for value in inputs):
            raise NotImplementedError("open sizes")
        return graph

    compiled = funcaot.compile(custom, backend=picky)
    for size in (3, 4, 5):
        check_equal(compiled(torch.ones(size, 2)), custom(torch.ones(size, 2)))
    assert len(compiled.entries) == 3
    assert "open sizes" in str(funcaot.report(compiled).entries[-1].closed)


def test_eviction_and_clearing():
    compiled = funcaot.compile(lambda x: x * 2, backend="eager", dynamic=True)
    compiled(torch.randn(3))
    compiled(torch.randn(4))
    compiled.clear()
    assert compiled.entries == ()
    compiled(torch.randn(5))
    assert graphs_of(compiled) == 2


class TestMarks:
    """``mark_dynamic``."""

    def test_open_from_the_first_call(self):
        compiled = funcaot.compile(lambda x, w: x @ w, backend="eager")
        for size in (4, 5, 6):
            x = torch.randn(size, 4)
            funcaot.mark_dynamic(x, 0)
            compiled(x, torch.randn(4, 4))
        assert graphs_of(compiled) == 1
        assert str(compiled.entries[0].signature) == "float32[s0, 4], float32[4, 4]"

    def test_several_dimensions(self):
        compiled = funcaot.compile(lambda x: x * 2, backend="eager")
        for size in (4, 5):
            x = torch.randn(size, 3, size)
            funcaot.mark_dynamic(x, (0, -1))
            compiled(x)
        assert str(compiled.entries[0].signature) == "float32[s0, 3, s1]"
        assert graphs_of(compiled) == 1

    def test_a_dimension_that_there_is_not(self):
        with pytest.raises(funcaot.errors.FuncaotError, match="doesn't have"):
            funcaot.mark_dynamic(torch.ones(2), 1)

    def test_what_is_no_tensor(self):
        with pytest.raises(funcaot.errors.FuncaotError, match="a dimension of a tensor"):
            funcaot.mark_dynamic([1, 2], 0)

    def test_a_size_that_became_a_number(self):
        compiled = funcaot.compile(lambda x: x * len(range(x.shape[0])), backend="eager")
        x = torch.randn(4)
        funcaot.mark_dynamic(x, 0)
        with pytest.raises(funcaot.errors.UnsupportedError, match=r"dimension 0.*size 4 only"):
            compiled(x)

    def test_what_cannot_be_captured(self):
        kept = {}

        def function(x):
            kept[hash(x.shape[0])] = 1
            return x * 2

        compiled = funcaot.compile(function, backend="eager")
        x = torch.randn(4)
        funcaot.mark_dynamic(x, 0)
        with pytest.raises(funcaot.errors.UnsupportedError, match="marked by mark_dynamic"):
            compiled(x)

    def test_sizes_of_one_are_allowed(self):
        compiled = funcaot.compile(lambda x: x * 2, backend="eager")
        x = torch.randn(1)
        funcaot.mark_dynamic(x, 0)
        check_equal(compiled(x), x * 2)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dynamic", [True, False])
def test_dropout_that_drops_nothing_gives_back_its_input(dynamic, training):
    def function(x):
        y = F.dropout(x, 0.0 if training else 0.5, training)
        y += 1
        return y

    compiled = funcaot.compile(function, backend="eager", dynamic=dynamic)
    for size in (3, 5, 4):
        ours, theirs = torch.ones(size, 2), torch.ones(size, 2)
        result, wanted = compiled(ours), function(theirs)
        assert torch.equal(ours, theirs)
        assert torch.equal(result, wanted)
        assert (result is ours) == (wanted is theirs)
