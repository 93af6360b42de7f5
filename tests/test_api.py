"""Whatever is called can be compiled, and looks like what it was."""

import functools
import inspect

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import FuncaotError, UnsupportedError

compiled = functools.partial(funcaot.compile, backend="eager")
X = torch.tensor([1.0, 2.0, 3.0])


class Spring:
    def __init__(self, stiffness):
        self.stiffness = torch.tensor(stiffness, requires_grad=True)

    @compiled
    def energy(self, x, *, power=2):
        """Energy."""
        return (self.stiffness * x**power).sum()

    def force(self, x):
        return -self.stiffness * x

    def __call__(self, x):
        return self.stiffness + x

    @compiled
    @staticmethod
    def static_inside(x):
        return x * 3

    @staticmethod
    @compiled
    def static_outside(x):
        return x * 3

    @compiled
    @classmethod
    def class_inside(cls, x):
        return x * 4

    @classmethod
    @compiled
    def class_outside(cls, x):
        return x * 4

    @property
    @compiled
    def doubled(self):
        return self.stiffness * 2


def test_a_method_is_bound_to_its_object():
    soft, hard = Spring(1.0), Spring(10.0)
    assert_close(soft.energy(X), (X**2).sum())
    assert_close(hard.energy(x=X, power=3), 10 * (X**3).sum())
    assert_close(Spring.energy(hard, X), 10 * (X**2).sum())
    assert soft.energy.__name__ == "energy"
    assert soft.energy.__doc__ == "Energy."
    hard.energy(X).backward()
    assert_close(hard.stiffness.grad, (X**2).sum())
    assert_close(soft.doubled, torch.tensor(2.0))


def test_objects_that_look_the_same_share_what_was_compiled():
    before = len(Spring.energy.entries)
    for index in range(10):
        assert_close(Spring(float(index)).energy(X * 1), index * (X**2).sum())
    assert len(Spring.energy.entries) <= before + 1


@pytest.mark.parametrize("name", ["static_inside", "static_outside"])
def test_static_methods(name):
    assert_close(getattr(Spring, name)(X), X * 3)
    assert_close(getattr(Spring(1.0), name)(X), X * 3)


@pytest.mark.parametrize("name", ["class_inside", "class_outside"])
def test_class_methods(name):
    assert_close(getattr(Spring, name)(X), X * 4)
    assert_close(getattr(Spring(1.0), name)(X), X * 4)


def test_a_bound_method_keeps_and_follows_its_object():
    spring = Spring(2.0)
    force = compiled(spring.force)
    assert_close(force(X), -2 * X)
    spring.stiffness = torch.tensor(5.0)
    assert_close(force(X), -5 * X)
    assert_close(compiled(Spring(3.0).force)(X), -3 * X)


def test_callable_objects_partials_and_builtins():
    assert_close(compiled(Spring(2.0))(X), 2 + X)
    scale = torch.tensor(3.0)
    partial = functools.partial(lambda a, x, power: a * x**power, scale, power=2)
    assert_close(compiled(partial)(X), 3 * X**2)
    scale.fill_(4.0)
    assert_close(compiled(partial)(X), 4 * X**2)
    for function in (torch.sin, torch.Tensor.sin, torch.ops.aten.sin):
        assert_close(compiled(function)(X), X.sin())
    assert_close(compiled(compiled(torch.sin))(X), X.sin())


def many(a, b=2, *args, c=3, **others):
    """Doc."""
    return a * b + c + sum(args) + sum(others.values())


def test_it_looks_like_the_function():
    function = compiled(many)
    assert inspect.signature(function) == inspect.signature(many)
    assert inspect.unwrap(function) is many
    for name in ("__name__", "__qualname__", "__module__", "__doc__"):
        assert getattr(function, name) == getattr(many, name)


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((X,), {}),
        ((X, 3), {}),
        ((X, 3, 4, 5), {}),
        ((X,), {"c": X}),
        ((X,), {"b": X, "z": X, "y": 2}),
        ((), {"a": X}),
    ],
)
def test_every_kind_of_parameter(args, keywords):
    function = compiled(many)
    for _ in range(3):
        assert_close(function(*args, **keywords), many(*args, **keywords))


def test_a_wrong_call_raises_as_the_function_does():
    function = compiled(many)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        function()
    with pytest.raises(TypeError, match="multiple values for argument 'a'"):
        function(X, a=1)


def test_what_computes_nothing_when_it_is_called_is_refused():
    async def coroutine(x):
        return x

    def generator(x):
        yield x

    async def both(x):
        yield x

    for function in (coroutine, generator, both):
        with pytest.raises(UnsupportedError, match="compile the functions that it calls"):
            compiled(function)
    with pytest.raises(FuncaotError, match="the class Linear"):
        compiled(torch.nn.Linear)
