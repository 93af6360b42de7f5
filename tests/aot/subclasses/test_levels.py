"""Compiled functions that meet wrappers inside of transforms, and under modes of the user.

Straight over a compiled function a transform is compiled with it. Elsewhere such a call is one of
the function itself, so it is what it is in eager; a warning says that it isn't compiled.
"""

import contextlib
import warnings

import pytest
import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import funcaot
from funcaot.errors import CaptureWarning, UnsupportedError
from tests.aot.subclasses.kinds import Factor, Int8, TwoTensor, made, same, two

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
KINDS = {
    "two": lambda seed: two(seed, 2, 3, grad=False),
    "nested": lambda seed: TwoTensor(two(seed, 2, 3, grad=False), two(seed + 1, 2, 3, grad=False)),
    "metadata": lambda seed: Factor(made(seed, 2, 3, grad=False), 3),
    "quantized": lambda seed: Int8.of(made(seed, 2, 3, grad=False)),
}


def dual(f, make):
    with forward_ad.dual_level():
        result = f(forward_ad.make_dual(make(0), make(1)))
        return tuple(forward_ad.unpack_dual(result))


def hessian_vector(f, make):
    def gradient(x):
        return torch.func.grad(lambda y: f(y).sum())(x)

    return torch.func.jvp(gradient, (make(0),), (make(1),))


def pulled_back(f, make):
    value, pull = torch.func.vjp(f, make(0))
    return value, pull(value)


def grad_then_backward(f, make):
    x = make(0).requires_grad_()
    value = torch.func.grad(lambda y: f(y).sum())(x)
    return value, torch.autograd.grad(value.sum(), x)


LEVELS = {
    "grad": lambda f, make: torch.func.grad(lambda x: f(x).sum())(make(0)),
    "grad of two": lambda f, make: torch.func.grad(
        lambda x: torch.func.grad(lambda y: f(y).sum())(x).sum()
    )(make(0)),
    "jvp": lambda f, make: torch.func.jvp(f, (make(0),), (make(1),)),
    "vjp": pulled_back,
    "vmap": lambda f, make: torch.vmap(lambda x: f(x) * 2)(make(0)),
    "vmap of grad": lambda f, make: torch.vmap(lambda x: torch.func.grad(lambda y: f(y).sum())(x))(
        make(0)
    ),
    "jvp of grad": hessian_vector,
    "dual numbers": dual,
    "jvp of a plain tensor": lambda f, make: torch.func.jvp(
        f, (made(7, 2, 3, grad=False),), (make(1),)
    ),
    "grad, then backward": grad_then_backward,
}


def outcome(call, *given):
    """What comes out, or the kind of what is raised: not every class knows every transform."""
    try:
        return call(*given)
    except UnsupportedError:
        raise
    except Exception as error:  # noqa: BLE001  (whatever a class raises)
        return type(error).__name__


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", KINDS)
def test_as_in_eager(kind, level):
    function = lambda x: (x.sin() * 2).exp()  # noqa: E731
    compiled = funcaot.compile(function, backend="eager")
    wanted = outcome(LEVELS[level], function, KINDS[kind])
    for _ in range(2):
        found = outcome(LEVELS[level], compiled, KINDS[kind])
        same(found, wanted)
        x = KINDS[kind](0)
        same(compiled(x), function(x))
    assert len(compiled.entries) == 1  # That of the calls outside.


def test_a_warning_says_so_once():
    compiled = funcaot.compile(lambda x: x.sin(), backend="eager")
    x = two(0, 2, 3, grad=False)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", CaptureWarning)
        for _ in range(3):
            torch.vmap(lambda x: compiled(x) * 2)(x)
    (said,) = [str(each.message) for each in seen if each.category is CaptureWarning]
    assert "runs in eager" in said
    assert "compile the function that calls" in said


