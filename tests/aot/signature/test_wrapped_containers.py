"""Containers of Python's library that keep what is in them in an attribute: UserDict and others."""

import itertools
from collections import ChainMap, Counter, UserDict, UserList

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


class Encoding(UserDict):
    """As tokenizers return: keys are attributes too."""

    def __getattr__(self, name):
        if name == "data" or name not in self.data:
            raise AttributeError(name)
        return self.data[name]


class Rows(UserList):
    pass


MAKERS = {
    "UserDict": lambda i: UserDict(a=i, t=torch.ones(2) * i),
    "a subclass": lambda i: Encoding({"a": i, "t": torch.ones(2) * i}),
    "ChainMap": lambda i: ChainMap({"a": i}, {"t": torch.ones(2) * i}),
    "Counter": lambda i: Counter({"a": i, "t": i + 1}),
    "UserList": lambda i: UserList([i, torch.ones(2) * i]),
    "a subclass of lists": lambda i: Rows([i, torch.ones(2) * i]),
}


def first(things):
    return 0 if isinstance(things, UserList) else "a"


def second(things):
    return 1 if isinstance(things, UserList) else "t"


def read(x, things):
    return x * things[first(things)]


def read_tensor(x, things):
    return x * things[second(things)]


def go_through(x, things):
    values = things if isinstance(things, UserList) else things.values()
    return sum((value * x for value in values), start=x * len(things))


def add(x, things):
    if isinstance(things, UserList):
        things.append(x * 2)
    else:
        things["new"] = x * 2
    return x * 1


def replace(x, things):
    things[second(things)] = x + things[first(things)]
    return things[second(things)] * 2


def count(x, things):
    things[first(things)] += 1
    return x * things[first(things)]


def write(x, things):
    held = things[second(things)]
    return held.add_(x) if isinstance(held, torch.Tensor) else x * held


def give_back(x, things):
    return x + 1, things


ACTS = (read, read_tensor, go_through, add, replace, count, write, give_back)


def shown(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (dict, UserDict, ChainMap)):
        return type(value), {key: shown(held) for key, held in value.items()}
    if isinstance(value, (list, tuple, UserList)):
        return type(value), [shown(held) for held in value]
    return value


def trajectory(make, act, how, compiles):
    kept = make(1)
    called = compiles((lambda x: act(x, kept)) if how == "closed over" else act)
    found = []
    for number in (1, 1, 2, 3, 1):
        things = make(number) if how == "another" else kept
        things[first(things)] = number
        x = torch.ones(2) * number
        result = called(x) if how == "closed over" else called(x, things)
        same = isinstance(result, tuple) and result[1] is things
        found.append((shown(result), shown(things), same))
    return found


@pytest.mark.parametrize("backend", ["eager", COMPILER], ids=["eager", "hostile"])
@pytest.mark.parametrize("how", ["another", "the same", "closed over"])
@pytest.mark.parametrize(
    ("made", "act"),
    list(itertools.product(MAKERS, ACTS)),
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_calls_do_what_eager_does(made, act, how, backend):
    expected = trajectory(MAKERS[made], act, how, lambda function: function)
    found = trajectory(
        MAKERS[made], act, how, lambda function: funcaot.compile(function, backend=backend)
    )
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("made", MAKERS)
def test_on_inductor(made):
    found = trajectory(MAKERS[made], replace, "the same", funcaot.compile)
    assert found == trajectory(MAKERS[made], replace, "the same", lambda function: function)
