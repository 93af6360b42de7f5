"""Code that catches errors which only a capture raises: it is refused, or runs on real values."""

import contextlib
import os
import random
import threading
import time

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.lowering.test_opaque_parts import ByNumpy


def by_numpy(x):
    return torch.from_numpy(x.detach().numpy()) * 2


def by_the_clock(x):
    return x * (2 + 0 * time.time())


def by_chance(x):
    return x * (2 + 0 * random.random())


def with_a_seed(x):
    torch.manual_seed(0)
    return x * 2


def by_place(x):
    return x * 2 if x.data_ptr() else x


def in_a_thread(x):
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    return x * 2


def in_the_environment(x):
    os.environ["FUNCAOT_TEST_OF_ERRORS"] = "1"
    return x * 2


def by_dlpack(x):
    return torch.from_dlpack(x.detach()) * 2


REFUSED = [
    by_numpy,
    by_the_clock,
    by_chance,
    with_a_seed,
    by_place,
    in_a_thread,
    in_the_environment,
    by_dlpack,
]


def by_size(x):
    for _ in range(x.shape[0]):
        x = x * 1.1
    return x


def chosen(x):
    return x[x > 0.6] * 2


def by_an_item(x):
    return x * (2 + 0 * x.sum().item())


TAKEN = [ByNumpy.apply, by_size, chosen, by_an_item]


def caught(function):
    def run(x):
        try:
            return function(x)
        except Exception:  # noqa: BLE001 (as users do)
            return x * 100

    return run


def suppressed(function):
    def run(x):
        y = x * 100
        with contextlib.suppress(Exception):
            y = function(x)
        return y

    return run


def told_otherwise(function):
    def run(x):
        try:
            return function(x)
        except Exception as error:
            raise ValueError("no") from error

    return run


def left_in_the_end(function):
    def run(x):
        y = x * 100
        try:
            y = function(x)
        finally:
            return y  # noqa: B012 (it swallows the error)

    return run


WAYS = [caught, suppressed, told_otherwise, left_in_the_end]
FEW = [(by_numpy, caught), (by_the_clock, told_otherwise)]
ALL = [(function, way) for function in REFUSED for way in WAYS]
MORE = [pytest.param(*pair, marks=pytest.mark.long) for pair in ALL if pair not in FEW]


@pytest.mark.filterwarnings("ignore::funcaot.errors.CaptureWarning")
@pytest.mark.parametrize(("function", "way"), [*FEW, *MORE])
def test_what_is_refused_is_refused_though_it_is_caught(function, way):
    run = way(function)
    compiled = funcaot.compile(run, backend="eager")
    for size in (3, 4):
        with pytest.raises(UnsupportedError):
            compiled(torch.ones(size))
    fallback = funcaot.compile(run, backend="eager", fullgraph=False)
    for size in (3, 3, 4):
        x = torch.ones(size)
        assert fallback(x).tolist() == run(x).tolist()


@pytest.mark.parametrize("way", [caught, pytest.param(suppressed, marks=pytest.mark.long)])
@pytest.mark.parametrize("function", TAKEN)
def test_what_is_captured_is_captured(function, way):
    run = way(function)
    compiled = funcaot.compile(run, backend="eager")
    for size in (3, 3, 4, 5):
        x = torch.linspace(0.2, 1.0, size)
        torch.testing.assert_close(compiled(x), run(x))


class Cautious(torch.autograd.Function):
    """Its rules go on without what a capture hasn't."""

    @staticmethod
    def forward(ctx, x):
        return caught(by_numpy)(x)

    @staticmethod
    def backward(ctx, gradient):
        return caught(by_an_item)(gradient) + caught(by_numpy)(gradient)


def differentiated_inside(x):
    x = x.detach().requires_grad_()
    Cautious.apply(x).sum().backward()
    return x.grad


def test_rules_that_catch_such_errors_run_on_real_values():
    for function in (Cautious.apply, differentiated_inside):
        compiled = funcaot.compile(function, backend="eager")
        for size in (3, 3, 4):
            found = []
            for run in (function, compiled):
                x = torch.linspace(0.2, 1.0, size, requires_grad=True)
                y = run(x)
                gradient = torch.autograd.grad(y.sum(), x) if y.requires_grad else ()
                found.append([y.detach(), *gradient])
            torch.testing.assert_close(*found)


def test_a_hook_that_catches_such_an_error_is_refused():
    def function(x):
        y = x * 2
        y.register_hook(caught(by_numpy))
        return y

    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(UnsupportedError, match="A hook or a Function"):
        compiled(x).sum().backward()


def test_errors_of_eager_are_caught_as_in_eager():
    def function(x, table):
        with contextlib.suppress(RuntimeError):
            return x.view(7, -1)
        try:
            x = x @ torch.ones(7)
        except RuntimeError:
            x = x * 2
        try:
            x = x * table["a"]
        except KeyError:
            x = x * 3
        with contextlib.suppress(AttributeError):
            x = x + x.nothing_of_this_name
        return x

    compiled = funcaot.compile(function, backend="eager")
    for size in (3, 3, 4):
        x = torch.rand(size)
        torch.testing.assert_close(compiled(x, {}), function(x, {}))


@pytest.mark.filterwarnings("error")
def test_an_error_with_a_tensor_in_it_isnt_written_as_text():
    def kept(x):
        table = {}
        try:
            found = table[x]
        except KeyError:
            found = table[x] = x * 2
        return found + table[x]

    called = funcaot.compile(kept, backend="eager")
    for _ in range(2):
        assert torch.equal(called(torch.ones(2)), torch.full((2,), 4.0))
