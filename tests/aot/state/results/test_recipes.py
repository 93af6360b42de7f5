"""Closures, iterators, slices, views, weak references that a function returns: each call's own."""

import functools
import itertools
import types
import weakref
from collections import OrderedDict

import pytest
import torch
from torch.func import grad, jvp, vmap

import funcaot
from tests.hostile import COMPILER


def recursive(x):
    def inner(n, kept=x * 2):
        return kept if n == 0 else inner(n - 1)

    return lambda y: inner(2) + y


def counter(x):
    count, log = 0, []

    def step(y):
        nonlocal count
        count += 1
        log.append(y)
        return y * count + len(log) + x

    return step, lambda y: y * count


def decorated(x):
    def scaled(function):
        @functools.wraps(function)
        def wrapper(*args, scale=x):
            return function(*args) * scale

        wrapper.extra = x + 1
        return wrapper

    @scaled
    def add(y):
        """Add."""
        return y + x

    return add, add.extra, add.__doc__, add.__name__


def second(iterator):
    next(iterator)
    return iterator


MADE = {
    "closure": lambda x: lambda y: y * x,
    "nested": lambda x: (lambda k: lambda y: y * k)(x * 2),
    "recursive": recursive,
    "counter": counter,
    "decorated": decorated,
    "default": lambda x: lambda y, k=x + 1: y * k,
    "partial": lambda x: functools.partial(torch.add, x + 1, alpha=2),
    "slice": lambda x: slice(x.sum(), None),
    "iterator": lambda x: iter([x, x + 1]),
    "started": lambda x: second(iter((x, x + 1, x + 2))),
    "zip": lambda x: zip([x, x + 1], (1, 2), strict=True),
    "map": lambda x: map(torch.mul, [x], [x + 1]),
    "enumerate": lambda x: enumerate([x, x]),
    "reversed": lambda x: reversed([x, x + 1]),
    "filter": lambda x: filter(None, [1, 2]),
    "chain": lambda x: itertools.chain([x], [x + 1]),
    "cycle": lambda x: second(itertools.cycle([x, x + 1])),
    "islice": lambda x: itertools.islice([x, x + 1, x + 2], 1, 3),
    "product": lambda x: itertools.product([x], [x, 1]),
    "accumulate": lambda x: itertools.accumulate([x, x + 1]),
    "count": lambda x: itertools.count(2),
    "values": lambda x: {"a": x + 1}.values(),
    "items": lambda x: OrderedDict(a=x, b=2).items(),
    "proxy": lambda x: types.MappingProxyType({"a": x + 1}),
    "set": lambda x: {x + 1},
    "frozenset": lambda x: frozenset([x + 1]),
    "in a list": lambda x: [{"f": lambda y: y + x}],
}


