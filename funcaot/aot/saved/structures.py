"""Structures of arguments and results as data; classes in them by name.

A file says how a class is called, and nothing is imported or looked up because of that: the class
is one of those that the call is given, or that the program compares, and has this name.
"""

from __future__ import annotations

import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.pytree import NAMEDTUPLE, TreeSpec, tree_flatten, tree_unflatten
from funcaot.aot.closure.ran import is_users
from funcaot.aot.reader.reader import Reader
from funcaot.aot.saved.codec import Data, scalar_data, scalar_from
from funcaot.aot.saved.described import class_text
from funcaot.aot.saved.errors import NotSavedError, missing_is_not_loaded
from funcaot.aot.state.results.plans import Making, Parts, Plan, Ref

# Of Python itself, by name.
_OF_PYTHON: dict[str, type] = {
    kind.__name__: kind
    for kind in (OrderedDict, defaultdict, deque, dict, list, object, tuple, types.SimpleNamespace)
}
_RETURNED = "torch.return_types"
# What makes the values of a default dictionary: of Python itself, by name.
_FACTORIES: dict[str, type] = {
    kind.__name__: kind for kind in (bool, dict, float, int, list, set, str, tuple)
}


class Classes:
    """Classes that a program knows, by name."""

    def __init__(self, found: Iterable[type]) -> None:
        """Take those of the user's; of two with one name, none is known by it."""
        self._named: dict[tuple[str, str], list[type]] = {}
        for kind in found:
            others = self._named.setdefault(name_of(kind), [])
            if kind not in others:
                others.append(kind)

    def of(self, name: Sequence[str]) -> type:
        """The class of a name.

        Raises:
            LookupError: If there is none, or there are two.
        """
        found = self._named.get((name[0], name[1]), [])
        if len(found) == 1:
            return found[0]
        why = "isn't among those that its code names" if not found else "is two classes"
        raise LookupError(f"{'.'.join(name)} {why}")


def name_of(kind: type) -> tuple[str, str]:
    """A class's module and qualified name."""
    return str(kind.__module__), kind.__qualname__


def known_classes(reader: Reader | None, arguments: TreeSpec) -> Classes:
    """The classes that a program compares, and those of its arguments."""
    compared: list[Any] = []
    for thing in () if reader is None else reader.why.namespace.values():
        compared.append(thing() if isinstance(thing, weakref.ref) else thing)
    found = [thing for thing in compared if isinstance(thing, type)]
    found += [type(thing) for thing in compared if not isinstance(thing, type)]
    return Classes(filter(is_users, [*found, *_named_tuples(arguments)]))


def _named_tuples(tree: TreeSpec) -> Iterator[type]:
    if tree.is_leaf():
        return
    if tree.type is NAMEDTUPLE:
        yield tree.context
    for child in tree.children():
        yield from _named_tuples(child)


# --- writing --------------------------------------------------------------------------------------


def arguments_data(tree: TreeSpec) -> Data:
    """The structure of a call's arguments, for comparing: classes with what their methods do.

    Raises:
        NotSavedError: For one with anything else in it than Python's containers and named tuples.
    """
    kinds = {name_of(kind): kind for kind in _named_tuples(tree)}
    described = [[*name, class_text(kind)] for name, kind in kinds.items()]
    data = _nested_data(tree_unflatten(map(_Leaf, range(tree.num_leaves)), tree), set(), None)
    return {"structure": data, "classes": described} if described else data


def result_data(tree: TreeSpec, known: Classes) -> Data:
    """The structure of a result.

    Args:
        tree: The structure.
        known: The classes that another process will find.

    Raises:
        NotSavedError: For one with anything in it that another process can't make.
    """
    if tree.type is Parts:
        return {"plan": _plan_data(tree.context, known), "leaves": tree.num_leaves}
    return _nested_data(tree_unflatten(map(_Leaf, range(tree.num_leaves)), tree), set(), known)


class _Leaf(int):
    """The place of a leaf; a plain number is a constant of the structure."""


def _nested_data(value: Any, seen: set[int], known: Classes | None) -> Data:
    kind = type(value)
    if kind is _Leaf:
        return int(value)
    if value is None:
        return None
    if kind in (list, dict, OrderedDict, defaultdict):
        if id(value) in seen:
            raise NotSavedError(f"it returns or stores one {kind.__name__} in two places")
        seen.add(id(value))
    if kind in (tuple, list):
        return {kind.__name__: [_nested_data(item, seen, known) for item in value]}
    if kind in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        pairs = [[key, _nested_data(item, seen, known)] for key, item in value.items()]
        return {kind.__name__: pairs}
    if kind is defaultdict and all(type(key) in (str, int) for key in value):
        pairs = [[key, _nested_data(item, seen, known)] for key, item in value.items()]
        return {"defaultdict": [_factory_data(value.default_factory), pairs]}
    if issubclass(kind, tuple) and (kind.__module__ == _RETURNED or hasattr(kind, "_fields")):
        items = [_nested_data(item, seen, known) for item in value]
        if kind.__module__ == _RETURNED:
            return {"returned": [kind.__name__, items]}
        return {"named": [_class_data(kind, known), list(_fields_of(kind)), items]}
    raise NotSavedError(f"it takes or returns a {kind.__module__}.{kind.__qualname__}")


