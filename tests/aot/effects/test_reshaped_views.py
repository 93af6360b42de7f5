"""Shapes changed in place among views and writes, generated: gradients are eager's."""

import itertools

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError

RESHAPES = {
    "unsqueeze first": lambda y: y.unsqueeze_(0),
    "unsqueeze last": lambda y: y.unsqueeze_(-1),
    "t": lambda y: y.t_(),
    "transpose": lambda y: y.transpose_(0, 1),
    "swapdims": lambda y: y.swapdims_(0, 1),
    "swapaxes": lambda y: y.swapaxes_(1, 0),
    "squeeze": lambda y: y.unsqueeze_(1).squeeze_(),
    "several": lambda y: y.t_().unsqueeze_(0).transpose_(0, 2),
    "as_strided": lambda y: y.as_strided_((4, 3), (1, 4)),
    "as_strided flat": lambda y: y.as_strided_((12,), (1,)),
    "resize": lambda y: y.resize_(12),
}
VIEWS = {
    "select": lambda y: y[0],
    "slice": lambda y: y[1:],
    "t": lambda y: y.t(),
    "flat": lambda y: y.view(-1),
    "column": lambda y: y[:, 1],
    "diagonal": lambda y: y.diagonal(),
    "part": lambda y: y[1][1:3],
    "step": lambda y: y[:, ::2],
    "unbind": lambda y: y.unbind(0)[1],
    "whole": lambda y: y[...],
    "detached": lambda y: y.detach()[0],
    "as_strided": lambda y: y.as_strided((2, 2), (4, 1)),
}
WRITES = {
    "by a number": lambda t, w: t.mul_(2),
    "by a tensor": lambda t, w: t.mul_(w),
    "item": lambda t, w: t.__setitem__(0, w),
    "zero": lambda t, w: t.zero_(),
    "own": lambda t, w: t.sin_(),
}


def by_view(y, w, reshape, view, write):
    part = view(y)
    reshape(y)
    write(part, w)
    return (y,)


def by_base(y, w, reshape, view, write):
    part = view(y)
    reshape(y)
    write(y, w)
    return part, part * 2


def before(y, w, reshape, view, write):
    part = view(y)
    write(part, w)
    reshape(y)
    return y * 3, part


def read(y, w, reshape, view, write):
    part = view(y)
    reshape(y)
    return part * part, y


def between(y, w, reshape, view, write):
    part = view(y)
    reshape(y)
    square = y * y
    write(part, w)
    return square, y, part


def afterwards(y, w, reshape, view, write):
    reshape(y)
    part = y[0]
    write(part, w)
    return y, part


def both(y, w, reshape, view, write):
    part = view(y)
    write(part, w)
    reshape(y)
    write(part, w)
    write(y, w)
    return (y.sum() * part,)


def of_a_view(y, w, reshape, view, write):
    whole = y[:]
    reshape(whole)
    write(whole, w)
    return y * 2, view(y), whole


def other_view(y, w, reshape, view, write):
    whole, part = y[:], view(y)
    reshape(whole)
    write(part, w)
    return y, whole


def silently(y, w, reshape, view, write):
    part = view(y)
    reshape(y)
    with torch.no_grad():
        write(part, w)
    return (y * y,)


PROGRAMS = [
    by_view,
    by_base,
    before,
    read,
    between,
    afterwards,
    both,
    of_a_view,
    other_view,
    silently,
]


def outcome(function):
    """What comes out of a call and of its gradients, or how either failed."""
    x = torch.linspace(-1.3, 2.1, 12, dtype=torch.float64).view(3, 4).requires_grad_()
    w = torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
    try:
        results = function(x, w)
        looks = [(r.shape, r.stride(), r.storage_offset(), r.requires_grad) for r in results]
        values = [result.detach().clone() for result in results]
        graded = [result for result in results if result.requires_grad]
        weights = [torch.arange(1.0, r.numel() + 1).double().view(r.shape) for r in graded]
        found = torch.autograd.grad(graded, (x, w), weights, allow_unused=True)
    except UnsupportedError:
        raise
    except RuntimeError as error:
        return error
    zeros = [torch.zeros_like(leaf) for leaf in (x, w)]
    found = [zero if grad is None else grad for zero, grad in zip(zeros, found, strict=True)]
    return looks, values, found


def programs():
    parts = [RESHAPES.items(), VIEWS.items(), WRITES.items(), PROGRAMS]
    for (how, reshape), (which, view), (what, write), program in itertools.product(*parts):

        def function(x, w, program=program, parts=(reshape, view, write)):
            return program(x * 1, w, *parts)

        yield pytest.param(function, id=f"{program.__name__}-{how}-{which}-{what}")


def check(function):
    wanted = outcome(function)
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        try:
            found = outcome(compiled)
        except UnsupportedError as error:
            return str(error)
        if isinstance(wanted, RuntimeError):
            assert isinstance(found, RuntimeError)
            return None
        assert not isinstance(found, RuntimeError), found
        assert found[0] == wanted[0]
        torch.testing.assert_close(found[1:], wanted[1:])
    return None


ALL = list(programs())


@pytest.mark.parametrize("function", ALL[::61])
def test_gradients_are_those_of_eager_or_it_is_refused(function):
    check(function)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("function", [case for n, case in enumerate(ALL) if n % 61])
def test_all_gradients_are_those_of_eager_or_it_is_refused(function):
    check(function)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("reshape", ["unsqueeze first", "transpose", "squeeze", "several"])
def test_changes_by_dimensions_are_supported(program, reshape):
    def function(x, w):
        return program(x * 1, w, RESHAPES[reshape], VIEWS["column"], WRITES["by a tensor"])

    assert check(function) is None


def test_a_view_that_can_not_be_made_again_is_refused_by_name():
    def function(x):
        y = x * 1
        part = y[0]
        y.as_strided_((4, 3), (1, 4))
        part.mul_(2)
        return y

    with pytest.raises(UnsupportedError, match="uses an earlier view of it"):
        funcaot.compile(function, backend="eager")(torch.ones(3, 4, requires_grad=True))


def test_an_op_in_place_returns_the_view_itself():
    def function(x):
        y = x * 1
        part = y[0]
        y.unsqueeze_(0)
        same = part.mul_(2) is part
        return y, same

    x = torch.ones(3, 2, requires_grad=True)
    assert funcaot.compile(function, backend="eager")(x)[1] is True


def test_gradients_on_the_default_backend():
    def function(x):
        y = x * 1
        part = y[0]
        y.unsqueeze_(0)
        part.mul_(2)
        return y

    for scale in (1.0, 2.0):
        x = torch.full((3, 2), scale, requires_grad=True)
        (wanted,) = torch.autograd.grad((function(x) ** 2).sum(), x)
        (found,) = torch.autograd.grad((funcaot.compile(function)(x) ** 2).sum(), x)
        torch.testing.assert_close(found, wanted)
