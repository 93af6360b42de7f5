"""What an environment's reader says of a change: ``reader_source`` writes calls of these functions.

Each returns a sentence without its point: what was read, what it was and what it is now.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from funcaot.aot.closure.children import MODULE_DICTIONARIES
from funcaot.aot.closure.look import dictionary_of, lacks, written

__all__ = ["BY_NAME", "shown"]

_LENGTH = 60


def shown(value: Any) -> str:
    """A value as it would be written, cut where it is long."""
    text = written(value)
    return text if len(text) <= _LENGTH else text[: _LENGTH - 3] + "..."


def value(path: str, was: str, now: Any) -> str:
    """A number, a string or another setting has another value."""
    if isinstance(now, torch.Tensor):
        return f"{path} was {was} and is now a tensor"
    return f"{path} was {was} and is now {shown(now)}"


def answer(asked: str, values: dict[str, Any]) -> str:
    """What is asked of numbers has another answer."""
    now = ", ".join(f"{path} is {shown(number)}" for path, number in values.items())
    return f"no longer so: {asked}" + (f", where {now}" if now else "")


def thing(path: str, was: str, now: Any) -> str:
    """An object is another one; ``was`` is the name of its class."""
    kind = type(now).__name__
    if now is None or kind != was:
        return f"{path} was a {was} and is now {'None' if now is None else f'a {kind}'}"
    named = getattr(now, "__qualname__", None)
    return f"{path} is another {was} than before" + (f": {named}" if named else "")


def absent(path: str, names: Iterable[str], now: Any) -> str:
    """Something has a name that it didn't have."""
    own = dictionary_of(now) or {}
    parts = [own.get(part, {}) for part in MODULE_DICTIONARIES]
    there = [name for name in sorted(names) if any(name in each for each in (own, *parts))]
    there = there or [name for name in sorted(names) if not lacks(now, (name,))]
    return " and ".join(f"{path}.{name}" for name in there) + " is there now, which it wasn't"


def container(path: str, was: str, length: int, now: Any) -> str:
    """A container has another length, other keys, or isn't one."""
    if type(now).__name__ != was:
        return thing(path, was, now)
    try:
        found = len(now)
    except TypeError:
        return thing(path, was, now)
    if found != length:
        return f"{path} was a {was} of {length} and is now one of {found}"
    return f"{path} is a {was} with other keys, or the same in another order"


def module(path: str, training: bool, now: torch.nn.Module) -> str:
    """A module is in another mode, or it has other hooks or parts."""
    modes = ("evaluation", "training")
    if now.training != training:
        return f"{path} was in {modes[training]} mode and is now in {modes[now.training]} mode"
    return f"{path} has other hooks or parts than before"


_ALL = (value, answer, thing, absent, container, module)
BY_NAME = {f"told_{function.__name__}": function for function in _ALL}
