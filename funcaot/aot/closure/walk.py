"""Walks from a function to what it can reach, kind by kind of object.

The tracker of state walks before and while the function is captured, to see what it changes; the
reader walks after it, with the code that ran, to see what the program depends on.
"""

from __future__ import annotations

import argparse
import enum
import logging
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch

from funcaot._torch.tensors.sizes.shapes import SYMBOLIC_NUMBERS
from funcaot._torch.tracing.attributes import attributes_of
from funcaot._torch.tracing.seen_classes import is_added, meant_by
from funcaot.aot.closure import children
from funcaot.aot.closure.children import CONTAINERS, Step
from funcaot.aot.closure.class_steps import of_class, of_tensor_class
from funcaot.aot.closure.constants import is_scalar, is_setting
from funcaot.aot.closure.contents import has_contents
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.look import (
    behind,
    dictionary_of,
    is_proxy,
    logged_levels,
    module_of,
    name_of,
)
from funcaot.aot.closure.named.code_names import PROTOCOL, ReadNames, names_of
from funcaot.aot.closure.named.given import Given
from funcaot.aot.closure.named.imports import in_package, is_dotted
from funcaot.aot.closure.named.patterns import looked_for
from funcaot.aot.closure.process import are_named, asked_for, named_settings
from funcaot.aot.closure.ran import RANDOM_STATES, Ran, is_library, is_put_there, is_users
from funcaot.aot.closure.running.closures import made_in
from funcaot.aot.closure.waiting import Waiting
from funcaot.base.python_modules import is_pythons

_LIMIT = 200_000
_NOT_FOLLOWED = ("__", "_funcaot_")
# Code calls what is in the one by its own name; in the other are warnings that were given.
_PYTHONS_OWN = ("__builtins__", "__warningregistry__")
# Code that asks a logger decides by the answer; what only logs doesn't.
_LEVELS = ("isEnabledFor", "getEffectiveLevel")
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace, enum.Enum, *children.WRAPPED)


def scan(root: Any) -> Environment:
    """Walk what a function can reach, breadth first, whatever code may run."""
    walk = Walk(root)
    walk.go()
    return walk.found


def scan_what_ran(
    root: Any,
    ran: Ran,
    texts: Iterable[str] = (),
    given: Given | None = None,
    *,
    assigned_too: bool = False,
) -> Environment:
    """Walk what the code that ran can have read.

    Args:
        root: The function, and objects among its arguments.
        ran: The code.
        texts: Strings among the arguments, which may be names of attributes.
        given: What it gave new values; None if nobody looked.
        assigned_too: Whether settings stay that it only gives values, as a walk before it finds.
    """
    names = ReadNames.of(ran.users, ran.libraries)
    names.add_run(ran.asked, ran.whole)
    names.reads_states = ran.reads_states
    if names.is_dynamic:
        names.add_exact(texts)
    while True:
        walk = Walk(root, names, ran)
        walk.go()
        walk.follow_rest()
        texts = walk.strings() if names.is_dynamic else set()
        new = names.add_asked(looked_for(names, walk.found.objects.values(), walk.strings))
        if children.reads_unseen(walk.found) and not names.reads_everything:
            names.read_all()
            continue
        texts |= walk.names_of_getters() | _looked_into(walk, given)
        if not names.add_exact(texts) and not new:
            break
    found = walk.found

    def matters(place: Place, value: Any) -> bool:
        if found.is_read(place):
            return True
        if given is None or place.parent in found.unread or found.is_set_first(place):
            return False
        return given.may_hold(place.parent, place.name, value, names)

    found.settings = [item for item in found.settings if assigned_too or matters(*item)]
    found.identities = [item for item in found.identities if matters(*item)]
    found.arrays = [item for item in found.arrays if found.is_read(item[0])]
    return found


def _looked_into(walk: Walk, given: Given | None) -> set[str]:
    """Names of containers in which code does more than it seems to, which is to add and count."""
    found = walk.found
    if given is None:
        return set()
    containers = {i for i, thing in found.objects.items() if found.may_hold_items(thing, given)}
    return {name for i in containers | given.items_made_of_old for name in found.named_above(i)}