def _factory_data(factory: Any) -> str | None:
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise NotSavedError("it takes or returns a default dictionary of another function's values")
    return name


def _factory_from(name: str | None) -> type | None:
    return None if name is None else _FACTORIES[name]


def _fields_of(kind: Any) -> tuple[str, ...]:
    return kind._fields


def _class_data(kind: type, known: Classes | None) -> Data:
    if _OF_PYTHON.get(kind.__name__) is kind:
        return kind.__name__
    name = list(name_of(kind))
    if known is not None:
        try:
            same = known.of(name) is kind
        except LookupError as error:
            raise NotSavedError(f"it returns an object of a class, and {error}") from error
        if not same:
            raise NotSavedError(f"it returns an object of another class {'.'.join(name)}")
    return name


def _plan_data(plan: Plan, known: Classes) -> Data:
    if plan.has_kept:
        raise NotSavedError("it returns or stores a container that was there before")
    return [[_making_data(making, known) for making in plan.makings], _ref_data(plan.root)]


def _making_data(making: Making, known: Classes) -> Data:
    kind, base, keys = making.kind, making.base, making.keys
    if base is None and kind in (OrderedDict, defaultdict, deque, dict, list, tuple):
        base = kind
    if not isinstance(base, type) or _OF_PYTHON.get(base.__name__) is not base:
        raise NotSavedError(f"it returns a {kind.__module__}.{kind.__qualname__}")
    if base is defaultdict:
        keys = (keys[0], _factory_data(keys[1]))
    if making.base is not base:
        raise NotSavedError(f"it returns a {kind.__module__}.{kind.__qualname__} in an object")
    return {
        "kind": _class_data(kind, known),
        "base": base.__name__,
        "items": list(map(_ref_data, making.items)),
        "keys": scalar_data(keys),
        "attributes": [[name, _ref_data(ref)] for name, ref in making.attributes],
        "slots": [[name, _ref_data(ref)] for name, ref in making.slots],
    }


def _ref_data(ref: Ref) -> Data:
    if ref.how == "constant":
        return ["constant", scalar_data(ref.value)]
    if ref.how in ("leaf", "made"):
        return [ref.how, ref.value]
    raise NotSavedError("it returns an object that holds more than tensors and plain values")


# --- making again ---------------------------------------------------------------------------------


def result_from(data: Data, known: Classes) -> TreeSpec:
    """The structure that ``result_data`` described.

    Raises:
        NotLoadedError: If a class isn't found among those that are known.
    """
    with missing_is_not_loaded():
        if isinstance(data, dict) and "plan" in data:
            return tree_flatten(Parts([*range(data["leaves"])], _plan_from(data["plan"], known)))[1]
        return tree_flatten(_nested_from(data, known))[1]


def _nested_from(data: Data, known: Classes) -> Any:
    if not isinstance(data, dict):
        return data
    ((kind, items),) = data.items()
    if kind in ("dict", "OrderedDict"):
        return _OF_PYTHON[kind]((key, _nested_from(item, known)) for key, item in items)
    if kind == "defaultdict":
        factory, pairs = items
        found = [(key, _nested_from(item, known)) for key, item in pairs]
        return defaultdict(_factory_from(factory), found)
    if kind == "returned":
        name, parts = items
        return getattr(torch.return_types, name)([_nested_from(part, known) for part in parts])
    if kind == "named":
        name, fields, parts = items
        named: Any = known.of(name)
        if not issubclass(named, tuple) or getattr(named, "_fields", None) != tuple(fields):
            raise LookupError(f"{'.'.join(name)} has other fields")
        return tuple.__new__(named, [_nested_from(part, known) for part in parts])
    return {"tuple": tuple, "list": list}[kind]([_nested_from(item, known) for item in items])


def _plan_from(data: Data, known: Classes) -> Plan:
    makings, root = data
    return Plan(tuple(_making_from(making, known) for making in makings), _ref_from(root))


def _making_from(data: Mapping[str, Any], known: Classes) -> Making:
    name, base = data["kind"], _OF_PYTHON[data["base"]]
    kind = _OF_PYTHON[name] if isinstance(name, str) else known.of(name)
    if not issubclass(kind, base):
        raise LookupError(f"{kind.__qualname__} is no {base.__name__}")
    keys = scalar_from(data["keys"])
    if base is defaultdict:
        keys = (keys[0], _factory_from(keys[1]))
    return Making(
        kind,
        base,
        tuple(map(_ref_from, data["items"])),
        keys,
        tuple((key, _ref_from(ref)) for key, ref in data["attributes"]),
        tuple((key, _ref_from(ref)) for key, ref in data["slots"]),
    )


def _ref_from(data: Data) -> Ref:
    how, value = data
    return Ref(how, scalar_from(value) if how == "constant" else value)