CLOSED_OVER = two(3, 3, grad=False)
HIDDEN = {
    "closed over": (
        lambda x: (x * CLOSED_OVER).sin(),
        lambda f, x: torch.vmap(lambda y: f(y) + 1)(x),
    ),
    "a result": (
        lambda x: TwoTensor(x * 1, x * 2),
        lambda f, x: torch.func.grad(lambda y: f(y).sin().sum())(x[0]),
    ),
}


@pytest.mark.parametrize("first", ["inside", "outside"])
@pytest.mark.parametrize("what", HIDDEN)
def test_what_the_arguments_do_not_show(what, first):
    function, level = HIDDEN[what]
    compiled = funcaot.compile(function, backend="eager")
    x = made(0, 2, 3, grad=False)
    for turn in range(3):
        if turn or first == "outside":
            same(compiled(x[0]), function(x[0]))
        same(outcome(level, compiled, x), outcome(level, function, x))
    # A result shows when the function was captured with what the level differentiates.
    assert len(compiled.entries) == (2 if what == "a result" else 1)


def test_writes_happen_once():
    compiled = funcaot.compile(lambda x: x.mul_(2).sin(), backend="eager")
    given, wanted = two(0, 2, 3, grad=False), two(0, 2, 3, grad=False)
    torch.vmap(lambda x: compiled(x) + 1)(given)
    torch.vmap(lambda x: x.mul_(2).sin() + 1)(wanted)
    same(given, wanted)


class Called(TorchFunctionMode):
    """Notes what is called, and calls the cosine for the sine."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return (torch.Tensor.cos if func is torch.Tensor.sin else func)(*args, **(kwargs or {}))


class Ops(TorchDispatchMode):
    """Notes the ops."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Flops(FlopCounterMode):
    def __init__(self):
        super().__init__(display=False)

    @property
    def seen(self):
        return self.get_total_flops()


WEIGHT = two(5, 3, 3, grad=False)


@pytest.mark.parametrize("mode", [Called, Ops, Flops])
@pytest.mark.parametrize("kind", ["plain", "two", "closed over"])
def test_modes_see_what_they_see_in_eager(mode, kind):
    def function(x):
        return ((x @ WEIGHT if kind == "closed over" else x @ x.t()).sin() * 2).sum()

    compiled = funcaot.compile(function, backend="eager")
    for _ in range(3):
        found = []
        for each in (function, compiled):
            x = (two if kind == "two" else made)(0, 2, 3)
            with mode() as entered:
                result = each(x)
                result.backward()
            # A graph of plain tensors runs the ops that were recorded, detached from autograd.
            seen = None if mode is Ops and kind == "plain" else entered.seen
            found.append((result.detach(), x.grad, seen))
        same(*found)
        assert found[0][2] or kind == "plain"
        same(compiled(x), function(x))


@pytest.mark.parametrize("around", ["meta", "cpu"])
def test_a_default_device_is_no_such_mode(around):
    function = lambda x: x * 2 + torch.ones(3)  # noqa: E731
    compiled = funcaot.compile(function, backend="eager")
    for _ in range(2):
        with torch.device(around):
            x = torch.ones(3)
            found, wanted = compiled(x), function(x)
        assert found.device == wanted.device == torch.device(around)
        with contextlib.nullcontext():
            same(compiled(torch.ones(3)), function(torch.ones(3)))
    assert len(compiled.entries) >= 1


@pytest.mark.parametrize("grad", [False, True])
def test_products_on_the_meta_device(grad):
    """Inductor lost the product that the sine reads."""
    compiled = funcaot.compile(lambda x, w: (x @ w).sin())
    with torch.device("meta"):
        x, w = torch.empty(3, 4, requires_grad=grad), torch.empty(4, 5)
        result = compiled(x, w)
    assert result.is_meta
    assert result.shape == (3, 5)
    assert result.requires_grad == grad
    if grad:
        result.sum().backward()
        assert x.grad.is_meta
