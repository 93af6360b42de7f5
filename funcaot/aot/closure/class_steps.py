"""What a class leads to: its members by lookup, as code finds them; for the walk."""

from __future__ import annotations

import enum
import functools
import keyword
import types
from collections.abc import Iterator
from typing import Any

from funcaot._torch.tensors.classes.own_functions import function_in_use, names_in_place
from funcaot.aot.closure.children import WRAPPERS, Step, classes_of, entries, quoted
from funcaot.aot.closure.look import bases_with, is_in_any, special_names, subclasses_of
from funcaot.aot.closure.named.code_names import ReadNames
from funcaot.aot.closure.ran import is_users

__all__ = ["of_class", "of_tensor_class"]


def of_class(kind: type, names: ReadNames, ran: Any) -> Iterator[Step]:
    """The steps from a class of the user's to what code reads of it, its own or inherited.

    Args:
        kind: The class.
        names: The names that are read.
        ran: The code objects that ran; their methods are looked into, whatever their name.
    """
    for name in ("__doc__", "__module__", "__name__", "__qualname__"):
        if names.users_mention(name):
            yield Step(f"{{parent}}.{name}", name, getattr(kind, name))
    if names.users_mention("__subclasses__"):
        yield Step("{0}({parent})", "", subclasses_of(kind), (subclasses_of,))
    yield Step("{0}({parent})", "", special_names(kind), (special_names,))
    if issubclass(kind, enum.Enum):
        yield from entries(kind._member_map_, "{parent}._member_map_")
    known: set[str] = set()
    hidden: set[str] = set()
    supers = names.users_mention("super")
    whole = names.reads_class(kind)
    for index, base in enumerate(kind.__mro__):
        users = is_users(base)
        for name, raw in list(vars(base).items()):
            has_run = _code_of(raw) in ran
            if name in hidden:
                if users and (has_run or (supers and names.mentions(name))):
                    # Code of a subclass calls it, by super() or the name of the class.
                    yield Step(f"{{parent}}.__mro__[{index}].__dict__[{quoted(name)}]", "", raw)
                continue
            inherited = name == "forward" and not users
            has_run = has_run or (name == "__torch_function__" and users)
            mentioned = whole or names.mentions(name)
            if has_run or (mentioned and not name.startswith("__")):
                known.add(name)
                if supers:
                    found = bases_with(kind, name)
                    yield Step(f"{{0}}({{parent}}, {quoted(name)})", "", found, (bases_with,))
                if users or inherited:
                    for step in _of_member(kind, index, name, raw):
                        # Python itself looks special methods up.
                        yield step._replace(name="") if has_run or whole else step
        hidden.update(vars(base))
    for index, meta in classes_of(type(kind)):
        for name, raw in list(vars(meta).items()):
            if name not in known and names.mentions(name) and not name.startswith("__"):
                known.add(name)
                place = f"type({{parent}}).__mro__[{index}].__dict__[{quoted(name)}]"
                yield Step(place, name, raw)
                yield _not_hidden(kind, name, len(kind.__mro__))
                if index:
                    yield _not_hidden(kind, name, index, metas=True)


def of_tensor_class(kind: type) -> Iterator[Step]:
    """The steps to what a class of tensors says of them, whoever asks."""
    for looked in (names_in_place, function_in_use):
        yield Step("{0}({parent})", "", looked(kind), (looked,))


def _not_hidden(kind: type, name: str, count: int, *, metas: bool = False) -> Step:
    """The step to whether lookup finds an attribute in one of the first classes."""
    text = f"{{0}}({{parent}}, {quoted(name)}, {count}, metas={metas})"
    return Step(text, name, is_in_any(kind, name, count, metas=metas), (is_in_any,))


def _of_member(kind: type, index: int, name: str, raw: Any) -> Iterator[Step]:
    """The steps to one attribute of a class: by lookup, which sees what comes to hide it."""
    dotted = name.isidentifier() and not keyword.iskeyword(name)
    access = f"{{parent}}.{name}" if dotted else None
    slot = isinstance(raw, types.MemberDescriptorType | types.GetSetDescriptorType)
    if slot and raw.__objclass__ in kind.__mro__:
        return
    simple = type(kind) is type or name not in dir(type(kind))
    if access is None or not simple or not _is_looked_up_plainly(raw):
        # Looking it up would run somebody's code.
        yield Step(f"{{parent}}.__mro__[{index}].__dict__[{quoted(name)}]", name, raw)
        if index:
            yield _not_hidden(kind, name, index)
    elif isinstance(raw, classmethod):
        yield Step(f"{access}.__func__", name, raw.__func__)
    elif isinstance(raw, staticmethod):
        yield Step(access, name, raw.__func__)
    else:
        yield Step(access, name, raw)


def _is_looked_up_plainly(raw: Any) -> bool:
    plain = (types.FunctionType, property, classmethod, staticmethod, functools.cached_property)
    looks = getattr(type(raw), "__get__", None)
    # A subclass may give something else where it is looked up on a class.
    return looks is None or any(looks is kind.__get__ for kind in plain)


def _code_of(raw: Any) -> types.CodeType | None:
    """The code that an attribute of a class runs."""
    for kind, attributes in WRAPPERS:
        if isinstance(raw, kind):
            return _code_of(getattr(raw, attributes[0]))
    return raw.__code__ if isinstance(raw, types.FunctionType) else None
