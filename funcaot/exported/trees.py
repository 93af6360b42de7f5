"""Structures of arguments and results as JSON: written by ``export``, walked by ``load``.

A node is a dictionary with a ``kind``: ``tensor`` (``index``), ``value`` (``type``, ``text``),
``size`` (an expression of dims), ``none``, ``tuple``, ``list``, ``namedtuple`` (``type``,
``fields``) or ``shape`` (a ``torch.Size``) with ``items``, or ``dict`` with ``keys`` and ``items``.
"""

from __future__ import annotations

import functools
from collections import OrderedDict, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from funcaot.base.qualified_names import named
from funcaot.errors import ArgumentError, UnsupportedError
from funcaot.exported import expressions

Leaf = Callable[[Any, str], dict[str, Any]]

_SETTINGS = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_SCALARS = (bool, int, float, complex, str, *_SETTINGS)
_KEYS = (str, int)


def _setting(text: str) -> Any:
    """``torch.float64`` and the like."""
    found = getattr(torch, text.removeprefix("torch."), None)
    if not isinstance(found, _SETTINGS):
        raise ValueError(text)
    return found


_PARSERS: dict[str, Callable[[str], Any]] = {
    "int": int,
    "float": float,
    "complex": complex,
    "bool": "True".__eq__,
    "str": str,
    "device": torch.device,
    **dict.fromkeys(("dtype", "layout", "memory_format"), _setting),
}
_SEQUENCES = {"tuple": tuple, "list": list, "shape": torch.Size}


def described(structure: Any, leaf: Leaf, path: str, what: str) -> dict[str, Any]:
    """A structure as JSON.

    Args:
        structure: Containers and leaves.
        leaf: What describes a leaf, given where it is.
        path: Where the structure is, as Python would write it.
        what: Whose it is, for messages.

    Raises:
        UnsupportedError: For a container that another process can't make.
    """
    if structure is None:
        return {"kind": "none"}
    kind: Any = type(structure)
    names = _names(kind)
    if issubclass(kind, tuple) and names:
        items = [
            described(item, leaf, f"{path}.{name}", what)
            for name, item in zip(names, structure, strict=True)
        ]
        name = f"{kind.__module__}:{kind.__qualname__}"
        return {"kind": "namedtuple", "type": name, "fields": names, "items": items}
    if kind in _SEQUENCES.values():
        items = [
            described(item, leaf, f"{path}[{index}]", what) for index, item in enumerate(structure)
        ]
        name = next(name for name, known in _SEQUENCES.items() if known is kind)
        return {"kind": name, "items": items}
    if kind in (dict, OrderedDict):
        return _dictionary_described(structure, leaf, path, what)
    return leaf(structure, path)


def _names(kind: Any) -> list[str]:
    """The fields of a named tuple, or of what torch's ops return as one."""
    if kind.__module__ == "torch.return_types":
        return list(kind.__match_args__)
    return list(getattr(kind, "_fields", ()))


def _dictionary_described(
    structure: dict[Any, Any], leaf: Leaf, path: str, what: str
) -> dict[str, Any]:
    odd = [key for key in structure if type(key) not in _KEYS]
    if odd:
        raise UnsupportedError(
            f"{what} has a dictionary at {path or 'the top'} with the key {odd[0]!r}.",
            expected="strings and numbers as keys",
            remedy="use such keys; an artifact can't name others.",
        )
    items = [described(item, leaf, f"{path}[{key!r}]", what) for key, item in structure.items()]
    ordered = isinstance(structure, OrderedDict)
    return {"kind": "dict", "ordered": ordered, "keys": list(structure), "items": items}


def is_value(leaf: Any) -> bool:
    """Whether a leaf isn't a tensor and can be written as JSON."""
    return type(leaf) in _SCALARS


def value(leaf: Any, path: str, what: str) -> dict[str, Any]:
    """A leaf that isn't a tensor as JSON.

    Raises:
        UnsupportedError: For what has no text that it can be read from again.
    """
    if not is_value(leaf):
        raise UnsupportedError(
            f"{what} has {type(leaf).__name__} at {path}, which an artifact can't hold.",
            expected="tensors, numbers, strings, booleans and None, in tuples, named tuples, lists "
            "and dictionaries",
            remedy="pass such values, or let the function close over the object.",
        )
    return {"kind": "value", "type": type(leaf).__name__, "text": _text(leaf)}


def _text(leaf: Any) -> str:
    return str(leaf) if isinstance(leaf, str | torch.device) else repr(leaf)


