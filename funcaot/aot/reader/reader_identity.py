"""Writes what a reader compares by which object it is: methods of tensors, and equal containers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.tensors.guards import attributes_of_tensors
from funcaot.aot.closure.code_names import names_of
from funcaot.aot.closure.environment import Environment, Place
from funcaot.aot.closure.where import text_of
from funcaot.aot.reader.reader_source import EnvironmentWriter
from funcaot.aot.reader.told import shown

# Python calls these without a name in the code.
_OPERATORS = frozenset(
    name
    for name in dir(torch.Tensor)
    if name.startswith("__") and name.endswith("__") and callable(getattr(torch.Tensor, name))
)
_CHANGEABLE = (list, dict, set, bytearray)
_FILLED = (list, dict, set, deque)


def write_identities(writer: EnvironmentWriter, arguments: Sequence[str] = ()) -> None:
    """What the writer's own checks of single places don't see.

    Args:
        writer: The writer.
        arguments: The expressions of tensors among the arguments, each once.
    """
    if writer.environment.names.compares_identity:
        _write_which_are_one(writer)
        _write_which_tensors_are_one(writer, arguments)
    _write_methods_of_tensors(writer)


def write_which_are_changed(writer: EnvironmentWriter, holders: Sequence[int]) -> None:
    """Containers that the function fills are one where they were one, and as many as they were.

    Code that only adds to a container reads nothing of it, so nothing else compares where it is.

    Args:
        writer: The writer.
        holders: What is changed, by ``id``.
    """
    environment, seen = writer.environment, list[str]()
    for identity in dict.fromkeys(holders):
        if identity in environment.namespaces:
            continue
        if not isinstance(environment.objects.get(identity), _FILLED):
            continue
        # What is inside of a container that nothing reads is found when it is stored in.
        places = [
            place
            for place in environment.places[identity]
            if _is_named(environment, place) and place.parent not in environment.unread
        ]
        if not places:
            continue
        first = writer.at(places[0])
        seen.append(first)
        for place in places[1:]:
            says = f"{text_of(environment, place)} and {text_of(environment, places[0])} are one"
            writer.require(f"{writer.at(place)} is {first}", says)
    if len(seen) > 1:
        known = writer.source.constant(id, "id")
        says = f"{len(seen)} containers that it fills are as many objects"
        writer.require(f"len({{*map({known}, ({', '.join(seen)}))}}) == {len(seen)}", says)


def _is_named(environment: Environment, place: Place) -> bool:
    """Whether code gets at a place, if only to add to what is there."""
    return environment.names.reads(place.name) or environment.names.mentions(place.name)


def _write_which_tensors_are_one(writer: EnvironmentWriter, arguments: Sequence[str]) -> None:
    """Tensors that code reaches are as many as they were, and none of them is an argument.

    Parameters are left out: there are many, and a module has its own.
    """
    environment = writer.environment
    found: dict[int, list[Place]] = {
        identity: [place for place in environment.places[identity] if environment.is_read(place)]
        for identity, thing in environment.objects.items()
        if isinstance(thing, torch.Tensor) and not isinstance(thing, torch.nn.Parameter)
    }
    found = {identity: places for identity, places in found.items() if places}
    for places in found.values():
        for place in places[1:]:
            first = text_of(environment, places[0])
            says = f"{text_of(environment, place)} and {first} are one tensor"
            writer.require(f"{writer.at(place)} is {writer.at(places[0])}", says)
    known = writer.source.constant(id, "id")
    each = [*(writer.at(places[0]) for places in found.values()), *arguments]
    if found and len(each) > 1:
        says = f"{len(each)} tensors among the arguments and around are as many objects"
        writer.require(f"len({{*map({known}, ({', '.join(each)}))}}) == {len(each)}", says)


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
        each = ", ".join(writer.at(places[0]) for places in found.values())
        known = writer.source.constant(id, "id")
        says = f"{len(found)} containers are as many objects"
        writer.require(f"len({{*map({known}, ({each}))}}) == {len(found)}", says)


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
    writer.require(writer.unless_untouched(at, own, condition), "the methods of torch.Tensor")


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
        condition = writer.unless_untouched(at, own, " and ".join(known))
        writer.require(condition, f"torch.nn.functional's {shown(called)}")
