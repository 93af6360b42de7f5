"""Wrappers that aren't differentiated themselves, around tensors that a function computes.

Their inner tensors lead to the function's inputs: the oracle is the function itself.
"""

import pytest
import torch

import funcaot
from funcaot.aot.subclasses.structure import leaves_of
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.at_random.shared_worlds import Pair
from tests.aot.subclasses.kinds import Factor, TwoTensor, leaves_behind, made, same, two
from tests.hostile import COMPILER


def holds(value):
    return Factor(value, 3)


def written(x):
    holder = holds(x * 2)
    holder.inner.mul_(x)
    return holder


def twice(x):
    value = x * 2
    return holds(value), value, holds(value)


def half_recorded(x):
    with torch.no_grad():
        silent = x.cos()
    return holds(x.sin()), holds(silent), holds(silent)


PROGRAMS = {
    "alone": lambda x: holds(x.sin()),
    "beside": lambda x: (holds(x * 2), x * 3),
    "around a result": twice,
    "around a result's view": lambda x: (y := x * 2, holds(y[1:])),
    "around a view of the argument": lambda x: holds(x.t()),
    "around the argument, too": lambda x: (holds(x), holds(x * 2)),
    "in another": lambda x: holds(holds(x * 2)),
    "in another, and beside": lambda x: (inner := holds(x * 2), holds(inner)),
    "two of them inside": lambda x: TwoTensor(holds(x * 2), holds(x * 3)),
    "one of two recorded": half_recorded,
    "written to": lambda x: holds(x * 2).mul_(2),
    "written to inside": written,
    "twice the same": lambda x: (y := holds(x * 2), y),
    "another size": lambda x: holds(torch.cat([x, x]).sum(1)),
    "and detached": lambda x: (y := holds(x * 2), y.detach()),
    "and a view": lambda x: (y := holds(x * 2), y.view(-1)),
    "a leaf": lambda x: holds(x * 2).requires_grad_(),
    "a leaf around what isn't recorded": lambda x: holds((x * 2).detach()).requires_grad_(),
    "a leaf, and around the argument": lambda x: (holds(x.detach()).requires_grad_(), holds(x)),
    "around what is detached, and around the argument": lambda x: (holds(x.detach()), holds(x)),
    "around the argument, and around what is detached": lambda x: (holds(x), holds(x.detach())),
    "around a leaf": lambda x: holds((x * 2).detach().requires_grad_()),
    "in a dictionary": lambda x: {"a": [holds(x.exp())]},
}


def found_by(function, x, *, spoiled):
    """Results, and the gradients of what is in them."""
    results = function(x)
    flat = torch.utils._pytree.tree_leaves(results)
    plain = list(map(innermost, flat))
    objects = [[one is other for other in plain] for one in plain]
    gradients = []
    for each in plain:
        if each.requires_grad:
            (first,) = torch.autograd.grad(
                each.pow(2).sum(), x, create_graph=True, allow_unused=True
            )
            if first is None:
                continue
            (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
            gradients += [first.detach(), second]
    recorded = [each.requires_grad for each in (*flat, *plain)]
    values = [each.detach().clone() for each in plain]
    with torch.no_grad():
        plain[spoiled % len(plain)].zero_()
    left = [each.detach().clone() for each in (*plain, x)]
    return [list(map(type, flat)), objects, recorded, values, gradients, left]


def innermost(value):
    while type(value) is not torch.Tensor:
        value = value.inner if isinstance(value, Factor) else value.a
    return value


@pytest.mark.parametrize(
    "backend",
    [COMPILER, pytest.param("inductor", marks=pytest.mark.long)],
    ids=["hostile", "inductor"],
)
@pytest.mark.parametrize("program", PROGRAMS)
def test_what_is_inside_leads_to_the_inputs(program, backend):
    function = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=backend)
    for call, rows in enumerate((3, 3, 4, 5)):
        wanted = found_by(function, made(call, rows, 4), spoiled=call)
        found = found_by(compiled, made(call, rows, 4), spoiled=call)
        assert found[:3] == wanted[:3]
        same(found[3:], wanted[3:])
    assert len(compiled.entries) == 2


def test_objects_among_the_metadata_are_those_of_the_call():
    compiled = funcaot.compile(lambda x, y: Factor(x * 2, y.factor), backend=COMPILER)
    for call in range(3):
        y = Factor(torch.ones(2), {"number": 3})
        found = compiled(made(call, 3), y)
        assert found.factor is y.factor
        assert leaves_behind(found)


def test_kept_by_a_module():
    class Keeps(torch.nn.Module):
        def forward(self, x):
            self.kept = holds(x * 2)
            return x.sin()

    module = funcaot.compile(Keeps(), backend=COMPILER)
    for call in range(3):
        x = made(call, 3)
        module(x)
        same(torch.autograd.grad(module.kept.inner.sum(), x), (torch.full((3,), 2.0),))


def test_of_wrappers_that_are_differentiated():
    compiled = funcaot.compile(lambda x: (holds(x.sin()), x * 2), backend=COMPILER)
    for call in range(3):
        for each in (compiled, compiled.function):
            x = two(call, 3)
            holder, _ = each(x)
            same(torch.autograd.grad(holder.inner.sum(), x), (x.detach().cos(),))


