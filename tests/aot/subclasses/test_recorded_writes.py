"""Writes to wrappers that autograd records, changes of shape in place, and shared inner tensors."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import Factor, TwoTensor, everything, made, same, two
from tests.hostile import COMPILER


def leaf():
    return two(0, 3, 4)


def middle(seed=0, *shape):
    """It requires grad and is no leaf."""
    return two(seed, *(shape or (3, 4))) * 1


def silent(seed=0):
    return two(seed, 3, 4, grad=False)


def with_gaps(*, graded):
    x = TwoTensor(torch.ones(3, 4)[:, :2], torch.ones(3, 4)[:, :2])
    return x.requires_grad_().view_as(x) if graded else x


def nested():
    return TwoTensor(silent(), silent(1)).requires_grad_() * 1


def holding_one(*, graded):
    """Two wrappers around one tensor."""
    x = middle() if graded else silent()
    return x, TwoTensor(x.a, x.b.clone()).requires_grad_(graded)


def twice_inside(*, graded):
    inner = torch.ones(3) + 1
    x = TwoTensor(inner, inner)
    return x.requires_grad_() * 1 if graded else x


def each(*statements):
    """A function that runs statements and returns the last one's value."""

    def function(*arguments):
        value = None
        for statement in statements:
            value = statement(*arguments)
        return value

    return function


def used_and_written(x):
    y = x.clone().sin()
    x.mul_(2)
    return y * x


def saved_and_written(x):
    y = x.sin()
    x.mul_(2)
    return y * x


def views_around(x):
    before = x.view(4, 3)
    x.mul_(2)
    return before, x.view(4, 3), x * 2


def view_of_what_is_made(x):
    y = x * 2
    y[0].mul_(x[1])
    return y.sin()


def made_of_plain(x):
    y = TwoTensor(x.detach(), x.detach() * 2)
    y.mul_(x)
    return y.sin()


def stopped(x):
    y = x * 2
    x.requires_grad_(False)
    return y + x


def without_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x * 1


PROGRAMS = {
    "by a number": (each(lambda x: x.mul_(2), torch.sin), lambda: (middle(),)),
    "result alone": (lambda x: x.sigmoid_(), lambda: (middle(),)),
    "what it writes is saved": (each(lambda x: x.sigmoid_(), torch.sin), lambda: (middle(),)),
    "two writes": (lambda x: x.mul_(x.detach()).add_(x.sin()), lambda: (middle(),)),
    "used before": (used_and_written, lambda: (middle(),)),
    "saved before": (saved_and_written, lambda: (middle(),)),
    "a wrapper makes it require grad": (
        each(lambda x, y: x.mul_(y), lambda x, y: x * 3),
        lambda: (silent(), middle(1)),
    ),
    "a plain tensor makes it require grad": (
        each(lambda x, y: x.mul_(y), lambda x, y: x * 3),
        lambda: (silent(), made(1, 3, 4)),
    ),
    "a copy": (each(lambda x, y: x.copy_(y), lambda x, y: x * 3), lambda: (middle(), middle(1))),
    "a copy of a plain tensor": (
        each(lambda x, y: x.copy_(y), lambda x, y: x * 3),
        lambda: (middle(), made(1, 3, 4)),
    ),
    "zeros": (each(lambda x: x.zero_(), lambda x: x + 3), lambda: (middle(),)),
    "a row": (each(lambda x: x[0].mul_(2), lambda x: x * 3), lambda: (middle(),)),
    "a row by index": (
        each(lambda x, y: x.__setitem__(1, y), lambda x, y: x * 3),
        lambda: (middle(), two(5, 4)),
    ),
    "views before and after": (views_around, lambda: (middle(),)),
    "a plain tensor and a wrapper": (
        each(lambda x, y: x.mul_(2), lambda x, y: y.mul_(3), torch.add),
        lambda: (made(0, 3, 4) * 1, middle()),
    ),
    "of another wrapper's part": (
        each(lambda x, y: x.copy_(y.a), lambda x, y: x * y),
        lambda: (made(1, 3, 4) * 1, silent()),
    ),
    "nested": (each(lambda x: x.mul_(2), torch.sin), lambda: (nested(),)),
    "with metadata": (
        each(lambda x: x.mul_(2), torch.sin),
        lambda: (Factor(torch.ones(3), 2).requires_grad_() * 1,),
    ),
    "a view is the argument": (each(lambda x: x.mul_(2), torch.sin), lambda: (middle()[0],)),
    "a view that begins to require grad": (
        each(lambda x, y: x.mul_(y), lambda x, y: x.sin()),
        lambda: (silent()[0], two(4, 4)),
    ),
    "gaps": (each(lambda x: x.mul_(2), torch.sin), lambda: (with_gaps(graded=False),)),
    "gaps with history": (each(lambda x: x.mul_(2), torch.sin), lambda: (with_gaps(graded=True),)),
    "gaps and a copy from another order": (
        each(lambda x, y: x.copy_(y), lambda x, y: x * 1),
        lambda: (with_gaps(graded=False), two(1, 2, 3, grad=False).t()),
    ),
    "a leaf": (lambda x: x.mul_(2), lambda: (leaf(),)),
    "in no_grad": (without_grad, lambda: (middle(),)),
    "through detach": (
        each(lambda x: x.detach().mul_(2), lambda x: x * 1),
        lambda: (middle(),),
    ),
    "view of what it makes": (view_of_what_is_made, lambda: (middle(),)),
    "wrapper that it makes": (made_of_plain, lambda: (made(0, 3, 4),)),
    "one part of two": (
        each(lambda x, y: x.add_(1), lambda x, y: (y * 2, x * 3)),
        lambda: holding_one(graded=False),
    ),
    "one part of two with history": (
        each(lambda x, y: x.mul_(2), lambda x, y: (y * 2, x * 3)),
        lambda: holding_one(graded=True),
    ),
    "one part of two, the other first": (
        each(lambda y, x: x.mul_(2), lambda y, x: (y * 2, x * 3)),
        lambda: holding_one(graded=True)[::-1],
    ),
    "one tensor twice": (
        each(lambda x: x.add_(1), lambda x: x * 3),
        lambda: (twice_inside(graded=False),),
    ),
    "one tensor twice with history": (
        each(lambda x: x.mul_(2), lambda x: x * 3),
        lambda: (twice_inside(graded=True),),
    ),
    "t_": (each(lambda x: x.t_(), lambda x: x * 2), lambda: (middle(),)),
    "t_ without grad": (each(lambda x: x.t_(), lambda x: x * 2), lambda: (silent(),)),
    "transpose_": (
        each(lambda x: x.transpose_(1, 0), lambda x: x * 2),
        lambda: (middle(0, 3, 2, 4),),
    ),
    "unsqueeze_, then data": (
        each(lambda x: x.unsqueeze_(0), lambda x: x.mul_(2), torch.sin),
        lambda: (middle(),),
    ),
    "data, then t_": (
        each(lambda x: x.mul_(2), lambda x: x.t_(), torch.sin),
        lambda: (middle(),),
    ),
    "there and back": (
        each(lambda x: x.unsqueeze_(0), lambda x: x.squeeze_(0), lambda x: x * 1),
        lambda: (middle(),),
    ),
    "t_ of one with metadata": (
        each(lambda x: x.t_(), lambda x: x * 2),
        lambda: (Factor(torch.ones(3, 4), 2).requires_grad_() * 1,),
    ),
    "detach_": (each(lambda x: x.detach_(), lambda x: x * 1), lambda: (middle(),)),
    "detach_ after a write": (
        each(lambda x: x.mul_(2), lambda x: x.detach_(), lambda x: x * 1),
        lambda: (middle(),),
    ),
    "requires_grad_": (each(lambda x: x.requires_grad_(), torch.sin), lambda: (silent(),)),
    "requires_grad_(False)": (stopped, lambda: (leaf(),)),
}


