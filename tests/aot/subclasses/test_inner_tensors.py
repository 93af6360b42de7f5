"""Wrappers around tensors that require grad themselves, whose gradients are those of eager."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.subclasses.kinds import Factor, TwoTensor, everything, made, same, two
from tests.hostile import COMPILER


def around(seed=0, *, leaves=True):
    """A wrapper that requires grad because what is inside does."""
    inner = [made(seed + each, 3, 4) for each in (0, 50)]
    return TwoTensor(*(inner if leaves else [part * 1 for part in inner]))


def quiet(*, both=True):
    """A wrapper that doesn't require grad around tensors that do."""
    x = two(7, 3, 4, grad=False)
    x.a.requires_grad_()
    x.b.requires_grad_(both)
    return x


def nested():
    return TwoTensor(around(0), around(5))


def holding_one():
    x = around()
    return x, TwoTensor(x.a, made(7, 3, 4))


CLOSED_OVER = around(9)


def in_no_grad(x):
    with torch.no_grad():
        y = x.a * 2
    return x * y


def written_in_no_grad(x):
    with torch.no_grad():
        x.mul_(2)
    return x.sin()


def part_written_in_no_grad(x):
    with torch.no_grad():
        x.a.mul_(2)
    return x.sin() * x.a


def used_and_written(x):
    y = x.a.sin()
    x.mul_(3)
    return y * x


def backward_inside(x):
    (x * x).sum().backward()
    return x * 2 + x.grad


PROGRAMS = {
    "with a plain tensor": (lambda x, y: x * 6 + y / 2, lambda: (around(), made(1, 3, 4))),
    "not leaves inside": (
        lambda x, y: (x * 6 + y / 2).sin(),
        lambda: (around(leaves=False), made(1, 3, 4)),
    ),
    "only inside": (lambda x, y: x * y, lambda: (quiet(), made(1, 3, 4))),
    "only one inside": (lambda x, y: x * y, lambda: (quiet(both=False), made(1, 3, 4))),
    "one inside and the wrapper": (
        lambda x: x.sin() * x.a,
        lambda: (quiet(both=False).requires_grad_(),),
    ),
    "one inside, not a leaf": (
        lambda x: x.sin() * x.a,
        lambda: (quiet(both=False).requires_grad_() * 1,),
    ),
    "nested": (lambda x, y: (x * y).sin(), lambda: (nested(), made(1, 3, 4))),
    "a view": (lambda x, y: (y.view(4, 3), x * y), lambda: (made(1, 3, 4), around())),
    "itself": (lambda x: (x, x * 2), lambda: (around(),)),
    "closed over": (lambda x: CLOSED_OVER * x, lambda: (made(1, 3, 4),)),
    "closed over, and its part": (lambda x: CLOSED_OVER.a * x, lambda: (made(1, 3, 4),)),
    "with metadata": (lambda x: x.sin(), lambda: (Factor(made(0, 3, 4), 2).requires_grad_(),)),
    "what is asked of a part": (
        lambda x: x * (2 if x.a.requires_grad and x.a.is_leaf else 3),
        lambda: (around(),),
    ),
    "what is asked of a part that isn't a leaf": (
        lambda x: x * (2 if x.a.requires_grad and x.a.is_leaf else 3),
        lambda: (around(leaves=False),),
    ),
    "a part": (lambda x: x.a * 2, lambda: (around(),)),
    "a part and the whole": (lambda x: x * x.a.sin(), lambda: (around(),)),
    "parts that aren't leaves": (lambda x: x * x.a.sin() * x.b, lambda: (around(leaves=False),)),
    "parts of parts": (lambda x: x.sin() * x.a * x.b.b, lambda: (nested(),)),
    "a part of what requires no grad": (lambda x: x.a * 3, lambda: (quiet(),)),
    "a part that is an argument, too": (
        lambda x, y: x.sin() * x.a * y,
        lambda: ((x := around()), x.a),
    ),
    "a part of two": (lambda x, y: x.sin() * x.a * y.a * y, holding_one),
    "a part detached": (lambda x: x * x.a.detach(), lambda: (around(),)),
    "a part in no_grad": (in_no_grad, lambda: (around(),)),
    "wrapped once more": (lambda x: TwoTensor(x.a, x.b) * 2, lambda: (around(),)),
    "a gradient inside": (
        lambda x: x * torch.autograd.grad(x.a.pow(2).sum(), x.a)[0],
        lambda: (around(),),
    ),
    "backward inside": (backward_inside, lambda: (around(),)),
    "written": (lambda x: (x.mul_(2), x.sin())[1], lambda: (around() * 1,)),
    "written in no_grad": (written_in_no_grad, lambda: (around(),)),
    "not leaves inside, written in no_grad": (
        written_in_no_grad,
        lambda: (around(leaves=False),),
    ),
    "a part written in no_grad": (part_written_in_no_grad, lambda: (around(),)),
    "a part used, the whole written": (used_and_written, lambda: (around() * 1,)),
    "the whole written by a part": (
        lambda x, y: (x.mul_(y.a), x * 2)[1],
        lambda: (two(0, 3, 4) * 1, around(1)),
    ),
}


def check(program, backend):
    function, make = PROGRAMS[program]
    compiled = funcaot.compile(function, backend=backend)
    wanted = everything(function, make)
    for _ in range(3):
        same(everything(compiled, make), wanted)
    assert len(compiled.entries) == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_in_eager(program):
    check(program, COMPILER)


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_on_the_default_backend(program):
    check(program, "inductor")


def test_gradients_of_a_part_are_accumulated():
    def gradients(function):
        x = around()
        for _ in range(2):
            function(x).sum().backward()
        return [x.grad, x.a.grad, x.b.grad]

    def function(x):
        return x * x.a.sin()

    same(gradients(funcaot.compile(function, backend=COMPILER)), gradients(function))


def test_what_requires_grad_inside_is_part_of_the_signature():
    def function(x):
        return x.a * 2

    compiled = funcaot.compile(function, backend=COMPILER)
    makes = [lambda: (quiet(),), lambda: (two(7, 3, 4, grad=False),), lambda: (around(),)]
    for _ in range(2):
        for make in makes:
            same(everything(compiled, make), everything(function, make))
    assert len(compiled.entries) == 3


def with_history(x, y):
    x.a.mul_(y)
    return x * 2


REFUSED = {
    "backward": (lambda x: (x.a.pow(2).sum().backward(), x * 1)[1], lambda: (around(),)),
    ".grad": (lambda x: x * (2 if x.a.grad is None else 3), lambda: (around(),)),
    "a hook": (lambda x: (x.a.register_hook(print), x * 2)[1], lambda: (around(),)),
    "requires_grad_": (
        lambda x: (x.a.requires_grad_(), x * 2)[1],
        lambda: (two(0, 3, grad=False),),
    ),
    "requires_grad": (
        lambda x: (setattr(x.a, "requires_grad", True), x * 2)[1],
        lambda: (two(0, 3, grad=False),),
    ),
    "a write that autograd records": (
        with_history,
        lambda: (two(0, 3, grad=False), made(1, 3)),
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refused(what):
    function, make = REFUSED[what]
    compiled = funcaot.compile(function, backend=COMPILER)
    with pytest.raises(UnsupportedError, match=r"(?s)takes out of a tensor subclass.*Instead"):
        compiled(*make())