def test_memory_of_a_wrapper_that_the_graph_gives():
    def function(x):
        y = x * 2
        return TwoTensor(y.detach(), y.detach() + 1), holds(y)

    with pytest.raises(UnsupportedError, match="shares memory with another result"):
        funcaot.compile(function, backend=COMPILER)(made(0, 3))


ARGUMENTS = {
    "around it": lambda x: holds(x.mul_(2)),
    "around what is detached": lambda x: (x.detach().mul_(2), holds(x.detach()))[1],
    "around a view": lambda x: holds(x.add_(1)[1:]),
    "around it and a result": lambda x: TwoTensor(x.add_(1), x * 2),
    "and the argument": lambda x: (holds(x.add_(1)), x, x[0]),
    "a leaf": lambda x: holds(x.add_(1).detach()).requires_grad_(),
    "in another": lambda x: holds(holds(x.sin_())),
}


@pytest.mark.parametrize("program", ARGUMENTS)
def test_around_an_argument_that_is_written_to(program):
    function = ARGUMENTS[program]
    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        seen = []
        for each in (compiled, function):
            x = made(call, 3, 4, grad=False)
            flat = torch.utils._pytree.tree_leaves(each(x))
            plain = [innermost(value) for value in flat]
            told = [(value is x, value.requires_grad, value.is_leaf) for value in (*plain, *flat)]
            versions = [value._version for value in (x, *plain) if value is x]
            with torch.no_grad():
                plain[0].mul_(3)
                before = [value.clone() for value in (x, *plain)]
                x.add_(5)
            seen.append(([type(value) for value in flat], told, versions, before, x, plain))
        assert seen[0][:3] == seen[1][:3]
        same([*map(list, seen[0][3:4]), seen[0][4], seen[0][5]], [list(seen[1][3]), *seen[1][4:]])
    assert len(compiled.entries) == 1


AROUND_GIVEN = {
    "an argument": lambda x, p: Pair(x, p.detach()),
    "two of them": lambda x, p: Factor(Pair(x, x), 3),
    "an argument and a result": lambda x, p: Pair(x, p.sin()),
    "one around another": lambda x, p: Pair(Pair(x, x), p.detach()),
}


@pytest.mark.parametrize("backend", [COMPILER, "inductor"], ids=["hostile", "inductor"])
@pytest.mark.parametrize("how", list(AROUND_GIVEN))
def test_around_an_argument_with_a_history_beside_a_recorded_result(how, backend):
    def function(x, p):
        return AROUND_GIVEN[how](x, p), p * 2

    compiled = funcaot.compile(function, backend=backend)
    for call in range(3):
        found = []
        for each in (compiled, function):
            leaf, p = (torch.full((2, 3), call + s).requires_grad_() for s in (1.0, 2.0))
            x = leaf * 3
            holder, beside = each(x, p)
            parts = list(leaves_of(holder))
            graded = [part for part in (*parts, beside) if part.requires_grad]
            gradients = torch.autograd.grad(sum(part.sum() for part in graded), [leaf, p])
            told = [(part is x, part.requires_grad, part.is_leaf) for part in parts]
            found.append((told, [*gradients, beside.detach(), *(part.detach() for part in parts)]))
        assert found[0][0] == found[1][0]
        torch.testing.assert_close(found[0][1], found[1][1])


AROUND_COMPUTED = {
    "alone": lambda y, x: y,
    "and what is computed of it": lambda y, x: (y, y * 2),
    "beside a result": lambda y, x: (y, x.cos()),
}


VALUES = {"a result": lambda x: x * 2, "a view of one": lambda x: (x.t() * 2).t()}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("program", AROUND_COMPUTED)
def test_values_of_a_jagged_tensor_have_the_history_that_they_had(program, values):
    def function(x, offsets):
        y = torch.nested.nested_tensor_from_jagged(VALUES[values](x), offsets)
        return AROUND_COMPUTED[program](y, x)

    compiled = funcaot.compile(function, backend=COMPILER)
    for call in range(3):
        seen = []
        for each in (compiled, function):
            x, offsets = made(call, 5 + call, 4), torch.tensor([0, 2, 5 + call])
            results = each(x, offsets)
            first = results[0] if isinstance(results, tuple) else results
            found = [first._values, first.values(), first.requires_grad]
            inner, whole = first._values, first.values()
            for loss in (whole.pow(2), inner * whole):
                found.append(torch.autograd.grad(loss.sum(), x, retain_graph=True)[0])
            (gradient,) = torch.autograd.grad(inner.pow(2).sum(), x, create_graph=True)
            seen.append([*found, gradient, torch.autograd.grad(gradient.sum(), x)[0]])
        same(*seen)


def test_a_leaf_that_a_returned_wrapper_is_computed_of():
    """Its ``grad`` would be filled by a backward of the wrapper."""

    def function(x, offsets):
        leaf = (x * 2).detach().requires_grad_()
        return torch.nested.nested_tensor_from_jagged(leaf, offsets)

    compiled = funcaot.compile(function, backend=COMPILER)
    with pytest.raises(UnsupportedError, match="a leaf that requires grad and that it made itself"):
        compiled(made(0, 3, 4), torch.tensor([0, 1, 3]))