def shown(value, x):
    """What can be seen of a value, by using it."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if callable(value):
        return [shown(value(x), x) for _ in range(2)]
    if isinstance(value, slice):
        return shown(value.start, x)
    if isinstance(value, dict | types.MappingProxyType):
        return {key: shown(item, x) for key, item in value.items()}
    if hasattr(value, "__iter__") and not isinstance(value, str):
        items = itertools.islice(iter(value), 4)
        return type(value).__name__, [shown(item, x) for item in items]
    return value


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("function", MADE.values(), ids=MADE)
def test_what_is_made_again(function):
    compiled = funcaot.compile(function, backend=COMPILER)
    kept = []
    for _ in range(3):
        x = torch.randn(3)
        found = compiled(x)
        assert shown(found, x) == shown(function(x), x)
        kept.append(found)
    assert len(compiled.entries) == 1
    assert len({*map(id, kept)}) == 3


def test_gradients_through_a_closure():
    def function(x):
        squared = x**2
        return lambda y: squared * y

    x = torch.randn(3, requires_grad=True)
    compiled = funcaot.compile(function, backend=COMPILER)
    for _ in range(2):
        (found,) = torch.autograd.grad(compiled(x)(2).sum(), x)
        torch.testing.assert_close(found, 4 * x.detach())


def test_a_function_that_is_returned_twice_is_one():
    def function(x):
        def inner(y):
            return y * x

        return inner, [inner]

    one, (other,) = funcaot.compile(function, backend=COMPILER)(torch.ones(2))
    assert one is other


def test_a_cell_that_was_there_stays():
    known = torch.ones(2)

    def function(x):
        return lambda: known + x

    compiled = funcaot.compile(function, backend=COMPILER)
    made = compiled(torch.zeros(2))
    known = torch.full((2,), 3.0)
    assert made().tolist() == [3, 3]


class Looks(OrderedDict):
    def __getitem__(self, key):
        kind = super().__getitem__(key)
        return kind()


def test_a_dictionary_with_its_own_way_to_look_up_stays_as_it_is():
    table = Looks(relu=torch.nn.ReLU, tanh=torch.nn.Tanh)
    compiled = funcaot.compile(lambda x, name: table[name](x), backend=COMPILER)
    x = torch.randn(3)
    for name in ("tanh", "relu", "tanh"):
        assert torch.equal(compiled(x, name), table[name](x))
    assert [*table.values()] == [torch.nn.ReLU, torch.nn.Tanh]


class Keeper:
    kept = None


@pytest.mark.parametrize("case", ["closure", "iterator", "zip", "partial", "values", "slice"])
def test_what_is_kept(case):
    keeper = Keeper()

    def function(x):
        keeper.kept = MADE[case](x)
        return x * 2

    compiled = funcaot.compile(function, backend=COMPILER)
    for _ in range(3):
        x = torch.randn(3)
        assert torch.equal(compiled(x), x * 2)
        assert shown(keeper.kept, x) == shown(MADE[case](x), x)


# What a function keeps of a transform that ends in it.
TRANSFORMS = {
    "grad": lambda f: grad(lambda x: f(x).sum()),
    "jvp": lambda f: lambda x: jvp(f, (x,), (x,))[1],
    "grad of jvp": lambda f: grad(lambda x: jvp(f, (x,), (x,))[1].sum()),
}


def keeping(transform, kept):
    def inner(x):
        y = x.sin()
        kept[:] = [x, y, y]
        return y * 2

    return transform(inner)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_tensor_of_a_level_that_has_ended_is_the_one_inside(transform):
    stored, expected = [], []
    compiled = funcaot.compile(keeping(transform, stored), backend=COMPILER)
    eager = keeping(transform, expected)
    for step in range(3):
        x = torch.linspace(0, 1, 4) + step
        torch.testing.assert_close(compiled(x), eager(x))
        for found, wanted in zip(stored, expected, strict=True):
            torch.testing.assert_close(found + 0, wanted + 0)
        assert stored[1] is stored[2]


def test_a_tensor_of_a_batch_is_as_unusable_as_in_eager():
    stored, expected = [], []
    compiled = funcaot.compile(keeping(vmap, stored), backend=COMPILER)
    eager = keeping(vmap, expected)
    for step in range(3):
        x = torch.linspace(0, 1, 4) + step
        torch.testing.assert_close(compiled(x), eager(x))
        for found, wanted in zip(stored, expected, strict=True):
            assert found.shape == wanted.shape == ()
            assert repr(found) == repr(wanted)
            with pytest.raises(RuntimeError, match="escaped from inside a function being vmapped"):
                found + 0


def test_a_weak_reference_is_to_the_calls_own_tensor():
    kept = {}

    def function(x, y):
        z = x * y
        kept["given"], kept["made"], kept["gone"] = map(weakref.ref, (x, z, x + 1))
        return z, weakref.ref(y)

    compiled = funcaot.compile(function, backend=COMPILER)
    for step in range(3):
        x, y = torch.ones(3) + step, torch.ones(3) * step
        z, reference = compiled(x, y)
        assert kept["given"]() is x and kept["made"]() is z and reference() is y
        assert kept["gone"]() is None
        del x, z
        assert kept["given"]() is None and kept["made"]() is None


def test_a_method_of_a_list():
    compiled = funcaot.compile(lambda x: [x + 1].copy, backend=COMPILER)
    for number in range(3):
        (found,) = compiled(torch.full((2,), float(number)))()
        assert found.tolist() == [number + 1.0] * 2
