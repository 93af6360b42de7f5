"""Writes the reader of an environment: each object that it needs becomes a variable."""

from __future__ import annotations

import builtins
import functools
import operator
import types
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot.aot.closure import children
from funcaot.aot.closure.alike import is_plain
from funcaot.aot.closure.children import CONTAINERS, DICTIONARIES, MODULE_DICTIONARIES, MODULE_HOOKS
from funcaot.aot.closure.constants import fingerprint, is_setting, needs_fingerprint
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.hidden.bound import METHODS
from funcaot.aot.closure.look import dictionary_of, in_slot, lacks, module_of, name_of, own_names
from funcaot.aot.closure.named.code_names import PROTOCOL
from funcaot.aot.closure.ran import is_library
from funcaot.aot.closure.where import path_of, text_of
from funcaot.aot.graph.source import Source
from funcaot.aot.reader import keys
from funcaot.aot.reader.reader_code import Explanation, Line, built
from funcaot.aot.reader.reader_modules import write_modules
from funcaot.aot.reader.reader_untouched import asks_classes, unless_untouched, without_classes
from funcaot.aot.reader.told import shown
from funcaot.aot.state.state import Bag

LARGE = 32
_MADE_OF = (functools.partial, *METHODS)


class EnvironmentWriter:
    """Writes what reads and compares an environment.

    Attributes:
        checks: What is compared, a line each.
        dictionaries: The variable of a module's attributes, by the module's ``id``.
    """

    def __init__(self, environment: Environment, root: Any) -> None:
        """Write nothing yet.

        Args:
            environment: What was reached.
            root: The function, and the objects among its arguments.
        """
        self.environment = environment
        self.source = Source()
        self.variables = {id(root): "root", id(root[0]): "f"}
        self.checks: list[str] = []
        self.dictionaries: dict[int, str] = {}
        self._lines = [Line("f = root[0]")]
        self._classes: list[type] = []

    # --- pieces ---------------------------------------------------------------------------------

    def line(self, text: str, path: str = "") -> None:
        """A statement, and what it reads, in words."""
        self._lines.append(Line(text, path=path))

    def require(self, condition: str, says: str, change: str = "") -> None:
        """A condition without which the program doesn't fit, and what it compares, in words.

        What has changed may be told in other words, by an expression.
        """
        self._lines.append(Line(condition, says, change))
        self.checks.append(says)

    def at(self, place: Place) -> str:
        """The expression that reads a place."""
        constants = [self.source.constant(thing, "c") for thing in place.constants]
        parent = self.variable(place.parent)
        access = place.access
        if place.parent in self.dictionaries:
            access = _through_dictionary(access, self.dictionaries[place.parent])
        return access.format(*constants, parent=parent)

    def variable(self, identity: int) -> str:
        """The variable of an object, checked to be what it was."""
        chain = []
        while identity not in self.variables:
            chain.append(identity)
            places = self.environment.places[identity]
            if not places or identity in self.environment.anchors:
                break
            identity = places[0].parent
        for needed in reversed(chain):
            self._define(needed)
        return self.variables[chain[0] if chain else identity]

    def _define(self, identity: int) -> None:
        environment = self.environment
        name = self.source.name("o")
        anchor = environment.anchors.get(identity)
        if anchor is None:
            expression = self.at(environment.places[identity][0])
        else:
            expression = anchor[0].format(self.source.constant(anchor[1], "a"))
        self.variables[identity] = name
        self.line(f"{name} = {expression}", self.says(identity))
        target = environment.objects[identity]
        self._check(name, target)
        scripted = isinstance(target, torch.jit.ScriptModule)
        if isinstance(target, torch.nn.Module) and not scripted:
            # To look into a dictionary is faster than to look up attributes.
            self.dictionaries[identity] = self.source.name("d")
            self.line(f"{self.dictionaries[identity]} = {name}.__dict__")

    def says(self, identity: int) -> str:
        """An object in words: the path to it."""
        return path_of(self.environment, identity)

    def _check(self, name: str, target: Any) -> None:
        if id(target) in self.environment.namespaces:
            return
        if isinstance(target, CONTAINERS):
            self._check_container(name, target)
            return
        if isinstance(target, types.MethodType | weakref.ref):  # made anew at each access
            return
        path, kind_name = self.says(id(target)), type(target).__name__
        if type(target) in _MADE_OF or isinstance(target, children.VIEWS):
            # What it is made of is compared.
            kind = self.source.constant(type(target), "T")
            self.require(f"type({name}) is {kind}", f"{path} is a {kind_name}")
            return
        change = f"told_thing({path!r}, {kind_name!r}, {name})"
        if id(target) in self.environment.alike or isinstance(target, torch.Tensor):
            # What code reads of it is compared; of tensors also, where code asks, which are one.
            kind = self.source.constant(type(target), "T")
            self.require(f"type({name}) is {kind}", f"{path} is a {kind_name}", change)
            return
        says = f"{path} is the same {kind_name}"
        try:
            reference = self.source.constant(weakref.ref(target), "ref")
            # Of an object that is gone, the reference is None, as may be what came in its place.
            self.require(f"{reference}() is {name} is not None", says, change)
        except TypeError:
            if children.slots_of(target) and not is_plain(type(target)):  # all of it is compared
                kind = self.source.constant(type(target), "T")
                self.require(f"type({name}) is {kind}", says, change)
            else:
                self.require(f"{name} is {self.source.constant(target)}", says, change)

    def _check_container(self, name: str, target: Any) -> None:
        """What kind of container it is, how long, and which keys it has in which order."""
        kind = self.source.constant(type(target), "T")
        size = f"len({name})"
        if not children.is_exact(target):
            measure = self.source.constant(children.base_of(target).__len__, "length")
            size = f"{measure}({name})"
        length = children.length(target)
        path = self.says(id(target))
        condition = f"type({name}) is {kind} and {size} == {length}"
        change = f"told_container({path!r}, {type(target).__name__!r}, {length}, {name})"
        if is_setting(target) or not length:
            self.require(condition, f"{path} is a {type(target).__name__} of {length}", change)
            return
        if isinstance(target, DICTIONARIES) and children.is_exact(target):
            found = children.items_of(target)
            if all(map(is_setting, found)):
                known = self.source.constant(found, "keys")
                condition += f" and [*{name}] == {known}"
                if type(target) is dict and length >= LARGE:
                    condition = unless_untouched(self, name, target, condition)
        condition += self._objects_among(name, target)
        says = f"{path} is a {type(target).__name__} of {length}, and its keys"
        self.require(condition, says, change)

    def _objects_among(self, name: str, target: Any) -> str:
        """The condition that the objects in a set, or among a dictionary's keys, are the same."""
        compared, known, prefix = keys.are_keys, keys.known_keys(target), "keys"
        if isinstance(target, children.SETS):
            compared, known, prefix = keys.are_items, keys.known_items(target), "ids"
        elif not isinstance(target, DICTIONARIES) or not any(known):
            return ""
        constant = self.source.constant
        return f" and {constant(compared, 'are')}({constant(known, prefix)}, {name})"

    def thing(self, bag: Bag) -> str:
        """The expression of something to store in, whatever is in it now."""
        parent = self.variables.get(bag.holder)
        if parent is None and bag.access == "{parent}":
            places = self.environment.places[bag.holder]
            return self.at(places[0]) if places else self.variable(bag.holder)
        return bag.access.format(parent=parent or self.variable(bag.holder))

    # --- what is compared -----------------------------------------------------------------------

    def write_checks(self) -> None:
        """Everything but tensors."""
        environment = self.environment
        for place, value in environment.settings:
            expression, began = self.at(place), len(self._lines)
            self.require_setting(expression, value, text_of(environment, place))
            if asks_classes(place):
                self._note_classes(place.parent, began)
        write_modules(self)
        for place, value in environment.identities:
            known = self._constant(value)
            path, kind = text_of(environment, place), type(value).__name__
            change = f"told_thing({path!r}, {kind!r}, {self.at(place)})"
            self.require(f"{self.at(place)} is {known}", f"{path} is the same {kind}", change)
        for place, array in environment.arrays:
            known = self.source.constant(fingerprint(array), "array")
            compare = self.source.constant(fingerprint, "contents")
            says = f"the contents of {text_of(environment, place)}"
            self.require(f"{compare}({self.at(place)}) == {known}", says)
        self._write_objects()
        self._write_absent()

    def _note_classes(self, identity: int, began: int) -> None:
        """What is compared from a line on is what lookup finds in a class, which stays this one."""
        if identity in self.environment.alike:
            return
        self._classes.append(self.environment.objects[identity])
        self._lines[began:] = [line._replace(of_classes=True) for line in self._lines[began:]]

    def _constant(self, value: Any) -> str:
        """What stands for a thing that is compared by identity, which isn't kept alive by it."""
        if not isinstance(value, type) and not is_library(module_of(value)):
            try:
                return f"{self.source.constant(weakref.ref(value), 'ref')}()"
            except TypeError:
                pass
        return self.source.constant(value)

    def require_setting(self, expression: str, value: Any, says: str) -> None:
        """A setting is the value that it was."""
        was = shown(value)
        if value is None or value is True or value is False:
            change = f"told_value({says!r}, {was!r}, {expression})"
            self.require(f"{expression} is {value}", f"{says} is {value}", change)
            return
        name = self.source.name("s")
        self.line(f"{name} = {expression}", says)
        kind = self.source.constant(type(value), "T")
        if needs_fingerprint(value):
            take = self.source.constant(fingerprint, "fingerprint")
            known = self.source.constant(fingerprint(value), "known")
            condition = f"type({name}) is {kind} and {take}({name}) == {known}"
            condition = self._unless_identical(name, value, kind, condition)
        elif type(value) is dict:
            condition = self._of_dictionary(name, dict(value))
        elif type(value) in (list, tuple):
            known = self.source.constant(value if type(value) is tuple else [*value])
            kinds = self.source.constant([*map(type, value)], "kinds")
            condition = (
                f"type({name}) is {kind} and [*map(type, {name})] == {kinds} and {name} == {known}"
            )
        else:
            known = self.source.constant(value)
            condition = f"{name} is {known} or type({name}) is {kind} and {name} == {known}"
        if type(value) is dict and len(value) >= LARGE:
            condition = unless_untouched(self, name, value, condition)
        change = f"told_value({says!r}, {was!r}, {name})"
        self.require(condition, f"{says} is {was}", change)

    def _of_dictionary(self, name: str, known: dict[str, Any]) -> str:
        keys = self.source.constant([*known], "keys")
        kinds = self.source.constant([*map(type, known.values())], "kinds")
        return (
            f"type({name}) is dict and [*{name}] == {keys} and [*map(type, {name}.values())] == "
            f"{kinds} and {name} == {self.source.constant(known)}"
        )

    def _unless_identical(self, name: str, value: Any, kind: str, condition: str) -> str:
        """A condition that is looked at only if a sequence holds other objects than before.

        What it holds can't change by itself: it is a constant, and so are its items.
        """
        if type(value) is tuple:
            return f"{name} is {self.source.constant(value)} or {condition}"
        if type(value) is not list:
            return condition
        known = self.source.constant([*value], "items")
        same, every = (self.source.constant(f, f.__name__) for f in (operator.is_, all))
        return (
            f"type({name}) is {kind} and len({name}) == {len(value)} and "
            f"{every}(map({same}, {name}, {known})) or {condition}"
        )

    def _write_objects(self) -> None:
        """Objects that code reads are the ones that they were, wherever it reads them.

        Functions have the code that they had, and instances of user's classes their class.
        """
        environment = self.environment
        for identity, target in list(environment.objects.items()):
            if isinstance(target, torch.Tensor):
                continue
            if identity in environment.namespaces or is_setting(target):
                continue
            read = [p for p in environment.places[identity] if environment.is_read(p)]
            if not read and identity not in environment.anchors:
                continue
            name = self.variable(identity)
            if isinstance(target, types.FunctionType) and (
                target.__name__ in PROTOCOL or environment.may_run(target.__code__)
            ):
                code = self.source.constant(target.__code__, "code")
                self.require(f"{name}.__code__ is {code}", f"the code of {self.says(identity)}")
                self._require_defaults(name, target, self.says(identity))
            # What was found otherwise isn't known yet to be what the first place holds.
            first = 0 if identity in environment.anchors else 1
            for place in environment.places[identity][first:]:
                if not environment.is_read(place):
                    continue
                if place.access != "type({parent})":
                    says = f"{text_of(environment, place)} is {self.says(identity)}"
                    self.require(self._is(self.at(place), name, target), says)
                else:
                    at = self.variable(place.parent)
                    self.require(f"type({at}) is {name}", f"the class of {self.says(place.parent)}")

    def _is(self, at: str, name: str, target: Any) -> str:
        """The condition under which another place holds a thing; a method is made anew there."""
        if not isinstance(target, (types.MethodType, *METHODS)):
            return f"{at} is {name}"
        kind = self.source.constant(type(target), "T")
        return f"(type({at}) is {kind} and {at} == {name})"

    def _require_defaults(self, name: str, target: types.FunctionType, says: str) -> None:
        """How many arguments have defaults; what these are is compared like anything else."""
        count = len(target.__defaults__ or ())
        if count:
            self.require(f"len({name}.__defaults__) == {count}", f"the defaults of {says}")
        if target.__kwdefaults__:
            keys = self.source.constant({*target.__kwdefaults__}, "keys")
            self.require(
                f"{name}.__kwdefaults__.keys() == {keys}", f"the keyword defaults of {says}"
            )

    def _write_absent(self) -> None:
        """Names that code looks for, and that aren't there; or that would hide what is there."""
        environment = self.environment
        self._write_builtins({name for found in environment.missing.values() for name in found})
        for identity, names in environment.missing.items():
            known = self.source.constant(frozenset(names), "names")
            self.require(
                f"{self.variable(identity)}.keys().isdisjoint({known})",
                f"none of {shown(sorted(names))} is a global of {self.says(identity)}",
            )
        for identity, parts in environment.parts.items():
            texts = self.source.constant(tuple(sorted(parts)), "parts")
            look = self.source.constant(children.named_with, "named_with")
            known = children.named_with(environment.objects[identity], parts)
            known = self.source.constant(known, "names")
            says = f"the globals of {self.says(identity)} that have {shown(sorted(parts))} in them"
            self.require(f"{look}({self.variable(identity)}, {texts}) == {known}", says)
        for identity, holder in list(environment.objects.items()):
            own = dictionary_of(holder)
            if isinstance(holder, torch.Tensor) or identity in environment.unread:
                continue  # It may be another one in each call, or no code looks at it.
            if isinstance(holder, type | types.ModuleType):
                asked = environment.names.asked_for | self._made_up(holder)
                self._write_absent_by_lookup(identity, holder, [*asked])
                whole = environment.names.reads_everything or (
                    isinstance(holder, type) and environment.names.reads_class(holder)
                )
                if whole and not is_library(_module_of(holder)):
                    known = self.source.constant(own_names(holder), "names")
                    look = self.source.constant(own_names, "own_names")
                    says = f"the names of the attributes of {self.says(identity)}"
                    self.require(f"{look}({self.variable(identity)}) == {known}", says)
                continue
            unset = [name for name in children.slots_of(holder) if not in_slot(holder, name)]
            whole = environment.names.reads_own(holder)
            unset = [name for name in unset if whole or environment.names.mentions(name)]
            self._write_absent_by_lookup(identity, holder, unset)
            if own is not None:
                self._write_absent_of(identity, holder, own)

    def _write_builtins(self, names: set[str]) -> None:
        """Python's own functions that code calls may be replaced, too."""
        own: dict[str, Any] = vars(builtins)
        used = sorted(name for name in names if name in own)
        if not used:
            return
        at = self.source.constant(own, "builtins")
        known = [f"{at}[{name!r}] is {self.source.constant(own[name])}" for name in used]
        condition = unless_untouched(self, at, own, " and ".join(known))
        self.require(condition, f"Python's {shown(used)}")

    def _write_absent_by_lookup(self, identity: int, holder: Any, asked: Sequence[str]) -> None:
        """The same for what has no dictionary of its own, or inherits from others."""
        if is_library(_module_of(holder)):
            return
        names = [name for name in sorted(asked) if lacks(holder, (name,))]
        if names and isinstance(holder, types.ModuleType) and lacks(holder, ("__getattr__",)):
            names.append("__getattr__")
        if names:
            known = self.source.constant(tuple(names), "names")
            look = self.source.constant(lacks, "lacks")
            says = f"{self.says(identity)} has none of {shown(names)}"
            at, began = self.variable(identity), len(self._lines)
            change = f"told_absent({self.says(identity)!r}, {known}, {at})"
            self.require(f"{look}({at}, {known})", says, change)
            if isinstance(holder, type):
                self._note_classes(identity, began)

    def _write_absent_of(self, identity: int, holder: Any, own: dict[str, Any]) -> None:
        if isinstance(holder, torch.jit.ScriptModule):
            return
        names = self.environment.names
        module = isinstance(holder, torch.nn.Module)
        parts = MODULE_DICTIONARIES if module else ()
        asked = names.asked_for if names.asks(holder) else frozenset()
        hidden = {
            name
            for _, kind in children.users_classes(holder)
            for name in vars(kind)
            if names.mentions(name) and not name.startswith("__")
        }
        if module:
            hidden.add("forward")
        hidden |= self._made_up(holder)
        # Ops of torch keep what they found out when they first ran.
        everything = names.reads_everything or names.reads_own(holder)
        everything = everything or (names.sees_all and isinstance(holder, children.BY_ALL))
        if everything and module_of(type(holder)) != "torch._ops":
            self._write_keys(identity, [own, *(own[part] for part in parts)], parts)
        here = {*own, *(name for part in parts for name in own.get(part, ()))}
        absent = (asked | hidden) - here - self.environment.set_first(holder)
        if not absent:
            return
        at = self.variable(identity)
        dictionary = self.dictionaries.get(identity, f"{at}.__dict__")
        says = f"{self.says(identity)} has none of its own of {shown(sorted(absent))}"
        if len(absent) <= 2:
            conditions = [f"{name!r} not in {dictionary}" for name in sorted(absent)]
        else:
            known = self.source.constant(frozenset(absent), "names")
            conditions = [f"{dictionary}.keys().isdisjoint({known})"]
        for part in parts if asked - here else ():
            known = self.source.constant(frozenset(asked - here), "names")
            conditions.append(f"{dictionary}[{part!r}].keys().isdisjoint({known})")
        change = f"told_absent({self.says(identity)!r}, {sorted(absent)!r}, {at})"
        self.require(" and ".join(conditions), says, change)

    def _made_up(self, holder: Any) -> frozenset[str]:
        """Names that a ``__getattr__`` of the user's may answer; an attribute comes to hide it."""
        if isinstance(holder, types.ModuleType):
            answers = "__getattr__" in holder.__dict__
        else:
            kinds = [type(holder), *([holder] if isinstance(holder, type) else [])]
            found = (each for kind in kinds for _, each in children.classes_of(kind))
            answers = any("__getattr__" in vars(each) for each in found)
        names = self.environment.names.of_users if answers else ()
        return frozenset(name for name in names if not name.startswith("__"))

    def _write_keys(
        self, identity: int, dictionaries: Sequence[dict[str, Any]], parts: Sequence[str]
    ) -> None:
        """All names of an object's attributes, for code that reads whatever there is."""
        at = f"{self.variable(identity)}.__dict__"
        says = f"the names of the attributes of {self.says(identity)}"
        for text, names in zip(
            (at, *(f"{at}[{part!r}]" for part in parts)), dictionaries, strict=True
        ):
            known = self.source.constant([*names], "keys")
            self.require(f"[*{text}] == {known}", says)

    # --- the functions --------------------------------------------------------------------------

    def build(self, values: Sequence[str]) -> Callable[..., Any]:
        """The function that reads: the values of these expressions, or None."""
        result = f"({''.join(f'{value}, ' for value in values)})"
        results = (result, lambda says: "None", "None")
        namespace, lines = without_classes(self.source.namespace, self._lines, self._classes)
        return built(namespace, lines, "read(root)", results)

    def explanation(self) -> Explanation:
        """What says what isn't as it was; it keeps nothing of the environment alive."""
        return Explanation(self.source.namespace, tuple(self._lines))


def _through_dictionary(access: str, own: str) -> str:
    """Source text that reads an attribute's dictionary where it would look up the attribute."""
    for name in (*MODULE_DICTIONARIES, *MODULE_HOOKS):
        access = access.replace(f"{{parent}}.{name}[", f"{own}[{name!r}][")
    return access.replace("{parent}.__dict__[", f"{own}[")


def _module_of(thing: Any) -> str:
    """The name of the module that something is or was made in."""
    if isinstance(thing, types.ModuleType):
        return name_of(thing)
    return module_of(thing if isinstance(thing, type) else type(thing))
