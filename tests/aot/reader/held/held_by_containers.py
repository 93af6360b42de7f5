"""Values held by containers: their items, order and length."""

from tests.aot.reader.held.places import HOLDERS, Holder, fixed
from tests.aot.reader.held.worlds import Held

# --- containers ----------------------------------------------------------------------------------

HOLDERS.family("containers")


def _container(name: str, before: str, access: str, **parts) -> None:
    parts.setdefault("rebind", f"{access} = {{new}}")
    fixed(name, Held(access, before=before, **parts))


_container(
    "list_item",
    "items = [first]",
    "items[0]",
    rebind="items[:] = [{new}]",
    delete="items.clear()",
    tolerant=("(items[0] if len(items) else {default})", "(items[0] if items else {default})"),
)
_container("list_from_the_end", "items = [0, first]", "items[-1]", rebind="items[-1] = {new}")
_container("order_of_a_list", "items = [first, second]", "items[0]", swap="items.reverse()")
_container(
    "inserted_into_a_list",
    "items = [first]",
    "items[0]",
    rebind="items.insert(0, {new})",
    undo="del items[0]",
)
_container(
    "iterated_list",
    "items = [first, first]",
    "[item for item in items][-1]",
    rebind="items.append({new})",
    undo="items.pop()",
)
_container("slice_of_a_list", "items = [0, first, 0]", "items[1:2][0]", rebind="items[1] = {new}")
_container(
    "unpacked_list", "items = [first]", "(lambda item: item)(*items)", rebind="items[0] = {new}"
)
_container("subclass_of_list", "class Items(list):\n    pass\nitems = Items([first])", "items[0]")
_container(
    "dictionary_item",
    "table = {'held': first}",
    "table['held']",
    delete="del table['held']",
    tolerant=("table.get('held', {default})", "(table['held'] if 'held' in table else {default})"),
)
_container(
    "integer_key",
    "table = {7: first}",
    "table[7]",
    delete="del table[7]",
    tolerant=("table.get(7, {default})",),
)
_container(
    "tuple_key",
    "table = {('a', 1): first}",
    "table['a', 1]",
    delete="del table['a', 1]",
    tolerant=("table.get(('a', 1), {default})",),
)
_container("key_of_a_type", "table = {torch.float32: first}", "table[torch.float32]")
_container("object_as_key", "class Key:\n    pass\nkey = Key()\ntable = {key: first}", "table[key]")
_container(
    "value_by_another_global",
    "table = {'a': first, 'b': second}\nchosen = 'a'",
    "table[chosen]",
    rebind="chosen = 'b'",
    undo="chosen = 'a'",
)
_container("nested", "table = {'a': [{'b': first}]}", "table['a'][0]['b']")
_container(
    "order_of_a_dictionary",
    "table = {'a': first, 'b': second}",
    "next(iter(table.values()))",
    swap="name = next(iter(table)); table[name] = table.pop(name)",
)
_container(
    "item_added_to_an_iterated_dictionary",
    "table = {'a': first}",
    "list(table.values())[-1]",
    rebind="table['z'] = {new}",
    undo="del table['z']",
)
_container(
    "keyword_arguments",
    "table = {'held': first}",
    "(lambda held: held)(**table)",
    rebind="table['held'] = {new}",
)
_container("ordered_dictionary", "table = collections.OrderedDict(held=first)", "table['held']")
_container(
    "moved_in_an_ordered_dictionary",
    "table = collections.OrderedDict(a=first, b=second)",
    "next(iter(table.values()))",
    swap="table.move_to_end(next(iter(table)))",
)
_container(
    "dictionary_with_defaults",
    "table = collections.defaultdict(lambda: first)",
    "table['held']",
    programs=4,
    rebind="table['held'] = {new}",
    undo="del table['held']",
)
_container(
    "chain_of_dictionaries",
    "table = collections.ChainMap({}, {'held': first})",
    "table['held']",
    rebind="table.maps[1]['held'] = {new}",
)
_container(
    "read_only_dictionary",
    "inner = {'held': first}\ntable = types.MappingProxyType(inner)",
    "table['held']",
    rebind="inner['held'] = {new}",
)
_container("user_dictionary", "table = collections.UserDict(held=first)", "table['held']")
_container(
    "subclass_of_dictionary",
    "class Table(dict):\n    pass\ntable = Table(held=first)",
    "table['held']",
)
_container(
    "dictionary_read_as_attributes",
    "class Table(dict):\n    __getattr__ = dict.__getitem__\ntable = Table(held=first)",
    "table.held",
    rebind="table['held'] = {new}",
)
_container("queue", "items = collections.deque([first, first])", "items[0]")
_container(
    "rotated_queue",
    "items = collections.deque([first, second])",
    "items[0]",
    swap="items.rotate(1)",
)
_container("tuple_in_a_list", "items = [(0, first)]", "items[0][1]", rebind="items[0] = (0, {new})")
_container("list_in_a_tuple", "items = (0, [first])", "items[1][0]")
_container("tuple_rebound", "items = (0, first)", "items[1]", rebind="items = (0, {new})")
HOLDERS["only_element_of_a_set"] = Holder(
    lambda reader: Held("next(iter(items))", before="items = {first}", rebind="items = {{{new}}}"),
    hashable=True,
)
HOLDERS["element_of_a_set"] = Holder(
    lambda reader: Held(
        "(second if second in items else first)",
        before="items = {'another'}",
        rebind="items.add({new})",
        undo="items.discard(second)",
    ),
    hashable=True,
)
HOLDERS["frozen_set_in_a_list"] = Holder(
    lambda reader: Held(
        "next(iter(items[0]))",
        before="items = [frozenset([first])]",
        rebind="items[0] = frozenset([{new}])",
    ),
    hashable=True,
)
