"""What a function may change besides tensors: attributes, items, closure variables, globals.

All of it is looked at before a capture, compared after it, and put back where it was.
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.seen_classes import is_added, meant_by, shown_in
from funcaot.aot.closure.children import (
    CONTAINERS,
    MODULE_DICTIONARIES,
    MODULE_OWN,
    base_of,
    is_compiled,
    is_exact,
    items_of,
    slots_of,
    users_classes,
)
from funcaot.aot.closure.environment import Environment
from funcaot.aot.closure.look import dictionary_of, in_slot
from funcaot.aot.closure.named.code_names import names_of
from funcaot.classes import class_cache

MISSING: Any = object()
_CELL = "cell_contents"
# Where a module keeps its hooks, and names of buffers; what torch itself puts there, too.
_HOOKS = frozenset(
    name for name, held in vars(torch.nn.Module()).items() if isinstance(held, OrderedDict)
)
_REGISTERED = (*sorted(_HOOKS), "_non_persistent_buffers_set")
_OWN = MODULE_OWN - {"_is_full_backward_hook"}  # which a hook that is registered says, too


# What of a function Python runs, and code may assign.
_REPLACED = frozenset({"__code__", "__defaults__", "__kwdefaults__"})


@dataclass(frozen=True, eq=False)
class Bag:
    """Something mutable that the function reaches, and what was in it.

    Attributes:
        holder: What it belongs to, or itself, by ``id``.
        access: Source text on ``{parent}``, the holder.
        thing: A dictionary, list, deque, set, cell of a closure, class, or an object with slots.
        before: What was in it: a tuple for lists, deques and sets, else a dictionary.
        names: The keys that count, if not all do: globals that a function uses, slots.
        named: Whether its keys are names that code uses.
    """

    holder: int
    access: str
    thing: Any
    before: dict[Any, Any] | tuple[Any, ...]
    names: frozenset[str] | None = None
    named: bool = False

    @property
    def is_users_dictionary(self) -> bool:
        """Whether it is a dictionary whose keys have an order that counts."""
        return isinstance(self.thing, dict) and not self.named

    @property
    def is_container(self) -> bool:
        """Whether it is a list, deque, set or dictionary of the user's."""
        return self.access == "{parent}" and not self.named

    @property
    def is_of_hooks(self) -> bool:
        """Whether it is where a module keeps hooks."""
        return self.access.removeprefix("{parent}.") in _HOOKS

    def now(self) -> dict[Any, Any] | tuple[Any, ...]:
        """What is in it."""
        return contents_of(self.thing, self.names)


