"""Objects that compare themselves and have no hash, as arguments: each is followed as an object.

Dictionaries of a class of the user's, dataclasses and namespaces are called with again, changed,
replaced and exchanged. Results, gradients and what is in the objects afterwards are eager's.
"""

import dataclasses
import types

import pytest
import torch

import funcaot


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    k: float = 2.0
    found: list = dataclasses.field(default_factory=list)


class Dictionary(dict):
    """Attributes are its items."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name, value):
        self[name] = value


class Compared:
    def __init__(self, x):
        self.x, self.k, self.found = x, 2.0, []

    def __eq__(self, other):
        return self.k == other.k

    __hash__ = None


MAKERS = {
    "dataclass": Record,
    "namespace": lambda x: types.SimpleNamespace(x=x, k=2.0, found=[]),
    "dictionary": lambda x: Dictionary(x=x, k=2.0, found=[]),
    "compared": Compared,
}


def reads(o):
    return o.x * o.k + len(o.found)


def stores(o):
    o.y = o.x * o.k
    return o.y + 1


def counts(o):
    o.k = o.k + 1
    return o.x * o.k


def appends(o):
    o.found.append(o.x.detach() * 2)
    return sum(o.found) * o.x


def asks(o):
    return o.x + 5 if hasattr(o, "z") else o.x * 1


def gives_back(o):
    return o, o.x * o.k


WRAPPED = {
    "alone": (lambda o: o, lambda function: function),
    "in a list": (lambda o: [o], lambda function: lambda items: function(items[0])),
    "in a dictionary": (lambda o: {"q": o}, lambda function: lambda items: function(items["q"])),
}


def shown(value):
    if isinstance(value, torch.Tensor):
        return value.tolist(), value.requires_grad
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if hasattr(value, "x"):
        own = value if isinstance(value, dict) else vars(value)
        return {name: shown(item) for name, item in own.items()}
    return value


def drive(function, make, wrap, *, requires_grad):
    """What a user sees of calls with two objects, between which they change."""

    def number(*values):
        return torch.tensor(values, requires_grad=requires_grad)

    one, other = make(number(1.0, 2.0)), make(number(3.0, 4.0))
    changes = [
        lambda: None,
        lambda: None,
        lambda: setattr(one, "k", 7.0),
        lambda: setattr(one, "x", number(5.0, 6.0)),
        lambda: setattr(one, "z", 1),
        lambda: other.found.append(torch.ones(2)),
        lambda: None,
    ]
    seen = []
    for change in changes:
        change()
        for called in (one, other):
            result = function(wrap(called))
            tensor = result[1] if isinstance(result, tuple) else result
            gradient = torch.autograd.grad(tensor.sum(), called.x)[0] if requires_grad else None
            seen.append((shown(result), shown(called), shown(gradient)))
    return seen


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("requires_grad", [False, True], ids=["values", "gradients"])
@pytest.mark.parametrize("how", WRAPPED)
@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("function", [reads, stores, counts, appends, asks, gives_back])
def test_each_is_followed(function, kind, how, requires_grad):
    wrap, unwrapping = WRAPPED[how]
    expected = drive(unwrapping(function), MAKERS[kind], wrap, requires_grad=requires_grad)
    compiled = funcaot.compile(unwrapping(function), backend="eager")
    assert drive(compiled, MAKERS[kind], wrap, requires_grad=requires_grad) == expected


def test_one_that_is_called_again_is_compiled_once():
    for make in MAKERS.values():
        compiled, argument = funcaot.compile(reads, backend="eager"), make(torch.ones(2))
        for _ in range(3):
            compiled(argument)
        assert funcaot.report(compiled).cache_misses == 1
