"""Numbers of objects that a table has by class: several are reached by the same words."""

import torch

import funcaot


class Entry:
    def __init__(self, number):
        self.number = number


class Holder:
    def __init__(self, **entries):
        self.table = {Holder: entries["first"], Entry: entries["second"]}


def test_each_is_compared_and_none_is_changed():
    first, second = Entry(1), Entry(2)
    holder = Holder(first=first, second=second)

    def function(x):
        return x * sum(entry.number for entry in holder.table.values())

    compiled = funcaot.compile(function, backend="eager")
    x = torch.rand(3)
    for number in (2, 3, 4, 5, 6):
        for entry in (first, second):
            assert torch.equal(compiled(x), function(x))
            assert (type(first.number), type(second.number)) == (int, int)
            entry.number = number
    assert len(compiled.entries) <= 4
