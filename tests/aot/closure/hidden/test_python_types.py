"""What containers, methods and proxies of Python's own types keep in C, where it changes."""

import collections
import weakref
from types import SimpleNamespace

import pytest
import torch

import funcaot


def _agrees(function, change, *, calls=3):
    """Compiled calls give what eager ones do, before and after a change."""
    compiled = funcaot.compile(function, backend="eager")
    x = torch.ones(2)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    for _ in range(calls):
        change()
        torch.testing.assert_close(compiled(x), function(x))


class _Five:
    def __new__(cls):
        return 5.0


@pytest.mark.parametrize(
    "change",
    [
        lambda table: setattr(table, "default_factory", lambda: 4.0),
        lambda table: setattr(table, "default_factory", _Five),
    ],
    ids=["function", "class"],
)
@pytest.mark.parametrize("beside", [1.0, torch.ones(2)], ids=["constants", "tensors"])
def test_what_a_default_dictionary_makes(change, beside):
    table = collections.defaultdict(float, kept=beside)

    def read(x):
        found = x * table["kept"] + table["other"]
        del table["other"]
        return found

    _agrees(read, lambda: change(table), calls=1)


def test_a_default_dictionary_that_makes_nothing():
    table = collections.defaultdict(float)
    compiled = funcaot.compile(lambda x: x + table["other"], backend="eager")
    compiled(torch.ones(2))
    table.clear()
    table.default_factory = None
    with pytest.raises(KeyError):
        compiled(torch.ones(2))


@pytest.mark.parametrize("item", [2.0, torch.ones(2)], ids=["constants", "tensors"])
def test_how_many_items_a_deque_takes(item):
    holder = SimpleNamespace(kept=collections.deque([item, item], 2))

    def read(x):
        kept = holder.kept.copy()
        kept.append(3.0)
        return x * sum(kept)

    def change():
        holder.kept = collections.deque([item, item], (holder.kept.maxlen or 0) + 1)

    _agrees(read, change, calls=2)


def test_methods_that_were_looked_up():
    table, kept, weight = {"a": 1.0}, [1.0], torch.ones(2)
    get, count, scale = table.get, kept.count, weight.mul

    def read(x):
        return scale(x) * get("a", 7.0) + count(1.0)

    def change():
        weight.add_(1)
        kept.append(1.0)
        table["a"] += 1

    _agrees(read, change)
    _agrees(read, lambda: table.pop("a", None))


def test_another_method_that_was_looked_up():
    kept = [2.0, 1.0]
    holder = SimpleNamespace(find=kept.index)

    def read(x):
        return x * holder.find(1.0)

    def change():
        holder.find = [1.0].index if holder.find == kept.index else kept.count

    _agrees(read, change)


def test_a_list_that_is_changed_by_its_method():
    kept = []
    add = kept.append

    def read(x):
        add(x)
        return x * 2

    compiled = funcaot.compile(read, backend="eager")
    for number in (1, 2, 3):
        compiled(torch.full((2,), float(number)))
        assert [int(each[0]) for each in kept] == [*range(1, number + 1)]


class _Parent:
    factor = 2.0

    def scale(self, x):
        return x * self.factor


class _Child(torch.nn.Module):
    def __init__(self, parent):
        super().__init__()
        self.parent = weakref.proxy(parent)

    def forward(self, x):
        return self.parent.scale(x) * isinstance(self.parent, _Parent)


def test_what_a_weak_proxy_is_for():
    parents = [_Parent(), _Parent()]
    child = _Child(parents[0])

    def change():
        if parents[0].factor == 2.0:
            parents[0].factor = 3.0
        else:
            parents[1].factor = 5.0
            child.parent = weakref.proxy(parents[1])

    _agrees(child, change)
    compiled = funcaot.compile(child, backend="eager")
    compiled(torch.ones(2))
    parents.clear()
    with pytest.raises(ReferenceError):
        compiled(torch.ones(2))


def test_a_weak_proxy_of_a_module():
    parents = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    holder = SimpleNamespace(parent=weakref.proxy(parents[0]))

    def change():
        holder.parent = weakref.proxy(parents[1])

    _agrees(lambda x: holder.parent(x), change)
