"""Which names some code reads, as far as its bytecode says; for what a call must be compared by.

A name that code only counts in (``self.calls += 1``) or adds to (``log.append(x)``,
``kept[k] = x``) doesn't decide what the code computes.
"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch

from funcaot.aot.closure.hashing.hashed import ANY, name_of_kind
from funcaot.aot.closure.look import module_of
from funcaot.aot.closure.named.changing import (
    assigned_in,
    items_in,
    keys_in,
    looked_up_in,
    read_in,
)
from funcaot.aot.closure.named.fragments import Fragments
from funcaot.aot.closure.named.imports import imported_in, is_dotted
from funcaot.aot.closure.named.patterns import (
    FORMATTING,
    catches,
    compares_identity,
    looks_at_all,
    matched_in,
    names_among,
    names_in_texts,
    set_by_text,
)
from funcaot.aot.closure.named.whole import (
    BY_NAME,
    COPIES,
    UNSEEN,
    WHOLE,
    asks_by_text,
    asks_itself,
    only_gets_by_name,
    only_pickles,
)

# Methods that set a module up or describe it; what only they read doesn't change its forward.
_NOT_RUN = {"__init__", "__repr__", "extra_repr", "reset_parameters", "_reset_parameters"}
_SETTING = {"__setattr__", "__delattr__", *UNSEEN}
# These set attributes by texts, which nothing that runs asks for.
_SETTING_BY_TEXT = {"__setattr__", "__dict__", "vars"}
# These tell tensors apart by which object they are.
_BY_IDENTITY = {"frozenset", "hash", "id", "set"}
_IMPORTING = {"import_module", "__import__", "modules"}
# What autograd and the operator read of a Function's class.
PROTOCOL = {
    "forward",
    "backward",
    "setup_context",
    "vmap",
    "jvp",
    "generate_vmap_rule",
    "generate_jvp_rule",
    "generate_backward_rule",
}
_SKIPPED = {"CACHE", "NOP", "PRECALL", "EXTENDED_ARG", "RESUME", "PUSH_NULL"}
_STORES = {"STORE_GLOBAL", "DELETE_GLOBAL"}
_OUTSIDE = {"LOAD_GLOBAL", "LOAD_NAME", *_STORES}


Users = Mapping[types.CodeType, Mapping[str, Any]]


@dataclass(frozen=True)
class Names:
    """Names in one code object and those nested in it.

    Attributes:
        used: Every name of an attribute, global or closure variable.
        read: Those whose value matters.
        fragments: Text that names may be made of, in code that gets attributes by name.
        loaded: Names looked up among globals and builtins.
        stored: Globals that it assigns or deletes.
        imported: Modules that it imports, or may look up by a text that it has. As in an import
            statement, dots at the front lead to its package and up from there.
        tried: Names that it may use where they mean nothing, and go on.
        assigned: Names of attributes, globals and closure variables that it gives new values.
        counted: Those that it adds a number to, or subtracts one from.
        items_assigned: Names of containers that it gives new items.
        items_counted: Those in whose items it counts.
        looked_up: Names of containers that it may get items from.
        keys_assigned: The keys by which it assigns items.
        compares_identity: Whether it asks if two things are one object.
        matched: Names of attributes by which it matches objects, in ``case`` of a class.
        matches_places: Whether it does so by ``__match_args__``.
        sees_all: Whether it may look at all that a namespace holds, by ``==`` or as text.
    """

    used: frozenset[str]
    read: frozenset[str]
    fragments: frozenset[str]
    loaded: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()
    tried: frozenset[str] = frozenset()
    assigned: frozenset[str] = frozenset()
    counted: frozenset[str] = frozenset()
    items_assigned: frozenset[str] = frozenset()
    items_counted: frozenset[str] = frozenset()
    looked_up: frozenset[str] = frozenset()
    keys_assigned: frozenset[Any] = frozenset()
    compares_identity: bool = False
    matched: frozenset[str] = frozenset()
    matches_places: bool = False
    sees_all: bool = False

    @property
    def is_dynamic(self) -> bool:
        """Whether names of attributes may come from data."""
        return not self.used.isdisjoint(BY_NAME)

    @property
    def imports_by_text(self) -> bool:
        """Whether modules are looked up by their names."""
        return not self.used.isdisjoint(_IMPORTING)

    @property
    def reads_all(self) -> bool:
        """Whether all attributes of some object are read at once, or one that nothing names."""
        return not self.used.isdisjoint(WHOLE)

    @property
    def sets_any(self) -> bool:
        """Whether an attribute may be set that nothing names."""
        return not self.used.isdisjoint(_SETTING)


class ReadNames:
    """The names that code reached from a function reads: functions', and methods' named there."""

    def __init__(self) -> None:
        """Nothing is reached yet."""
        self._methods: dict[str, list[types.CodeType]] = {}
        self._kinds: set[type] = {object, torch.nn.Module}
        self._used: set[str] = {"forward"}
        self._read: set[str] = set()
        self._fragments = Fragments()
        self._asking: set[type] = set()
        self._functions_ask = False
        self._exact: set[str] = set()
        self._asked: set[str] = set()
        self.of_users: set[str] = set()
        self._tried: set[str] = set()
        self._assigned: set[str] = set()
        self._counted: set[str] = set()
        self._items_assigned: set[str] = set()
        self._items_counted: set[str] = set()
        self._looked_up: set[str] = set()
        self.keys_assigned: set[Any] = set()
        self._all = False
        # By identity: the class of a class may say what its hash is.
        self._owning: dict[int, type] = {}
        self._hooked: dict[int, type] = {}
        self._shown: set[str] = set()
        self._pickles = False
        self.texts_of_globals: set[str] = set()
        self.sets_any = False
        self.is_dynamic = False
        self.compares_identity = False
        self.matches_places = False
        self.sees_all = False
        self.reads_states = False

    @classmethod
    def of(cls, users: Users, libraries: Iterable[types.CodeType]) -> ReadNames:
        """The names that some code objects use, and no others.

        Args:
            users: Code of the user's, each with its globals.
            libraries: Code of libraries that reads what a user gives them.
        """
        made = cls()
        made._used.clear()
        for code in users:
            names = names_of(code)
            made._add(names)
            made.of_users |= names.used
            made._tried |= names.tried
            made._functions_ask |= bool(names.fragments or names.tried)
            made.is_dynamic |= names.is_dynamic
            made.compares_identity |= names.compares_identity
            made.matches_places |= names.matches_places
            made.sees_all |= names.sees_all
            if names.reads_all:
                made._add_whole(code, users[code], names)
        for code in libraries:
            names = names_of(code)
            made._used |= names.used
            made._read |= names.read
            made._all |= names.reads_all and code.co_name in COPIES
        made._used |= PROTOCOL
        made._read |= PROTOCOL
        return made

    def _add_whole(self, code: types.CodeType, namespace: Mapping[str, Any], names: Names) -> None:
        """Add what code reads that reads all attributes of something."""
        kind = asks_itself(code, namespace)
        if kind is not None:
            kinds = self._hooked if "__getattribute__" in names.used else self._owning
            kinds[id(kind)] = kind
        elif only_pickles(code, namespace):
            self._pickles = True
        elif not (asks_by_text(code) or only_gets_by_name(code, namespace)):
            self._all = True

    def add_names(self, names: Names) -> None:
        """Add what the code of a function uses."""
        self._add(names)
        self._functions_ask |= bool(names.fragments)

    def users_mention(self, name: str) -> bool:
        """Whether code of the user's has this name in it."""
        return name in self.of_users

    def users_mention_any(self, names: Iterable[str]) -> bool:
        """Whether code of the user's has one of these names in it."""
        return not self.of_users.isdisjoint(names)

    @property
    def reads_everything(self) -> bool:
        """Whether some code reads all attributes of an object at once."""
        return self._all

    def reads_own(self, holder: object) -> bool:
        """Whether all attributes of an object are read at once: by its methods, vars or pickle."""
        if self._pickles and not issubclass(type(holder), type | types.FunctionType):
            return True
        if self._shown and name_of_kind(type(holder)) in self._shown:
            return True
        kinds = self._owning | self._hooked
        return bool(kinds) and any(id(kind) in kinds for kind in type(holder).__mro__)

    def reads_class(self, kind: type) -> bool:
        """Whether a class has a hook that gets any of its attributes."""
        return bool(self._hooked) and any(id(each) in self._hooked for each in kind.__mro__)

    def add_exact(self, names: Iterable[str]) -> bool:
        """Add names that code may get from data; whether one of them is new."""
        new = {name for name in names if name.isidentifier()} - self._exact
        self._exact |= new
        return bool(new)

    def add_asked(self, names: Iterable[str]) -> bool:
        """Add names that something looks for on objects; whether one of them is new."""
        new = {*names} - self._asked
        self._asked |= new
        self._exact |= new
        return bool(new)

    def add_run(
        self, asked: Iterable[str], whole: Set[str], users: Users = MappingProxyType({})
    ) -> None:
        """Add what was seen in a run.

        Args:
            asked: Names by which code got or set attributes, wherever it had them from.
            whole: Classes of whose objects it was shown all attributes.
            users: Code of the user's, which may look at all attributes of an object; its globals.
        """
        self._asked |= set(asked)
        self._exact |= self._asked
        self._shown |= whole
        self._all |= ANY in whole
        for code, namespace in users.items():
            names = names_of(code)
            self.sets_any |= names.sets_any
            if names.reads_all:
                self._add_whole(code, namespace, names)

    def read_all(self) -> None:
        """Code may get attributes, and set them, by names that nothing shows."""
        self._all = self.sets_any = True

    def add(self, holder: object) -> None:
        """Add what an object's code may read: a function's, or that of its class's methods."""
        if isinstance(holder, types.FunctionType):
            self.add_names(names_of(holder.__code__))
        for kind in type(holder).__mro__:
            if kind not in self._kinds and module_of(kind) != "builtins":
                self._kinds.add(kind)
                self._add_methods(kind)

    def close(self) -> None:
        """Add what the methods use that are named so far, and so on."""
        while True:
            named = [n for n in self._methods if n in self._used or n.startswith("__")]
            if not named:
                return
            for name in named:
                for code in self._methods.pop(name):
                    self._add(names_of(code))

    def reads(self, name: str) -> bool:
        """Whether some code may depend on a thing of this name; always true without a name."""
        if not name or self._all or name in self._read or name in self._exact:
            return True
        if name in self._counted and name in self._assigned:
            return True  # Nothing says which of both it was.
        if name in self._items_counted and name in self._items_assigned:
            return True
        return self._fragments.are_in(name)

    def assigns(self, name: str) -> bool:
        """Whether code of the user's may assign something of this name."""
        if name in self._assigned or self.users_mention_any(_SETTING_BY_TEXT):
            return True
        return name in self._asked and self.users_mention("setattr")

    def counts(self, name: str) -> bool:
        """Whether code of the user's counts in something of this name."""
        return name in self._counted

    def looks_up(self, name: str) -> bool:
        """Whether code may get items from a container of this name; always true without a name."""
        return not name or name in self._looked_up

    def counts_items(self, name: str) -> bool:
        """Whether code of the user's counts in items of a container of this name."""
        return name in self._items_counted

    def assigns_items(self, name: str) -> bool:
        """Whether code of the user's assigns items of a container of this name."""
        return name in self._items_assigned

    def uses(self, name: str) -> bool:
        """Whether code reached so far has this name in it."""
        return name in self._used

    def mentions(self, name: str) -> bool:
        """Whether code reached so far may get an attribute of this name."""
        if self._all or name in self._used or name in self._exact:
            return True
        return self._fragments.are_in(name)

    def mentions_global(self, name: str) -> bool:
        """The same of a module's attribute, where ``"_" + name`` would be half of a library's."""
        if self._all or name in self._used or name in self._exact:
            return True
        return self._fragments.name(name)

    def asks(self, holder: object) -> bool:
        """Whether code may look for attributes of an object: it's a user's, or a function does."""
        if self._functions_ask or self._asked:
            return True
        return bool(self._asking.intersection(type(holder).__mro__))

    @property
    def asked_for(self) -> frozenset[str]:
        """Names that some code may look for as text, to see whether they are there."""
        texts = (text for text in self._fragments if text.isidentifier())
        return frozenset((*texts, *self._tried, *self._asked))

    def _add(self, names: Names) -> None:
        self._used |= names.used
        self._read |= names.read
        self._fragments.add(names.fragments)
        if "__globals__" in names.used:
            self.texts_of_globals |= names.fragments
        self._add_assigned(names)

    def _add_assigned(self, names: Names) -> None:
        self._assigned |= names.assigned
        self._counted |= names.counted
        self._items_assigned |= names.items_assigned
        self._items_counted |= names.items_counted
        self._looked_up |= names.looked_up
        self.keys_assigned |= names.keys_assigned

    def _add_methods(self, kind: type) -> None:
        for name, member in list(vars(kind).items()):
            function = member.fget if isinstance(member, property) else member
            function = getattr(function, "__func__", function)
            code = getattr(function, "__code__", None)
            if name not in _NOT_RUN and isinstance(code, types.CodeType):
                self._methods.setdefault(name, []).append(code)
                if names_of(code).fragments and not module_of(kind).startswith("torch."):
                    self._asking.add(kind)


