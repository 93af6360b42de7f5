"""Writes through ``detach`` and ``.data`` where tangents are carried, against eager."""

import pytest
import torch
from torch.func import grad, jvp, vmap
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError


def without_grad(write):
    with torch.no_grad():
        write()


def kept(x, w):
    x.detach().mul_(3)
    return x * w


def of_a_row(x, w):
    x[0].detach().mul_(3)
    x.detach()[1].add_(w)
    return x.sin()


def copied(x, w):
    other = x.detach()
    other.copy_(w.expand_as(x))
    return x * w, other * 2


def before_and_after(x, w):
    x.mul_(w)
    x.detach().add_(1)
    x.sin_()
    return x * w


def of_an_intermediate(x, w):
    y = x * w
    y.detach().sin_()
    return y * x


def by_data(x, w):
    x.data.mul_(3)
    return x * w


def read_only(x, w):
    seen = x.detach()
    without_grad(lambda: w.mul_(2))
    return x * w + seen


EXACT = [kept, of_a_row, copied, before_and_after, of_an_intermediate, by_data, read_only]


def hidden_after(x, w):
    x.detach().mul_(3)
    without_grad(lambda: x.mul_(w))
    return x * 1


def hidden_before(x, w):
    without_grad(lambda: x.mul_(w))
    x.detach().mul_(3)
    return x * 1


def hidden_copy(x, w):
    other = x.detach()
    without_grad(lambda: other.copy_(w.expand_as(x)))
    return other * x


def read_before(x, w):
    y = x * w
    x.data.fill_(2)
    return y


REFUSED = [hidden_after, hidden_before, hidden_copy, read_before]


def operands(*batch):
    x = torch.linspace(0.5, 2, 18, dtype=torch.float64).view(3, 2, 3)
    w = torch.linspace(1.5, 2, 3, dtype=torch.float64)
    return (x, w) if batch else (x[0], w[0])


def calling(function):
    """The function on a tensor of the caller, and what it is afterwards."""

    def program(x, w):
        y, v = x * 1, w * 1
        return function(y, v), y, v

    return program


def pushed(function, x, w):
    return jvp(calling(function), (x, w), (x.cos(), w.sin()))


@pytest.mark.parametrize("function", EXACT)
def test_tangents_are_those_of_eager(function):
    x, w = operands()
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        assert_close(pushed(compiled, x, w), pushed(function, x, w))


@pytest.mark.parametrize("function", [f for f in EXACT if f not in (by_data,)])
def test_tangents_of_a_batch(function):
    x, w = operands("batch")
    compiled = funcaot.compile(function, backend="eager")
    expected = vmap(lambda x, w: pushed(function, x, w))(x, w)
    assert_close(vmap(lambda x, w: pushed(compiled, x, w))(x, w), expected)


@pytest.mark.parametrize("function", [kept, of_a_row, before_and_after])
def test_derivatives_of_tangents(function):
    x, w = operands()

    def total(called):
        return lambda x, w: sum(
            part.sum() for part in jvp(calling(called), (x, w), (x.cos(), w.sin()))[1]
        )

    compiled = funcaot.compile(function, backend="eager")
    assert_close(grad(total(compiled), (0, 1))(x, w), grad(total(function), (0, 1))(x, w))


@pytest.mark.parametrize("function", REFUSED)
def test_what_forward_mode_cannot_follow_is_refused(function):
    compiled = funcaot.compile(function, backend="eager")
    with pytest.raises(UnsupportedError, match=r"x\.detach\(\) or x\.data"):
        pushed(compiled, *operands())


def test_copies_keep_the_layout_of_their_target():
    def function(x, w):
        x.t().copy_(w.expand(3, 2))
        without_grad(lambda: x.view(-1).sin_())
        return x * 1

    x, w = operands()
    compiled = funcaot.compile(function, backend="eager")
    assert_close(pushed(compiled, x, w), pushed(function, x, w))


def test_dual_level():
    from torch.autograd import forward_ad

    x, w = operands()
    for function in (kept, by_data):
        found = []
        for called in (function, funcaot.compile(function, backend="eager")):
            with forward_ad.dual_level():
                y = forward_ad.make_dual(x.clone(), x.cos())
                out = called(y, w)
                found.append([*forward_ad.unpack_dual(out), *forward_ad.unpack_dual(y), y._version])
        assert_close(found[1], found[0])


def test_data_under_several_levels_is_refused():
    x, _ = operands()
    compiled = funcaot.compile(lambda x: x.data * x, backend="eager")
    assert_close(grad(lambda x: compiled(x).sum())(x), x)
    with pytest.raises(UnsupportedError, match="several levels"):
        jvp(grad(lambda x: compiled(x).sum()), (x,), (x,))


def test_reverse_over_hidden_writes_is_refused():
    def function(x):
        without_grad(lambda: x.mul_(2))
        return x.sin()

    x, _ = operands()
    compiled = funcaot.compile(function, backend="eager")
    push = lambda x: jvp(lambda x: compiled(x * 1), (x,), (x.cos(),))[1].sum()  # noqa: E731
    push(x)
    with pytest.raises(UnsupportedError, match="tangents are differentiated in reverse"):
        grad(push)(x)


def test_hidden_outputs_of_a_batch_move():
    def function(x, w):
        with torch.no_grad():
            y = x * w
        return y, x.detach() * 2, x > 1

    x, w = operands("batch")
    compiled = funcaot.compile(function, backend="eager")
    expected = jvp(vmap(lambda x, w: function(x, w)[:2]), (x, w), (x.cos(), w.sin()))
    actual = jvp(vmap(lambda x, w: compiled(x, w)[:2]), (x, w), (x.cos(), w.sin()))
    assert_close(actual, expected)


def test_the_plan_says_so():
    compiled = funcaot.compile(kept, backend="eager")
    pushed(compiled, *operands())
    assert "by detach" in str(compiled.entries[0].effects)


@pytest.mark.parametrize("level", ["jvp", "grad", "vmap of grad"])
def test_a_view_made_in_no_grad_is_returned(level):
    """In eager it is a leaf that requires grad; no level lets one ask for that."""

    def function(x):
        with torch.no_grad():
            part = x[1]
        return part, x.sin()

    def run(called):
        def total(x):
            return sum(value.cos().sum() for value in called(x * 1.0))

        x = torch.linspace(-1, 1, 4, dtype=torch.float64)
        if level == "jvp":
            return torch.func.jvp(lambda x: called(x * 1.0), (x,), (x.cos(),))
        if level == "grad":
            return torch.func.grad(total)(x)
        return torch.func.vmap(torch.func.grad(total))(torch.stack([x, 2 * x]))

    assert_close(run(funcaot.compile(function, backend="eager")), run(function))
