"""What gradients depend on: derivatives by results, by views of views and by new data."""

import gc
import weakref

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.calls.test_own_nodes import chain, parts, same_twice, used, written, written_after


def one(x, w):
    return ((x * w).exp(),)


def apart(x, w):
    return x.exp(), w.sin(), (x * w).sigmoid()


def each_other(x, w):
    return ((x - w).sin() * 2,)


def deep(x, w):
    y = x.exp() * w
    z = y.sin() * x
    u = z * y
    return y, z, u, (u * u).sum()


def views(x, w):
    h = (x * w).view(2, 2).t()
    return h[0], h, h.sin(), h[0][:1], h


def views_of_an_argument(x, w):
    h = x.view(2, 2)
    return h, h.t(), h[0], h[0].exp() * w[:2]


def pieces(x, w):
    first, second = (x * w).split(2)
    return second[:1], first, second, second.view(1, 2)


def views_of_written(x, w):
    h = x.view(2, 2)
    h.mul_(2)
    return h, h[0], x.sin() * w


def both_written(x, w):
    x.mul_(2)
    w.add_(x.sin())


def turned(x, w):
    x.mul_(2)
    x.unsqueeze_(0)
    w.add_(x.sin()[0])


def the_second_first(x, w):
    w.mul_(2)
    x.add_(w.sin())
    return x * w, w


def through_a_view(x, w):
    x.mul_(2)
    h = x.view(2, 2)
    w.add_(h[0].sum())
    return h, h[0], w


def through_a_result(x, w):
    y = x + w
    x.add_(y.sin())
    w.add_(x.sin())
    return y


FEW = [used, the_second_first]
MORE = [
    one,
    views,
    chain,
    parts,
    same_twice,
    written,
    written_after,
    apart,
    each_other,
    deep,
    views_of_an_argument,
    pieces,
    views_of_written,
    both_written,
    turned,
    through_a_view,
    through_a_result,
]


def tensors_of(function):
    """The leaves, the arguments and the results of a call."""
    start = torch.linspace(0.2, 1.1, 4, dtype=torch.float64).requires_grad_()
    w = torch.linspace(0.5, 0.8, 4, dtype=torch.float64).requires_grad_()
    given = start * 1, w * 1
    made = function(*given)
    results = () if made is None else made if isinstance(made, tuple) else (made,)
    return [start, w, *given, *results]


def by(loss, tensors, **how):
    if not isinstance(loss, torch.Tensor):  # There is nothing to differentiate.
        return [None] * len(tensors)
    return torch.autograd.grad(loss, tensors, allow_unused=True, **how)


def square(tensors):
    return sum((each**2).sum() for each in tensors if each is not None and each.requires_grad)


def gradients_by_all(tensors, of, first):
    return by(square([tensors[of]]), tensors)


def by_one_then_by_all(tensors, of, first):
    (found,) = by(square([tensors[of]]), [tensors[first]], create_graph=True)
    return [found, *by(square([found]), tensors)]


def by_all_then_by_one(tensors, of, first):
    found = by(square([tensors[of]]), tensors, create_graph=True)
    return by(square(found), [tensors[first]])


def of_both(tensors, of, first):
    (found,) = by(square([tensors[of]]), [tensors[first]], create_graph=True)
    given = tensors if found is None else [found, *tensors]
    return by(square(given), given)


def by_other_gradients(tensors, of, first):
    found = by(square([tensors[of]]), tensors, create_graph=True)
    return by(square(found), [each for each in found if each is not None])


def retained(tensors, of, first):
    (found,) = by(square([tensors[of]]), [tensors[first]], create_graph=True)
    for each in tensors:
        each.retain_grad()
    square([found]).backward()
    return [each.grad for each in tensors]


def hooked(tensors, of, first):
    (found,) = by(square([tensors[of]]), [tensors[first]], create_graph=True)
    for each in tensors:
        # None comes where only other results of one node are used, in eager too.
        each.register_hook(lambda gradient: None if gradient is None else gradient * 3)
    return by(square([found]), tensors[:2])


def three_times(tensors, of, first):
    (found,) = by((tensors[of] ** 3).sum(), [tensors[first]], create_graph=True)
    again = by(square([found]), tensors, create_graph=True)
    return by(square(again), tensors)


ASKS = [
    gradients_by_all,
    by_one_then_by_all,
    by_all_then_by_one,
    of_both,
    by_other_gradients,
    retained,
    hooked,
    three_times,
]


def answer(function, ask, of, first):
    """What somebody finds; the class of the error where it is one."""
    try:
        tensors = tensors_of(function)
        return ask(tensors, of % len(tensors), first % len(tensors))
    except RuntimeError as error:
        return type(error)


def compare(function, places, asks=ASKS):
    compiled = funcaot.compile(function, backend="eager")
    for of, first in places:
        for ask in (*asks, *asks):
            wanted = answer(function, ask, of, first)
            found = answer(compiled, ask, of, first)
            if isinstance(wanted, type):
                assert found is wanted, (ask.__name__, of, first)
            else:
                where = f"{ask.__name__} of {of} by {first}"
                torch.testing.assert_close(found, wanted, msg=where)


@pytest.mark.parametrize("function", FEW)
def test_second_derivatives_are_whole(function):
    compare(function, [(-1, 1)], [by_one_then_by_all, by_all_then_by_one, retained])


@pytest.mark.long
@pytest.mark.parametrize("function", [*FEW, *MORE])
def test_second_derivatives_of_each_by_each_are_whole(function):
    count = len(tensors_of(function))
    compare(function, [(of, first) for of in range(2, count) for first in range(count)])


