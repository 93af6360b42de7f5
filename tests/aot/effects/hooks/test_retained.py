"""``retain_grad()`` and ``backward()`` inside: every ``.grad`` is eager's, or it is refused."""

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


def returned(x):
    y = x * 2
    y.retain_grad()
    return y


def beside_another(x):
    y = x * 2
    y.retain_grad()
    return y, (x * 3).sum()


def written_and_returned(x):
    y = x * 2
    y.retain_grad()
    y.mul_(3)
    return y


def of_an_input(x):
    x.retain_grad()
    return (x * 2).sum()


def not_returned(x):
    y = x * 2
    y.retain_grad()
    return (y * 3).sum()


def told(x):
    y = x * 2
    y.retain_grad()
    return y.retains_grad, y


def read_inside(x):
    y = x.detach().requires_grad_() * 2
    y.retain_grad()
    y.sin().sum().backward()
    return y.grad + x


def hooked(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2)
    return y, y.sum()


def used_and_returned(x):
    y = x * 2
    y.retain_grad()
    return y, y.sin().sum()


def of_a_written_input(x):
    x.mul_(2)
    x.retain_grad()
    return (x * 2).sum()


def before_a_write(x):
    x.retain_grad()
    x.mul_(2)
    return (x * 2).sum()


def backward_inside(x):
    x.sin().sum().backward()
    return x * 2


SUPPORTED = [
    returned,
    beside_another,
    written_and_returned,
    of_an_input,
    not_returned,
    told,
    read_inside,
    hooked,
    used_and_returned,
]
REFUSED = [of_a_written_input, before_a_write]


def gradients(function, *, leaf):
    """Everything's ``.grad`` after a backward of what comes out."""
    weight = torch.linspace(0.2, 1.0, 3, dtype=torch.float64).requires_grad_()
    x = weight if leaf else weight * 1
    results = function(x)
    results = list(results) if isinstance(results, tuple) else [results]
    tensors = [value for value in results if isinstance(value, torch.Tensor)]
    sum((value**2).sum() for value in tensors if value.requires_grad).backward()
    seen = [value for value in (*tensors, x, weight) if value.is_leaf or value.retains_grad]
    return (
        [value for value in results if not isinstance(value, torch.Tensor)],
        [value.retains_grad for value in (*tensors, x, weight)],
        [value.grad for value in seen],
    )


@pytest.mark.parametrize("function", SUPPORTED)
@pytest.mark.parametrize("leaf", [False, True], ids=["non-leaf", "leaf"])
def test_gradients_are_kept(function, leaf):
    compiled = funcaot.compile(function, backend="eager")
    wanted = gradients(function, leaf=leaf)
    for _ in range(3):
        found = gradients(compiled, leaf=leaf)
        assert found[:2] == wanted[:2]
        torch.testing.assert_close(found[2], wanted[2])


@pytest.mark.parametrize("function", REFUSED)
def test_what_is_not_known_is_refused(function):
    with pytest.raises(UnsupportedError, match="calls retain_grad"):
        gradients(funcaot.compile(function, backend="eager"), leaf=False)


def test_a_backward_beyond_an_argument_is_refused():
    compiled = funcaot.compile(backward_inside, backend="eager")
    with pytest.raises(UnsupportedError, match="isn't a leaf"):
        gradients(compiled, leaf=False)
    wanted, found = gradients(backward_inside, leaf=True), gradients(compiled, leaf=True)
    torch.testing.assert_close(found[2], wanted[2])


def test_on_the_default_backend():
    compiled = funcaot.compile(beside_another)
    for _ in range(3):
        wanted, found = gradients(beside_another, leaf=False), gradients(compiled, leaf=False)
        torch.testing.assert_close(found, wanted)
