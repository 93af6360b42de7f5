"""Containers that a function fills without reading them are one or several, as in each call."""

import types

import pytest
import torch
from torch import nn

import funcaot


class Attributes(nn.Module):
    def __init__(self, one, two):
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x):
        fill(self.one, x), fill(self.two, x * 2), fill(self.one, x * 3)
        return x.sin()

    def put(self, one, two):
        self.one, self.two = one, two


def fill(container, x):
    if isinstance(container, dict):
        container["last"] = x.detach() + 1
    else:
        container.append(x.detach() + 1)


NAMES = """
one, two = None, None
def function(x):
    METHOD
    return x.sin()
def put(*both):
    global one, two
    one, two = both
"""
FILLS = {
    list: "one.append(x.detach() * 2); two.append(x.detach() + 1); one.append(x.detach() - 1)",
    dict: "two['k'] = x.detach() * 2; one['k'] = x.detach() + 1",
}


def attributes(kind, one, two):
    module = Attributes(one, two)
    return module, module.put


def attributes_by_name(kind, one, two):
    space = {"nn": nn}
    body = FILLS[kind].replace("one", "self.one").replace("two", "self.two")
    exec(
        f"class Filled(nn.Module):\n    def forward(self, x):\n        {body}\n"
        "        return x.sin()\n",
        space,
    )
    module = space["Filled"]()
    module.one, module.two = one, two
    return module, lambda *both: (setattr(module, "one", both[0]), setattr(module, "two", both[1]))


def global_names(kind, one, two):
    space = {}
    exec(NAMES.replace("METHOD", FILLS[kind]), space)
    space["put"](one, two)
    return space["function"], space["put"]


def variables(kind, one, two):
    body = NAMES.replace("METHOD", FILLS[kind]).replace("global", "nonlocal")
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    space = {}
    exec(f"def make():\n{lines}    return function, put\n", space)
    function, put = space["make"]()
    put(one, two)
    return function, put


def items(kind, one, two):
    holder = types.SimpleNamespace(both=[one, two])
    space = {"holder": holder}
    body = FILLS[kind].replace("one", "holder.both[0]").replace("two", "holder.both[1]")
    exec(f"def function(x):\n    {body}\n    return x.sin()\n", space)

    def put(*both):
        holder.both[:] = both

    return space["function"], put


WHERE = [attributes, attributes_by_name, global_names, variables, items]


@pytest.mark.parametrize("kind", FILLS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("where", WHERE)
def test_containers_that_become_one_or_two(where, tied, kind):
    def pair(tied):
        one = kind()
        return one, one if tied else kind()

    found = []
    for compiles in (True, False):
        before, after = pair(tied), pair(not tied)
        function, put = where(kind, *before)
        target = funcaot.compile(function, backend="eager") if compiles else function
        for both in (before, after, pair(tied)):
            put(*both)
            for seed in range(2):
                target(torch.full((2,), float(seed)))
        found.append((before, after))
    torch.testing.assert_close(*found)


def _new(kind, number):
    return {dict: lambda: {"k": number}, list: lambda: [number], tuple: lambda: [(number, 2.0)]}[
        kind
    ]()


def _change(container, number):
    key = "k" if isinstance(container, dict) else 0
    container[key] = (number, 2.0) if isinstance(container[key], tuple) else number


def _number(container):
    found = container["k" if isinstance(container, dict) else 0]
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("kind", [dict, list, tuple], ids=["dictionary", "list", "rows"])
@pytest.mark.parametrize("first", ["one", "two"])
def test_numbers_of_a_container_at_two_places(first, kind):
    """A number left open was read at the first place for both, when another was put into one."""
    shared = _new(kind, 1.0)
    holder = types.SimpleNamespace(one=shared, two=shared)
    second = "two" if first == "one" else "one"

    def read(x):
        return x * _number(holder.one) + _number(holder.two)

    compiled = funcaot.compile(read, backend="eager")
    x = torch.full((2,), 3.0)
    actions = [None, None, None, first, None, second, None, "tie", None, second]
    for number, action in enumerate(actions):
        if action is None:
            _change(holder.one, float(number))
        elif action == "tie":
            holder.one = holder.two
        else:
            setattr(holder, action, _new(kind, float(number)))
        torch.testing.assert_close(compiled(x), read(x))