class Walk:
    """A walk from a function to what its code can reach.

    Of a module, only what some code names is looked at: the rest is neither used nor small.

    Attributes:
        found: What was reached so far.
    """

    def __init__(
        self,
        root: Any,
        names: ReadNames | None = None,
        ran: Ran | None = None,
        *,
        waits: bool = False,
    ) -> None:
        """Start at a root.

        Args:
            root: The function, and objects among its arguments.
            names: The names that are read; by default those of all code that is reached.
            ran: The code that ran; by default any may.
            waits: Whether `add_code` is called before code of the user's runs: globals of functions
                wait for that, as a library's functions lead to all others of it.
        """
        self.found = Environment()
        if names is not None:
            self.found.names = names
        self._ran = self.found.ran = ran
        self.found.objects[id(root)] = root
        self.found.places[id(root)] = []
        self._pending = deque([root])
        self._modules: dict[int, types.ModuleType] = {}
        self._looked_at: set[tuple[int, str]] = set()
        self._followed: dict[types.CodeType, list[types.FunctionType]] = {}
        self._waiting = Waiting() if waits else None
        self._left_out: dict[str, list[torch.nn.Module]] = {}
        self._passed: set[int] = set()  # Globals that something holds as a dictionary.

    def go(self) -> None:
        """Walk until nothing new is reached."""
        found = self.found
        while len(found.objects) < _LIMIT:
            if not self._pending:
                found.names.close()
                self._look_into_modules()
                self._look_at_left_out()
                if not self._pending:
                    return
            holder = self._pending.popleft()
            waits = self._waiting is not None and self._waiting.waits(holder)
            if self._ran is None and not waits:
                found.names.add(holder)
                if isinstance(holder, torch.nn.Module):
                    found.names.close()
            if isinstance(holder, types.ModuleType):
                self._modules[id(holder)] = holder
            else:
                self._visit(holder, follows=not waits)

    def add_code(self, code: types.CodeType, namespace: dict[str, Any]) -> None:
        """Reach what a code object names among its globals, and walk on."""
        names = names_of(code)
        self.found.names.add_names(names)
        waiting = self._waiting
        for function in () if waiting is None else waiting.started(code, names.used, namespace):
            self.found.names.add(function)
            self._reach_globals(function)
        for module in names.imported:
            self._look_into_import(module, namespace)
        if "__globals__" in names.used:
            self._look_into_others(code)
        self._anchor_globals(namespace)
        self._look_into_globals(namespace, code)
        self.go()

    def follow_rest(self) -> None:
        """Reach what code reads that ran, and that nothing in the environment leads to.

        Its globals are those that it ran with. A function is looked for that has its closure, if
        it has one and wasn't made by code that ran.
        """
        if self._ran is None:
            return
        made = made_in(self._ran.codes)
        for code, namespace in self._ran.users.items():
            if code.co_freevars and code not in made:
                known = self._followed.get(code, ())
                for function in self._ran.closures.functions(code, known, self._ran.users):
                    self._start_at(function, "{0}()", weakref.ref(function))
            if code in self._followed:
                continue
            self._anchor_globals(namespace)
            self._look_into_globals(namespace, code)
        for code, namespace in self._ran.users.items():
            names = names_of(code)
            for module in names.imported:
                self._look_into_import(module, namespace)
            if names.imports_by_text:
                for module in (str(namespace.get("__name__")), *filter(is_dotted, self.strings())):
                    self._look_into_import(module, namespace)
        root, mentions = next(iter(self.found.objects)), self.found.names.users_mention_any
        for access, constant, value in (*named_settings(mentions), *asked_for(self._ran.variables)):
            self.found.settings.append((Place(root, access, "", (constant,)), value))
        for kind in self._ran.classes:
            self._anchor_class(kind)
        for owner in self._ran.owners:
            self._start_at(owner, "{0}()", weakref.ref(owner))
        if self._ran.variables.all:
            self._start_at(os.environ, "{0}.environ", os)
        self.go()

    def strings(self) -> set[str]:
        """Texts that were reached: names of attributes, for code that gets them by name."""
        found: set[str] = set()
        for _, value in self.found.settings:
            values = children.items_of(value) if isinstance(value, CONTAINERS) else [value]
            if isinstance(value, children.DICTIONARIES):
                values += list(value.values())
            found.update(item for item in values if type(item) is str)
        for thing in self.found.objects.values():
            if isinstance(thing, dict) and id(thing) not in self.found.namespaces:
                found.update(key for key in children.items_of(thing) if type(key) is str)
        return found

    def names_of_getters(self) -> set[str]:
        """Attributes that objects get which are made for that."""
        return {name for _, thing in self.found.identities for name in children.names_in(thing)}

    def _anchor(self, thing: Any, text: str, constant: Any) -> None:
        if id(thing) not in self.found.objects:
            self.found.objects[id(thing)] = thing
            self.found.places.setdefault(id(thing), [])
            self.found.anchors[id(thing)] = (text, constant)

    def _start_at(self, thing: Any, text: str, constant: Any) -> None:
        self._anchor(thing, text, constant)
        self._pending.append(thing)

    def _anchor_globals(self, namespace: dict[str, Any]) -> None:
        module = sys.modules.get(str(namespace.get("__name__")))
        if module is not None and vars(module) is namespace:
            self._anchor(namespace, "{0}().__dict__", weakref.ref(module))
        else:
            self._anchor(namespace, "{0}", namespace)
        self.found.namespaces.setdefault(id(namespace), set())

    def _anchor_class(self, kind: type) -> None:
        """Reach the class of a tensor, whatever else leads to it."""
        if id(kind) not in self.found.objects:
            self._start_at(kind, "{0}()", weakref.ref(kind))
        for step in of_tensor_class(kind):
            self._take(id(kind), step)

    def _visit(self, holder: Any, *, follows: bool) -> None:
        found = self.found
        if self._ran is not None and are_named(holder, self._ran.variables, found.names):
            return
        if isinstance(holder, type):
            self._visit_class(holder)
            return
        if isinstance(holder, types.FunctionType):
            for step in () if self._ran is None else children.of_its_own(holder):
                if found.names.users_mention(step.name):
                    self._take(id(holder), step)
            if self._ran is not None and holder.__code__ not in self._ran.users:
                self._visit_what_did_not_run(holder)
                return
            self._followed.setdefault(holder.__code__, []).append(holder)
            if follows:
                self._reach_globals(holder)
        elif isinstance(holder, torch.nn.Module):
            for name in children.left_out(holder, found.names):
                self._left_out.setdefault(name, []).append(holder)
        always = _is_of_a_library(holder)
        kept = None if self._ran is None else self._ran.kept
        for step in children.children(holder, found.names, kept):
            if self._ran is not None and always:
                # Its own code, which isn't looked at, reads it.
                step = step._replace(name="")
            if self._ran is None or not step.name or found.names.mentions(step.name):
                self._take(id(holder), step)
        if self._ran is None:
            for step in _of_class_of(holder):
                self._take(id(holder), step)
        elif any(True for _ in children.users_classes(holder)):
            self._take(id(holder), Step("type({parent})", "", type(holder)))

    def _visit_what_did_not_run(self, function: types.FunctionType) -> None:
        """Of a function whose code isn't known to have run: what was put on it.

        A library's wrapper runs what it closes over, such as torch's of ``no_grad``.
        """
        for step in children.of_attributes(function):
            if self.found.names.mentions(step.name):
                self._take(id(function), step)
        if function.__name__ in PROTOCOL:
            # It runs later, in a derivative.
            for step in children.of_defaults(function):
                self._take(id(function), step)
        if is_library(str(function.__globals__.get("__name__"))):
            for step in children.of_closure(function):
                self._take(id(function), step._replace(name=""))

    def _visit_class(self, kind: type) -> None:
        if self._ran is None:
            for step in children.entries(
                {
                    name: value
                    for name, value in vars(kind).items()
                    if not name.startswith(_NOT_FOLLOWED)
                },
                "{parent}.__dict__",
                named=True,
            ):
                if not isinstance(step.value, types.FunctionType):
                    self._take(id(kind), step)
            return
        for step in of_class(kind, self.found.names, self._ran.codes):
            self._take(id(kind), step)

    def _reach_globals(self, function: types.FunctionType) -> None:
        found, namespace = self.found, function.__globals__
        found.objects.setdefault(id(namespace), namespace)
        found.namespaces.setdefault(id(namespace), set())
        place = Place(id(function), "{parent}.__globals__")
        found.places.setdefault(id(namespace), []).append(place)
        self._look_into_globals(namespace, function.__code__)
        if self._ran is not None:
            for module in names_of(function.__code__).imported:
                self._look_into_import(module, namespace)

    def _look_into_globals(self, namespace: dict[str, Any], code: types.CodeType) -> None:
        identity, names = id(namespace), children.globals_of(code)
        texts = {*self.found.names.texts_of_globals}
        if "globals" in names_of(code).used:
            texts |= names_of(code).fragments
        if identity in self._passed:
            texts |= children.texts_in(code)
        if texts:
            self.found.parts.setdefault(identity, set()).update(texts)
            names |= {*filter(str.isidentifier, texts), *children.named_with(namespace, texts)}
        known = self.found.namespaces.setdefault(identity, set())
        for name in sorted(names - known):
            known.add(name)
            if name in namespace and not is_added(namespace, name):
                thing = meant_by(namespace[name])
                self._reach(Place(identity, f"{{parent}}[{name!r}]", name), thing)
            else:
                self.found.missing.setdefault(identity, set()).add(name)

    def _look_into_others(self, code: types.CodeType) -> None:
        """Look into all globals once more, for code that gets other functions' by text."""
        for identity in list(self.found.namespaces):
            self._look_into_globals(self.found.objects[identity], code)

    def _look_into_import(self, name: str, namespace: dict[str, Any]) -> None:
        for full in in_package(name, str(namespace.get("__package__") or "")):
            module = sys.modules.get(full)
            if module is not None and id(module) not in self.found.objects:
                self._start_at(module, f"{{0}}[{full!r}]", sys.modules)

    def _look_into_modules(self) -> None:
        used = (names := self.found.names).of_users | names.asked_for
        for identity, module in list(self._modules.items()):
            library = is_library(name_of(module))
            for name, child in list(vars(module).items()):
                key = (identity, name)
                if key in self._looked_at or not names.mentions_global(name):
                    continue
                if is_added(vars(module), name):
                    continue
                if name in _PYTHONS_OWN and not names.uses(name):
                    continue
                if library and (self._ran is None or name not in used):
                    continue
                self._looked_at.add(key)
                place = Place(identity, f"{{parent}}.__dict__[{children.quoted(name)}]", name)
                if library:
                    is_torch = module.__name__.partition(".")[0] == "torch"
                    if is_torch and name in RANDOM_STATES:
                        continue  # Who calls it is refused; a generator's methods have these names.
                    self._reach_in_library(place, child, is_torch=is_torch)
                else:
                    self._reach(place, meant_by(child))

    def _look_at_left_out(self) -> None:
        for name in filter(self.found.names.uses, [*self._left_out]):
            for module in self._left_out.pop(name):
                self._take(id(module), children.in_module(name, vars(module)[name]))

    def _reach_in_library(self, place: Place, child: Any, *, is_torch: bool) -> None:
        """Of a library, constants and functions may be replaced, and modules lead on.

        Torch's own settings are compared as global state, where they matter.
        """
        if isinstance(child, types.ModuleType):
            self._add(place, child)
        elif is_scalar(child):
            self.found.settings.append((place, child))
        elif is_put_there(child):
            self._reach(place, child)
        elif callable(child):
            self.found.identities.append((place, child))
        elif not is_torch and child is not sys.modules:
            self._reach(place, child)

    def _take(self, parent: int, step: Step) -> None:
        self._reach(Place(parent, step.access, step.name, step.constants), step.value)

    def _reach(self, place: Place, child: Any) -> None:
        found = self.found
        if is_proxy(child):
            found.settings.append((place.asked(is_proxy), True))
            self._reach(place.asked(behind), behind(child))
        elif is_setting(child):
            found.settings.append((place, child))
            if isinstance(child, CONTAINERS):
                found.objects.setdefault(id(child), child)
                found.places.setdefault(id(child), []).append(place)
                for step in children.beside_items(child):
                    self._take(id(child), step)
        elif isinstance(child, SYMBOLIC_NUMBERS):
            found.escaped.append(place)
        elif has_contents(child):
            found.arrays.append((place, child))
            if dictionary_of(child):
                self._add(place, child)
        elif self._is_interesting(child):
            self._add(place, child)
        else:
            found.identities.append((place, child))
            if isinstance(child, logging.Logger) and found.names.users_mention_any(_LEVELS):
                found.settings.append((place.asked(logged_levels), logged_levels(child)))

    def _add(self, place: Place, child: Any) -> None:
        found = self.found
        if id(child) not in found.objects:
            found.objects[id(child)] = child
            if not isinstance(child, torch.Tensor) or attributes_of(child):
                self._pending.append(child)
        elif id(child) in found.namespaces and id(child) not in self._passed:
            self._passed.add(id(child))
            for code in () if self._ran is None else self._ran.users:
                found.names.add_exact(children.texts_in(code))
                self._look_into_globals(child, code)
        found.places.setdefault(id(child), []).append(place)

    def _is_interesting(self, value: Any) -> bool:
        if isinstance(value, type):
            return is_users(value)
        if isinstance(value, types.ModuleType):
            return self._ran is not None or not is_library(name_of(value))
        return children.leads_on(value)


def _is_of_a_library(holder: Any) -> bool:
    """Whether an object is of a class of Python's library whose attributes nobody else reads."""
    return is_pythons(module_of(type(holder))) and not isinstance(
        holder, (*_NAMESPACES, types.FunctionType, types.ModuleType, *CONTAINERS)
    )


def _of_class_of(holder: Any) -> Iterable[Step]:
    """Attributes of an object's class that it doesn't have itself, if they can be changed."""
    own = dictionary_of(holder) or {}
    for index, kind in children.users_classes(holder):
        for name, value in list(vars(kind).items()):
            if name.startswith(_NOT_FOLLOWED) or name in own:
                continue
            if isinstance(value, torch.Tensor | list | dict | set | deque) or is_setting(value):
                at = f"type({{parent}}).__mro__[{index}].__dict__[{children.quoted(name)}]"
                yield Step(at, name, value)