class Snapshots:
    """Everything mutable in an environment, each thing once, as it was when it was first reached.

    Attributes:
        bags: The things so far.
        classes: Objects, with the classes that they had.
    """

    def __init__(self, environment: Environment) -> None:
        """Look at what was reached so far."""
        self.bags: list[Bag] = []
        self.classes: list[tuple[Any, type]] = []
        self._environment = environment
        self._looked_at = 0
        self._seen: set[int] = set()
        self._named: dict[int, set[str]] = {}
        self._keys: dict[int, tuple[int, str, set[str]]] = {}
        self._functions: dict[int, tuple[types.FunctionType, dict[str, Any]]] = {}
        self.update()

    def update(self, code: types.CodeType | None = None) -> None:
        """Look at what was reached since, before some code runs."""
        objects = self._environment.objects
        new = list(itertools.islice(objects.items(), self._looked_at, None))
        self._looked_at = len(objects)
        for identity, holder in new:
            if isinstance(holder, types.ModuleType):
                space = vars(holder)
                self._keys.setdefault(id(space), (identity, "{parent}.__dict__", {*space}))
                self._add_names(identity, "{parent}.__dict__", space, space)
            elif identity not in self._environment.namespaces:
                self.classes.append((holder, type(holder)))
                for access, thing, names, is_named in _things(holder):
                    if id(thing) not in self._seen:
                        self._seen.add(id(thing))
                        before = contents_of(thing, names)
                        self.bags.append(Bag(identity, access, thing, before, names, is_named))
        for identity in self._environment.parts:
            self._keys.setdefault(identity, (identity, "{parent}", {*objects[identity]}))
        for identity, used in self._environment.namespaces.items():
            self._add_names(identity, "{parent}", objects[identity], used)
        if code is not None and not _REPLACED.isdisjoint(names_of(code).assigned):
            self._note_functions()

    def _add_names(
        self, holder: int, access: str, namespace: dict[str, Any], names: Iterable[str]
    ) -> None:
        """Look at globals, which a module leads to and the functions that run with them."""
        known = self._named.setdefault(id(namespace), set())
        new = frozenset(names) - known
        if new:
            known |= new
            before = contents_of(namespace, new)
            self.bags.append(Bag(holder, access, namespace, before, new, named=True))

    def note_new_globals(self) -> None:
        """See globals that code made by names which it put together, or as a module's."""
        objects = self._environment.objects
        for identity, (holder, access, known) in self._keys.items():
            namespace = objects[holder] if access == "{parent}" else vars(objects[holder])
            new = namespace.keys() - known - self._named.get(identity, set())
            new = frozenset(name for name in new if not is_added(namespace, name))
            if new:
                self.bags.append(Bag(holder, access, namespace, {}, new, named=True))

    def _note_functions(self) -> None:
        """See what functions run, and by which defaults, before code that may replace that."""
        for identity, thing in [*self._environment.objects.items()]:
            if isinstance(thing, types.FunctionType) and identity not in self._functions:
                before = {name: getattr(thing, name) for name in _REPLACED}
                self._functions[identity] = thing, before

    def _replaced_in_functions(self) -> Iterator[tuple[types.FunctionType, str, Any]]:
        """Functions that run something else now, what that is, and what it was."""
        for function, before in self._functions.values():
            for name, value in before.items():
                if getattr(function, name) is not value:
                    yield function, name, value

    def replaced(self) -> tuple[Any, str] | None:
        """Something of another class now, or a function that runs something else, and what."""
        for holder, kind in self.classes:
            if type(holder) is not kind:
                return holder, "__class__"
        return next(((each, name) for each, name, _ in self._replaced_in_functions()), None)

    def put_back(self) -> None:
        """Give objects their classes again, and functions what they ran."""
        put_back_classes(self.classes)
        for function, name, value in self._replaced_in_functions():
            setattr(function, name, value)


def put_back_classes(before: Iterable[tuple[Any, type]]) -> None:
    """Give objects the classes again that they had."""
    for holder, kind in before:
        if type(holder) is not kind:
            object.__setattr__(holder, "__class__", kind)


def _things(holder: Any) -> Iterator[tuple[str, Any, frozenset[str] | None, bool]]:
    """Access, thing, the keys that count, and whether these are names."""
    if isinstance(holder, type | types.CellType):
        yield "{parent}", holder, None, True
        return
    if isinstance(holder, dict | list | deque | set):
        yield "{parent}", holder, None, False
    if isinstance(holder, types.MethodType | torch.jit.ScriptModule) or is_compiled(holder):
        return
    if isinstance(holder, CONTAINERS) and is_exact(holder):
        return
    if isinstance(holder, torch.Tensor):
        if not tracing.is_symbolic(holder):
            yield "{parent}.__dict__", vars(holder), None, True
        return
    if isinstance(holder, torch.nn.Module):
        own = vars(holder)
        for name in MODULE_DICTIONARIES:
            yield f"{{parent}}.{name}", own[name], None, True
        for name in filter(own.__contains__, _REGISTERED):
            yield f"{{parent}}.{name}", own[name], None, True
    if isinstance(holder, types.FunctionType):
        for index, cell in enumerate(holder.__closure__ or ()):
            yield f"{{parent}}.__closure__[{index}]", cell, None, True
    slots = frozenset(slots_of(holder))
    if slots:
        yield "{parent}", holder, slots, True
    if dictionary_of(holder) is not None:
        yield "{parent}.__dict__", vars(holder), None, True
    for index, kind in users_classes(holder):
        yield f"type({{parent}}).__mro__[{index}]", kind, None, True


def bag_at(holder: Any, access: str, names: frozenset[str] | None, *, named: bool) -> Bag | None:
    """What belongs to a holder by an access, as it is now; None if there is no such thing."""
    found = [thing for text, thing, *_ in _things(holder) if text == access]
    if access == "{parent}":
        found = [holder]
    if not found:
        return None
    before = contents_of(found[0], names)
    return Bag(id(holder), access, found[0], before, names, named)