def check(program, backend):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=backend)
    wanted = everything(function, make)
    for _ in range(3):
        same(everything(compiled, make), wanted)
    assert len(compiled.entries) <= 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program):
    check(program, COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_on_the_default_backend(program):
    check(program, "inductor")


def test_calls_in_turns():
    """With and without history, and in no_grad: a program for each, and none for another."""

    def function(x, y):
        x.mul_(y)
        return x.sin()

    compiled = funcaot.compile(function, backend=COMPILER)
    makes = [
        lambda: (middle(), silent(1)),
        lambda: (silent(), silent(1)),
        lambda: (silent(), made(1, 3, 4)),
    ]
    for _ in range(2):
        for make in makes:
            same(everything(compiled, make), everything(function, make))
            found, wanted = make(), make()
            with torch.no_grad():
                same([compiled(*found), *found], [function(*wanted), *wanted])
    assert len(compiled.entries) == 6


def test_memory_that_is_shared_at_the_second_call_only():
    def function(x, y):
        x.mul_(2)
        return y + 1

    compiled = funcaot.compile(function, backend=COMPILER)
    same(compiled(silent(), torch.ones(3, 4)), torch.full((3, 4), 2.0))
    x = silent()
    before = x.a.clone()
    for y in (x.a[:], TwoTensor(x.a[:], x.b.clone())):
        with pytest.raises(UnsupportedError, match="share memory"):
            compiled(x, y)
        same(x.a, before)
    other = silent()
    same(compiled(x, x.a), function(other, other.a))
    same(x, other)


def test_a_write_after_the_call_to_what_was_saved_is_eagers_error():
    def overwritten(function):
        x = middle()
        result = function(x)
        with torch.no_grad():
            x.mul_(2)
        return torch.autograd.grad(result.sum(), result)[0], torch.autograd.grad(x.sum(), x)

    def function(x):
        x.exp_()
        return x * 1

    def saved(each):
        y = two(0, 3)
        x = y * 1
        result = each(x)
        with torch.no_grad():
            x.mul_(2)
        return torch.autograd.grad(result.sum(), y)

    compiled = funcaot.compile(function, backend=COMPILER)
    same(overwritten(compiled), overwritten(function))
    for each in (function, compiled):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            saved(each)


def test_hooks_and_accumulated_gradients():
    def gradients(function):
        y, seen = two(0, 3), []
        for _ in range(2):
            x = y * 1
            function(x)
            x.register_hook(lambda gradient: (seen.append(gradient), gradient * 2)[1])
            x.sum().backward()
        return [y.grad, *seen]

    def function(x):
        x.mul_(3)

    same(gradients(funcaot.compile(function, backend=COMPILER)), gradients(function))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_a_function_that_writes_in_place():
    def function(x):
        Doubled.apply(x)
        return x.sin()

    compiled = funcaot.compile(function, backend=COMPILER)
    for _ in range(2):
        same(everything(compiled, lambda: (middle(),)), everything(function, lambda: (middle(),)))