# A walk through a large library reads thousands of code objects, and the next one reads them again.
@functools.lru_cache(maxsize=65536)
def names_of(code: types.CodeType) -> Names:
    """The names that a code object uses."""
    used = {*code.co_names, *code.co_freevars, *code.co_cellvars}
    instructions = [item for item in dis.get_instructions(code) if item.opname not in _SKIPPED]
    read = set(read_in(instructions, used))
    found = [item for item in instructions if item.opname in _OUTSIDE]
    loaded = {str(item.argval) for item in found if item.opname.startswith("LOAD_")}
    stored = {str(item.argval) for item in found if item.opname in _STORES}
    imported = imported_in(instructions)
    if used & _IMPORTING:
        imported |= {text for text in code.co_consts if isinstance(text, str) and is_dotted(text)}
    tried = set(used) if catches(code, instructions) else set()
    if used & FORMATTING:
        read |= names_in_texts(code.co_consts)
    matched, matches_places = matched_in(code, instructions)
    used |= read | matched
    read |= matched
    tried |= matched
    # What is set and deleted leaves no trace where it wasn't there.
    tried |= {str(item.argval) for item in instructions if item.opname == "DELETE_ATTR"}
    sees_all = looks_at_all(used, instructions)
    assigned, counted = assigned_in(instructions, used)
    assigned |= set_by_text(code, used)
    used |= assigned
    items_assigned, items_counted = items_in(instructions, used)
    looked_up = {*looked_up_in(instructions, used)}
    keys = {*keys_in(instructions)}
    identity = bool(loaded & _BY_IDENTITY) or compares_identity(instructions)
    fragments = names_among(code.co_consts) if used & BY_NAME else set[str]()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner = names_of(constant)
            used |= inner.used
            read |= inner.read
            fragments |= inner.fragments
            loaded |= inner.loaded
            stored |= inner.stored
            imported |= inner.imported
            tried |= inner.tried
            assigned |= inner.assigned
            counted |= inner.counted
            items_assigned |= inner.items_assigned
            items_counted |= inner.items_counted
            looked_up |= inner.looked_up
            keys |= inner.keys_assigned
            identity |= inner.compares_identity
            matched |= inner.matched
            matches_places |= inner.matches_places
            sees_all |= inner.sees_all
    kinds = (used, read, fragments, loaded, stored, imported, tried, assigned, counted)
    items = map(frozenset, (items_assigned, items_counted, looked_up, keys))
    return Names(
        *map(frozenset, kinds),
        *items,
        compares_identity=identity,
        matched=frozenset(matched),
        matches_places=matches_places,
        sees_all=sees_all,
    )
