"""What methods of C are bound to, what cells, sets and ``super()`` hold: it changes between calls.

Each case reads a number by a thing that shows none of it by name, and something changes it.
"""

import collections
import enum
import functools
import types
import weakref
from types import SimpleNamespace

import pytest
import torch

import funcaot

number = 3.0
CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


class Holder:
    def __init__(self, value=3.0):
        self.value = value

    def __eq__(self, other):
        return self is other

    def __hash__(self):
        return id(self)


def setting(thing, key="value"):
    return lambda value: thing.__setitem__(key, value)


def giving(thing, name="value"):
    return lambda value: setattr(thing, name, value)


@case
def get_of_a_dictionary():
    table = {"value": 3.0}
    get = table.get
    return lambda: get("value"), setting(table)


@case
def item_of_a_dictionary():
    table = {"value": 3.0}
    item = table.__getitem__
    return lambda: item("value"), setting(table)


@case
def item_of_a_list():
    row = [3.0]
    item = row.__getitem__
    return lambda: item(0), setting(row, 0)


@case
def copy_of_a_list():
    row = [3.0]
    copy = row.copy
    return lambda: copy()[0], setting(row, 0)


@case
def length_of_a_list():
    row = [3.0]
    length = row.__len__
    return lambda: float(length()), lambda value: row.append(value)


@case
def item_of_a_subclass_of_list():
    class Row(list):
        pass

    row = Row([3.0])
    item = row.__getitem__
    return lambda: item(0), setting(row, 0)


@case
def item_of_a_deque():
    row = collections.deque([3.0])
    item = row.__getitem__
    return lambda: item(0), setting(row, 0)


@case
def get_of_an_ordered_dictionary():
    inner = {"value": 3.0}
    get = collections.OrderedDict(inner=inner).get
    return lambda: get("inner")["value"], setting(inner)


@case
def get_of_a_proxy():
    table = {"value": 3.0}
    get = types.MappingProxyType(table).get
    return lambda: get("value"), setting(table)


@case
def contents_of_a_row_of_bytes():
    row = bytearray(b"\x03")
    item = row.__getitem__
    return lambda: float(item(0)), lambda value: row.__setitem__(0, int(value))


@case
def whether_a_set_has_it():
    holder = Holder()
    things = {holder}
    has = things.__contains__
    return lambda: float(has(holder)), lambda value: things.clear()


@case
def attribute_by_a_bound_getter():
    holder = Holder()
    get = holder.__getattribute__
    return lambda: get("value"), giving(holder)


@case
def attribute_by_the_getter_of_objects():
    holder, get = Holder(), object.__getattribute__
    return lambda: get(holder, "value"), giving(holder)


@case
def attribute_by_the_getter_of_classes():
    get = type.__getattribute__

    class Kind:
        value = 3.0

    return lambda: get(Kind, "value"), giving(Kind)


@case
def globals_under_another_name():
    names = globals()
    return lambda: names["number"], setting(names, "number")


@case
def get_of_the_attributes_of_a_module():
    module = types.ModuleType("module")
    module.value = 3.0
    get = module.__dict__.get
    return lambda: get("value"), giving(module)


@case
def what_a_cell_leads_to():
    table = {"value": 3.0}
    cell = (lambda: table).__closure__[0]
    return lambda: cell.cell_contents["value"], setting(table)


@case
def what_a_cell_holds():
    cell = types.CellType(3.0)
    return lambda: cell.cell_contents, giving(cell, "cell_contents")


@case
def a_cell_that_held_none():
    cell = types.CellType(None)
    return lambda: cell.cell_contents or 3.0, giving(cell, "cell_contents")


@case
def a_set_of_weak_references():
    holder = Holder()
    things = weakref.WeakSet([holder])
    return lambda: next(iter(things)).value, giving(holder)


@case
def a_set_of_tuples():
    holder = Holder()
    things = {(1, holder)}
    return lambda: next(each for _, each in things).value, giving(holder)


@case
def what_super_finds():
    class Base:
        value = 3.0

    class Sub(Base):
        pass

    above = super(Sub, Sub())
    return lambda: above.value, giving(Base)


@case
def a_member_by_its_name():
    class Kind(enum.Enum):
        FIRST = 1

    Kind.FIRST.weight = 3.0
    return lambda: Kind["FIRST"].weight, giving(Kind.FIRST, "weight")


@case
def what_a_function_wraps():
    holder = Holder()

    @functools.wraps(lambda: None)
    def function():
        return 0.0

    function.__wrapped__ = lambda: holder.value
    return lambda: function.__wrapped__(), giving(holder)


@case
def a_tensor_by_its_method():
    tensor = torch.full((2,), 3.0)
    item = tensor.__getitem__
    return lambda: item(0), lambda value: tensor.fill_(value)


@case
def a_tensor_in_a_dictionary_by_its_method():
    holder = SimpleNamespace(tensor=torch.full((2,), 3.0))
    get = vars(holder).get
    return lambda: get("tensor")[0], lambda value: holder.tensor.fill_(value)


@pytest.mark.parametrize("name", CASES)
def test_what_changes(name):
    read, change = CASES[name]()
    compiled = funcaot.compile(lambda x: x * read(), backend="eager")
    x = torch.ones(2)
    for value in (None, None, 21.0, 31.0):
        if value is not None:
            change(value)
        assert compiled(x).tolist() == (x * read()).tolist()
    assert funcaot.report(compiled).cache_misses <= 3
    globals()["number"] = 3.0


def counts_in_a_cell():
    cell = types.CellType(0)

    def count():
        cell.cell_contents = cell.cell_contents + 1
        return cell.cell_contents

    return count


def appends():
    row = []
    append = row.append
    return lambda: (append(1), len(row))[1]


def counts_in_a_table():
    table = {"count": 0}
    get, put = table.get, table.__setitem__
    return lambda: (put("count", get("count") + 1), table["count"])[1]


def takes():
    take = [5, 4, 3, 2, 1].pop
    return lambda: take()


@pytest.mark.parametrize("make", [counts_in_a_cell, appends, counts_in_a_table, takes])
def test_what_the_function_changes_itself(make):
    ours, theirs = make(), make()
    compiled = funcaot.compile(lambda x: x * ours(), backend="eager")
    for _ in range(5):
        assert compiled(torch.ones(2)).tolist() == (torch.ones(2) * theirs()).tolist()
