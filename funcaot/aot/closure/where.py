"""Where an object of a function's environment is, written as its owner would."""

from __future__ import annotations

import ast
import functools
import re
import types
import weakref
from typing import Any, TypeAlias

import torch

from funcaot.aot.closure.environment import Environment, Place

# How an object is reached from the function, step by step, as source text.
Key: TypeAlias = tuple[str, ...]

_CLASS = "'s class"
_LEAF = re.compile(r"\{parent\}\[\d+\]$")
_ATTRIBUTE = re.compile(r"^\{parent\}\._\w+\['(\w+)'\]$")
_RESULT = re.compile(r"\(\{parent\}, (.*)\)$")
_KEY = re.compile(r"\{parent\}(?:\._\w+)?\[(.+)\]$")


def path_of(environment: Environment, identity: int) -> str:
    """Where an object was found, as one would write it."""
    text = ""
    while environment.places[identity] and identity not in environment.anchors:
        if identity in environment.given:
            return environment.given[identity] + text
        place = environment.places[identity][0]
        if environment.places[place.parent] or place.parent in environment.anchors:
            text = _text(environment, place) + text
        identity = place.parent
    thing = environment.objects.get(identity)
    if identity in environment.anchors and isinstance(thing, types.FunctionType):
        return thing.__qualname__ + text
    text = text.lstrip(".")
    return text if text and not text.startswith(_CLASS) else f"the function{text}"


def text_of(environment: Environment, place: Place) -> str:
    """A place, as one would write it."""
    before = path_of(environment, place.parent)
    step = _text(environment, place)
    inside = environment.places[place.parent] and before != "the function"
    inside = inside or step.startswith(_CLASS)
    return (before + step if inside else step.lstrip(".")) or before


def _text(environment: Environment, place: Place) -> str:
    shown = [
        constant if isinstance(constant, str) else _shown(constant) for constant in place.constants
    ]
    access = place.access
    for index, text in enumerate(shown):
        access = access.replace(f"{{{index}}}", text)
    if place.parent in environment.namespaces:
        return "." + place.name
    return _step(environment.objects[place.parent], access)


def _shown(constant: Any) -> str:
    """A constant as text that another process writes too."""
    if isinstance(constant, weakref.ref):
        return f"a {type(constant()).__name__}"
    return constant.__name__ if isinstance(constant, types.ModuleType) else repr(constant)


def _step(holder: Any, access: str) -> str:
    if isinstance(holder, functools._lru_cache_wrapper) and (result := _RESULT.search(access)):
        return f"({ast.literal_eval(result[1])})"
    if isinstance(holder, types.FunctionType):
        cell = re.search(r"__closure__\[(\d+)\]", access)
        if cell is not None:
            return holder.__code__.co_freevars[int(cell[1])]
        found = re.search(r"\[(.+)\]", access)
        return "" if found is None else found[1].strip("'")
    key = _KEY.match(access)
    if access.startswith("type("):
        return access.replace("type({parent})", "") or _CLASS
    if key is not None and "._" in access:
        return "." + key[1].strip("'")
    if key is not None:
        return f"[{key[1]}]"
    hidden = ("__func__", "__self__", "__globals__")
    return "" if any(name in access for name in hidden) else access.replace("{parent}", "")


def key_of(environment: Environment, identity: int) -> Key:
    """Where an object was found first, in a form that means the same in another process."""
    steps: list[str] = []
    while environment.places.get(identity) and identity not in environment.anchors:
        place = environment.places[identity][0]
        steps.append(place.access)
        identity = place.parent
    if identity in environment.anchors:
        thing = environment.objects[identity]
        steps.append(f"{environment.anchors[identity][0]} {getattr(thing, '__name__', '')}")
        if identity in environment.namespaces:
            steps.append(str(thing.get("__name__")))
    return tuple(reversed(steps))


def words_of(key: Key) -> str:
    """Where an object was found, as one would write it; without the environment in which it was."""
    steps = key[1:] if key and _LEAF.match(key[0]) else key
    text = "".join(_ATTRIBUTE.sub(r".\1", step).replace("{parent}", "") for step in steps)
    return text.lstrip(".") or "the function"


def objects_at(environment: Environment) -> dict[Key, Any]:
    """The objects that were found, by where; without those that text alone doesn't tell apart."""
    named: dict[Key, list[Any]] = {}
    for identity, thing in environment.objects.items():
        named.setdefault(key_of(environment, identity), []).append(thing)
    return {key: things[0] for key, things in named.items() if len(things) == 1}


def places_of_tensors(environment: Environment) -> dict[Key, torch.Tensor]:
    """The tensors that were found, by where; without those that text alone doesn't tell apart."""
    named: dict[Key, list[torch.Tensor]] = {}
    for identity, thing in environment.objects.items():
        if isinstance(thing, torch.Tensor):
            named.setdefault(key_of(environment, identity), []).append(thing)
    return {key: things[0] for key, things in named.items() if len(things) == 1}