@pytest.mark.slow
def test_compiled_second_derivatives():
    compiled = funcaot.compile(deep)
    for ask in ASKS:
        wanted = answer(deep, ask, -1, 0)
        torch.testing.assert_close(answer(compiled, ask, -1, 0), wanted, msg=ask.__name__)


def places(tensors):
    """How results lie in memory, whose views they are, and which are one object."""
    bases = [each._base for each in tensors]
    return [
        (
            (each.stride(), each.storage_offset(), each._version, each.grad_fn.name()),
            [base is other for other in (*tensors, *bases)],
            [each is other for other in tensors],
        )
        for each, base in zip(tensors, bases, strict=True)
    ]


@pytest.mark.parametrize("function", [views, views_of_an_argument, pieces])
def test_views_of_views_lie_where_they_lie_in_eager(function):
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        results = [tensors_of(run)[4:] for run in (function, compiled)]
        views_made = [[each for each in made if each._is_view()] for made in results]
        assert places(views_made[1]) == places(views_made[0])
        for each in views_made:
            each[-1].detach().mul_(2)
        torch.testing.assert_close(*[[each.detach() for each in made] for made in views_made])


def test_views_of_views_at_open_sizes():
    def function(x):
        h = (x * 2).t()
        first = h[0]
        return h, first, first.sin()

    compiled = funcaot.compile(function, backend="eager", dynamic=True)
    for size in (3, 4, 5):
        found = []
        for run in (function, compiled):
            h, first, last = run(torch.ones(size, 2, requires_grad=True))
            found.append(torch.autograd.grad(last.sum(), [h, first]))
        torch.testing.assert_close(*found)
    assert funcaot.report(compiled).cache_misses == 1


def test_a_result_that_is_gone():
    for keeps in (True, False):
        found = []
        for function in (one, funcaot.compile(one, backend="eager")):
            x = torch.linspace(0.2, 1.0, 3, dtype=torch.float64).requires_grad_()
            (y,) = function(x, 2.0)
            loss, alive = y.sum(), weakref.ref(y)
            y = y if keeps else None
            (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
            found.append(torch.autograd.grad((gradient**2).sum(), [x, *([y] if keeps else ())]))
            assert keeps or function is one or alive() is None
        torch.testing.assert_close(*found)


def double(x):
    y = x * 2
    return y, y.exp().sum()


@pytest.mark.parametrize("written_to", [False, True])
def test_a_hook_on_a_result_that_is_out_of_reach(written_to):
    for hook in (False, True):
        x = torch.ones(3, requires_grad=True)
        y, loss = funcaot.compile(double, backend="eager")(x)
        if hook:
            y.register_hook(lambda gradient: gradient)
        if written_to:
            y.mul_(3)
        else:
            del y
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        if hook:
            with pytest.raises(UnsupportedError, match="depends on a result with a hook"):
                gradient.sum().backward()
        else:
            gradient.sum().backward()
            torch.testing.assert_close(x.grad, 4 * torch.full((3,), 2.0).exp())


def test_nothing_is_kept_by_what_derivatives_are_told():
    compiled = funcaot.compile(deep, backend="eager")
    gc.disable()
    try:
        for _ in range(3):
            rest = tensors_of(compiled)[2:]
            found = by(square(rest), rest, create_graph=True)
            alive = [weakref.ref(each) for each in (*rest, *found)]
            del rest, found
            assert [each() for each in alive] == [None] * len(alive)
    finally:
        gc.enable()


class Marked(torch.Tensor):
    """A class of tensors that does nothing."""


def in_a_class(x, w):
    y = x.as_subclass(Marked) * 2
    w.add_(y.as_subclass(torch.Tensor).sin())
    return y


def test_new_data_that_depends_on_a_result_in_a_class():
    compiled = funcaot.compile(in_a_class, backend="eager")
    wanted, *found = [retained_by_new_data(run) for run in (in_a_class, compiled, compiled)]
    torch.testing.assert_close(found, [wanted] * 2)


def retained_by_new_data(function):
    start = torch.linspace(0.2, 1.0, 3).requires_grad_()
    x, w = start * 1, start * 2
    y = function(x, w)
    y.retain_grad()
    w.sum().backward()
    return [y.grad.as_subclass(torch.Tensor), start.grad]


def test_new_data_in_memory_that_arguments_share():
    def function(x, y, w):
        x.mul_(2)
        w.add_(y.sin())

    start = torch.ones(4, requires_grad=True)
    whole, w = start * 1, start[:2] * 2
    funcaot.compile(function, backend="eager")(whole[:2], whole[1:3], w)
    whole.retain_grad()
    with pytest.raises(UnsupportedError, match="by a result of function"):
        w.sum().backward()


class ReturnsWhatItKept(torch.autograd.Function):
    """The gradient of a loss, which takes no other gradient than one."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return (x * x).sum() / 2

    @staticmethod
    def backward(ctx, gradient):
        return ctx.saved_tensors[0]


def test_a_gradient_that_the_forward_kept():
    def function(x):
        return ReturnsWhatItKept.apply(x.exp())

    compiled, found = funcaot.compile(function, backend="eager"), []
    for run in (function, compiled, compiled):
        x = torch.linspace(0.2, 1.0, 3, dtype=torch.float64).requires_grad_()
        (gradient,) = torch.autograd.grad(run(x), x, create_graph=True)
        found.append(torch.autograd.grad(gradient.sum(), x))
    torch.testing.assert_close(found[1:], found[:1] * 2)
