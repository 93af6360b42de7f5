"""Writes what a reader compares by which object it is: methods of tensors, and equal containers."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence, Set
from contextvars import ContextVar
from typing import Any

import torch

from funcaot._torch.tensors.guards import attributes_of_tensors
from funcaot.aot.closure.children import has_tensors_as_keys
from funcaot.aot.closure.constants import is_immutable
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.named.code_names import names_of
from funcaot.aot.closure.named.given import Given
from funcaot.aot.closure.where import path_of, text_of
from funcaot.aot.reader.reader_source import EnvironmentWriter
from funcaot.aot.reader.reader_untouched import unless_untouched
from funcaot.aot.reader.told import shown

# Python calls these without a name in the code.
_OPERATORS = frozenset(
    name
    for name in dir(torch.Tensor)
    if name.startswith("__") and name.endswith("__") and callable(getattr(torch.Tensor, name))
)
_CHANGEABLE = (list, dict, set, bytearray)
_PART = re.compile(r"\{parent\}\._(?:_dict__|parameters|buffers|modules)\['(\w+)'\]")
_KEPT_IN = (list, dict, set, deque)


def write_identities(
    writer: EnvironmentWriter, arguments: Sequence[str] = (), *, parameters: bool = False
) -> None:
    """What the writer's own checks of single places don't see.

    Args:
        writer: The writer.
        arguments: The expressions of tensors among the arguments, each once.
        parameters: Whether there are parameters among the arguments.
    """
    if writer.environment.names.compares_identity:
        _write_which_are_one(writer)
        parameters |= has_tensors_as_keys(writer.environment.objects.values())
        _write_which_tensors_are_one(writer, arguments, () if parameters else torch.nn.Parameter)
    _write_methods_of_tensors(writer)


def write_distinct(writer: EnvironmentWriter, changed: Iterable[int] = ()) -> None:
    """Objects in whose place others may stand are as many as they were.

    Args:
        writer: The writer, which has written everything else.
        changed: Objects that a call stores in, or finds something else in that it stores in.
    """
    objects, free = writer.environment.objects, writer.environment.alike
    used = [i for i in dict.fromkeys((*writer.variables, *changed)) if i in objects]
    of_class: dict[type, list[int]] = {}
    for identity in used:
        of_class.setdefault(type(objects[identity]), []).append(identity)
    for kind, found in of_class.items():
        if len(found) > 1 and not free.isdisjoint(found):
            says = f"{len(found)} things of {kind.__name__} are as many objects"
            _require_as_many(writer, [*map(writer.variable, found)], says)


def write_shared(writer: EnvironmentWriter, changed: Iterable[int]) -> None:
    """Containers that a call changes are what they were: one where they were one, and no others.

    Args:
        writer: The writer, which has written everything else.
        changed: The containers, by ``id``.
    """
    environment = writer.environment
    found = containers_read(environment)
    for identity in changed:
        # In a container that is only added to, code may still get at it: kept["a"].append(x).
        places = environment.places.get(identity, ())
        if places:
            found[identity] = [*places]
    at = {identity: writer.at(places[0]) for identity, places in found.items()}
    kinds = set[type]()
    for identity in found.keys() & {*changed}:
        first, *others = found[identity]
        for place in others:
            says = f"{text_of(environment, place)} and {text_of(environment, first)} are one object"
            writer.require(f"{writer.at(place)} is {at[identity]}", says)
        kinds.add(type(environment.objects[identity]))
    for kind in kinds:
        each = [text for i, text in at.items() if type(environment.objects[i]) is kind]
        if len(each) > 1:
            says = f"{len(each)} things of {kind.__name__}, some changed, are as many objects"
            _require_as_many(writer, each, says)


def write_assigned(
    writer: EnvironmentWriter, given: Given, kept: Set[int], compared: Set[int]
) -> None:
    """What code may have assigned where that already was is still what something else is.

    ``self.last = self.state`` changes nothing where both are one tensor.

    Args:
        writer: The writer, which has written everything else.
        given: What the code gave new values.
        kept: Objects that it stores or returns, by ``id``; nothing says where it has them from.
        compared: Tensors that are compared in all places.
    """
    environment = writer.environment
    if environment.names.assigns("grad"):
        _write_gradients(writer)
    for identity, thing in environment.objects.items():
        places = environment.places.get(identity, ())
        if len(places) < 2 or identity in compared or is_immutable(thing):
            continue
        assigned = [place for place in places if _may_be_assigned(environment, place, given)]
        if assigned or identity in kept:
            known = {*map(id, assigned)}
            read = [p for p in places if id(p) not in known and environment.is_read(p)]
            first, *others = (*read, *assigned) or places[:1]
            for place in others:
                says = f"{text_of(environment, place)} is {text_of(environment, first)}"
                writer.require(f"{writer.at(place)} is {writer.at(first)}", says)


def _write_gradients(writer: EnvironmentWriter) -> None:
    """Gradients that code also finds somewhere else are what they were."""
    environment = writer.environment
    for identity, thing in [*environment.objects.items()]:
        if not isinstance(thing, torch.Tensor) or not thing.is_leaf:
            continue
        gradient = thing.grad
        for place in () if gradient is None else environment.places.get(id(gradient), ()):
            says = f"{path_of(environment, identity)}.grad is {text_of(environment, place)}"
            writer.require(f"{writer.variable(identity)}.grad is {writer.at(place)}", says)


def _may_be_assigned(environment: Environment, place: Place, given: Given) -> bool:
    """Whether code may have assigned what was at a place; in a container, nothing says which."""
    names = environment.names
    part = _PART.fullmatch(place.access)
    name = part[1] if part else place.name
    if name:
        changed = {(place.parent, name), (0, name)} & given.changed
        return not changed and names.assigns(name)
    return isinstance(environment.objects[place.parent], (*_KEPT_IN, ContextVar))


def _require_as_many(writer: EnvironmentWriter, each: Sequence[str], says: str) -> None:
    """Expressions of several things give as many objects."""
    known = writer.source.constant(id, "id")
    writer.require(f"len({{*map({known}, ({', '.join(each)}))}}) == {len(each)}", says)


def containers_read(environment: Environment) -> dict[int, list[Place]]:
    """Containers that can change and that code reads, by ``id``, and where they are."""
    found: dict[int, list[Place]] = {}
    for identity, thing in environment.objects.items():
        known = identity in environment.namespaces or identity in environment.anchors
        if isinstance(thing, _KEPT_IN) and not known:
            places = [place for place in environment.places[identity] if environment.is_read(place)]
            if places:
                found[identity] = places
    return found


def _write_which_tensors_are_one(
    writer: EnvironmentWriter, arguments: Sequence[str], left_out: Any
) -> None:
    """Tensors that code reaches are as many as they were, and none of them is an argument.

    Parameters are left out, unless a dictionary knows tensors by which one they are or an argument
    is one: there are many, and a module has its own.
    """
    environment = writer.environment
    found: dict[int, list[Place]] = {
        identity: [place for place in environment.places[identity] if environment.is_read(place)]
        for identity, thing in environment.objects.items()
        if isinstance(thing, torch.Tensor) and not isinstance(thing, left_out)
    }
    found = {identity: places for identity, places in found.items() if places}
    for places in found.values():
        for place in places[1:]:
            first = text_of(environment, places[0])
            says = f"{text_of(environment, place)} and {first} are one tensor"
            writer.require(f"{writer.at(place)} is {writer.at(places[0])}", says)
    each = [*(writer.at(places[0]) for places in found.values()), *arguments]
    if found and len(each) > 1:
        says = f"{len(each)} tensors among the arguments and around are as many objects"
        _require_as_many(writer, each, says)


def _write_which_are_one(writer: EnvironmentWriter) -> None:
    """Code asks by ``is`` which containers are one; of other plain values that says nothing."""
    environment = writer.environment
    found: dict[int, list[Place]] = {}
    for place, value in environment.settings:
        if type(value) in _CHANGEABLE and environment.is_read(place):
            found.setdefault(id(value), []).append(place)
    for places in found.values():
        for place in places[1:]:
            first = text_of(environment, places[0])
            says = f"{text_of(environment, place)} and {first} are one object"
            writer.require(f"{writer.at(place)} is {writer.at(places[0])}", says)
    if len(found) > 1:
        says = f"{len(found)} containers are as many objects"
        _require_as_many(writer, [writer.at(places[0]) for places in found.values()], says)


def _write_methods_of_tensors(writer: EnvironmentWriter) -> None:
    """Somebody may replace a method of ``torch.Tensor`` that code calls, or an operator."""
    names = writer.environment.names
    own = attributes_of_tensors()
    called = {name for name in {*dir(torch.Tensor), *own} if names.mentions(name)} | _OPERATORS
    at = writer.source.constant(own, "methods")
    known = [
        f"{at}[{name!r}] is {writer.source.constant(own[name])}"
        for name in sorted(called & own.keys())
    ]
    absent = writer.source.constant(frozenset(called - own.keys()), "names")
    condition = " and ".join([*known, f"{at}.keys().isdisjoint({absent})"])
    writer.require(unless_untouched(writer, at, own, condition), "the methods of torch.Tensor")


def write_functions_of_modules(writer: EnvironmentWriter) -> None:
    """Somebody may replace a function of ``torch.nn.functional`` that torch's own modules call."""
    ran = writer.environment.ran
    own: dict[str, Any] = torch.nn.functional.__dict__
    libraries = () if ran is None else ran.libraries
    used = {name for code in libraries for name in names_of(code).used}
    called = sorted(name for name in used & own.keys() if callable(own[name]))
    if called:
        at = writer.source.constant(own, "functions")
        known = [f"{at}[{name!r}] is {writer.source.constant(own[name])}" for name in called]
        condition = unless_untouched(writer, at, own, " and ".join(known))
        writer.require(condition, f"torch.nn.functional's {shown(called)}")