def leaves_of(tree: dict[str, Any], given: Any, what: str, path: str = "") -> Iterator[Any]:
    """The tensors of a structure that has to look like ``tree``, in the order of their indices.

    Raises:
        ArgumentError: If it looks otherwise; the message says where.
    """
    kind = tree["kind"]
    if kind == "tensor":
        yield given
    elif kind == "value":
        _check_value(tree, given, what, path)
    elif kind == "none":
        if given is not None:
            raise _other(what, path, "None", given)
    else:
        yield from _children(tree, given, what, path)


def _children(tree: dict[str, Any], given: Any, what: str, path: str) -> Iterator[Any]:
    kind, items = tree["kind"], tree["items"]
    if kind == "dict":
        keys = tree["keys"]
        if not isinstance(given, dict) or set(given) != set(keys):
            raise _other(what, path, f"a dictionary with the keys {keys}", given)
        for key, item in zip(keys, items, strict=True):
            yield from leaves_of(item, given[key], what, f"{path}[{key!r}]")
        return
    names = tree.get("fields")
    if names is not None:
        if not isinstance(given, tuple) or list(getattr(given, "_fields", ())) != names:
            raise _other(what, path, f"a named tuple with the fields {names}", given)
    elif not isinstance(given, list if kind == "list" else tuple) or len(given) != len(items):
        raise _other(what, path, f"a {kind} of length {len(items)}", given)
    for index, (item, found) in enumerate(zip(items, given, strict=True)):
        where = f"{path}[{index}]" if names is None else f"{path}.{names[index]}"
        yield from leaves_of(item, found, what, where)


def _check_value(tree: dict[str, Any], given: Any, what: str, path: str) -> None:
    if type(given).__name__ == tree["type"] and _text(given) == tree["text"]:
        return
    raise ArgumentError(
        f"{what} was exported for one value of {path or 'an argument'}, and was called with "
        "another.",
        expected=f"{tree['text']!s} ({tree['type']})",
        got=f"{given!r} ({type(given).__name__})",
        remedy="export it for this value too, to another path, or pass the value as a tensor.",
    )


def _other(what: str, path: str, expected: str, given: Any) -> ArgumentError:
    return ArgumentError(
        f"{what} was called with another structure than it was exported with"
        f"{f', at {path}' if path else ''}.",
        expected=expected,
        got=_look(given),
        remedy="pass the arguments as in the call of funcaot.export: the same positions, keywords, "
        "containers and keys.",
    )


def _look(given: Any) -> str:
    if isinstance(given, dict):
        return f"a dictionary with the keys {list(given)}"
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of length {len(given)}"
    return "None" if given is None else type(given).__name__


def builder(tree: dict[str, Any]) -> Callable[[Sequence[Any], Mapping[str, int]], Any]:
    """The function from tensors and sizes of dims to the structure."""
    kind = tree["kind"]
    if kind == "tensor":
        index = tree["index"]
        return lambda tensors, sizes: tensors[index]
    if kind == "size":
        size = tree["size"]
        return lambda tensors, sizes: expressions.value(size, sizes)
    if kind in ("value", "none"):
        constant = None if kind == "none" else _PARSERS[tree["type"]](tree["text"])
        return lambda tensors, sizes: constant
    parts = [builder(item) for item in tree["items"]]
    make: Callable[..., Any] = _SEQUENCES.get(kind, tuple)
    if kind == "dict":
        make = functools.partial(
            _dictionary, OrderedDict if tree["ordered"] else dict, tree["keys"]
        )
    elif kind == "namedtuple":
        make = _maker(tree)
    return lambda tensors, sizes: make([part(tensors, sizes) for part in parts])


def _dictionary(kind: Any, keys: Sequence[Any], values: Sequence[Any]) -> dict[Any, Any]:
    return kind(zip(keys, values, strict=True))


def _maker(tree: dict[str, Any]) -> Callable[..., Any]:
    module, _, name = tree["type"].partition(":")
    if module == "torch.return_types":
        return getattr(torch.return_types, name)
    return namedtuple_of(tree)._make


def namedtuple_of(tree: dict[str, Any]) -> Any:
    """The class of a named tuple; one with the same fields if its module isn't imported.

    Nothing is imported because a file says so.
    """
    module, _, name = tree["type"].partition(":")
    found, names = named(module, name), tuple(tree["fields"])
    if isinstance(found, type) and getattr(found, "_fields", None) == names:
        return found
    return namedtuple(name.rpartition(".")[2], names)