def contents_of(
    thing: Any, names: frozenset[str] | None = None
) -> dict[Any, Any] | tuple[Any, ...]:
    """A copy of what is in a thing."""
    if isinstance(thing, types.CellType):
        try:
            return {_CELL: thing.cell_contents}
        except ValueError:
            return {}
    if isinstance(thing, list | deque | set):
        return tuple(items_of(thing))
    if isinstance(thing, type):
        return {
            key: value
            for key, value in vars(thing).items()
            if not (key.startswith("__") or key == class_cache.ATTRIBUTE)
        }
    if names is None or isinstance(thing, dict):
        if names is not None:
            found = {name: thing[name] for name in names if name in thing}
        else:  # A subclass may have its own way to look items up.
            found = {key: base_of(thing).__getitem__(thing, key) for key in items_of(thing)}
        for name, added in shown_in(thing).items():
            if added:  # A capture shows it to code with these globals.
                found.pop(name, None)
            elif name in found:
                found[name] = meant_by(found[name])
        found.pop("__warningregistry__", None)  # Python notes there what it has warned of.
        return found
    return {name: value for name in names for value in in_slot(thing, name)}


def name_of(bag: Bag, key: Any, environment: Environment) -> str:
    """The name by which code uses an entry of a bag; empty if it has none."""
    if isinstance(bag.thing, types.CellType) and bag.access != "{parent}":
        code = environment.objects[bag.holder].__code__
        return code.co_freevars[int(bag.access.split("[")[1].rstrip("]"))]
    return key if bag.named and isinstance(key, str) else ""


def changed_keys(bag: Bag) -> list[Any]:
    """Keys of a dictionary or cell whose values aren't what they were, new ones last."""
    before, now = bag.before, bag.now()
    if not (isinstance(before, dict) and isinstance(now, dict)):
        raise TypeError("a sequence has no keys")
    keys = [key for key in before if key not in now or not is_kept(now[key], before[key])]
    keys += [key for key in now if key not in before]
    own = _OWN if bag.access == "{parent}.__dict__" else ()
    return [key for key in keys if key not in own]


def is_kept(now: Any, before: Any) -> bool:
    """Whether a value is what it was; what C keeps is made a number when it is read, each time."""
    if now is before:
        return True
    return type(now) is type(before) and type(now) in (int, float) and repr(now) == repr(before)


def put_back(bags: Sequence[Bag]) -> None:
    """Make things what they were."""
    for bag in bags:
        before, now = bag.before, bag.now()
        if isinstance(before, dict) and isinstance(now, dict):
            for key in changed_keys(bag):
                # What an extension lets nobody set, it changes by itself.
                with contextlib.suppress(AttributeError):
                    put(bag.thing, key, before.get(key, MISSING))
            if bag.is_users_dictionary and [*bag.thing] != [*before]:
                fill(bag.thing, [*before.items()])
        elif not is_same([*now], [*before]):
            fill(bag.thing, tuple(before))


def is_same(now: Sequence[Any], before: Sequence[Any]) -> bool:
    """Whether two sequences hold the same objects."""
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))


def get(thing: Any, key: Any) -> Any:
    """An entry of a dictionary, cell, class or object."""
    if isinstance(thing, dict | list):
        return base_of(thing).__getitem__(thing, key)
    return getattr(thing, key)


def put(thing: Any, key: Any, value: Any) -> None:
    """Set or, for ``MISSING``, remove an entry of a dictionary, cell, class or object."""
    if isinstance(thing, dict) and value is MISSING:
        base_of(thing).pop(thing, key, None)
    elif isinstance(thing, dict | list):
        base_of(thing).__setitem__(thing, key, value)
    elif isinstance(thing, types.CellType | type):
        delattr(thing, key) if value is MISSING else setattr(thing, key, value)
    elif value is MISSING:
        object.__delattr__(thing, key)
    else:
        object.__setattr__(thing, key, value)


def fill(thing: Any, contents: Sequence[Any]) -> None:
    """Replace what is in a list, deque or set; in a dictionary, by pairs."""
    own = base_of(thing)
    if isinstance(thing, list):
        own.__setitem__(thing, slice(None), contents)
        return
    own.clear(thing)
    if isinstance(thing, dict):
        for key, value in contents:
            own.__setitem__(thing, key, value)
    else:
        (own.extend if isinstance(thing, deque) else own.update)(thing, contents)


def is_reordered(before: dict[Any, Any], now: dict[Any, Any]) -> bool:
    """Whether the order of a dictionary isn't the old one with new keys behind."""
    kept = [key for key in before if key in now]
    return [*now] != kept + [key for key in now if key not in before]
