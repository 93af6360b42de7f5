"""What an object holds that no attribute of it shows, as text; ``described`` writes it.

The reader follows the attributes of a user's object. It doesn't follow the value of an int of a
class of its own, nor what an object of a library holds, whose code isn't followed either.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from funcaot.aot.closure.constants import fingerprint, is_setting
from funcaot.aot.closure.look import dictionary_of, logged_levels, module_of
from funcaot.aot.closure.ran import is_library
from funcaot.base.variables import is_environ

# How the value of an object of a subclass is got without running code of its class.
_VALUES = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    BaseException: lambda value: BaseException.args.__get__(value),  # type: ignore[attr-defined]
}
_FOLLOWED = (torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)
# Containers in containers that are looked into.
_DEEPEST = 8


def held(target: Any) -> str:
    """What is known of an object beside the attributes that the reader follows.

    What a module, an optimizer or a scheduler holds is read by code that is followed.
    """
    parts = [f" of {_contents(get(target))}" for kind, get in _VALUES.items() if _is(target, kind)]
    if isinstance(target, logging.Logger):  # It keeps answers, and others decide on its level.
        return f" of {target.name} {logged_levels(target)} {target.propagate}"
    if is_environ(target):  # What code asks it for is compared.
        return ""
    if isinstance(target, _FOLLOWED) or not is_library(module_of(type(target))):
        return "".join(parts)
    own = dictionary_of(target) or {}
    found = {name: value for name, value in own.items() if is_setting(value)}
    parts += [f" with {text_of(fingerprint(found))}"] if found else []
    return "".join([*parts, *_reduced(target, 0)])


def _is(target: Any, kind: type) -> bool:
    return isinstance(target, kind) and type(target) is not kind


def _reduced(target: Any, depth: int) -> list[str]:
    """What another object is made of that is equal to one of a library: its slots, for example."""
    try:
        reduced = target.__reduce_ex__(2)
    except Exception:  # noqa: BLE001 - a lock, a handle: what can't be made again
        return []
    if not isinstance(reduced, tuple):
        return [f" named {reduced}"]
    made_by, *rest = reduced
    state = [*rest[:2], *(list(each) if each is not None else [] for each in rest[2:4])]
    return [f" made by {made_by.__qualname__}{_contents(state, depth)}"]


def _contents(value: Any, depth: int = 0) -> str:
    """Constants as text; of other objects only those that are values, and the class of the rest."""
    if is_setting(value):
        return text_of(fingerprint(value))
    kind = type(value)
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, dict):
        pairs = (f"{_contents(k, depth + 1)}: {_contents(v, depth + 1)}" for k, v in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(_contents(item, depth + 1) for item in value)})"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(_contents(item, depth + 1) for item in value))}}}"
    named = value if isinstance(value, type) else kind
    name = f"{named.__module__}.{named.__qualname__}"
    by_value = kind.__eq__ is not object.__eq__ and kind.__hash__ is not object.__hash__
    if named is kind and by_value and is_library(module_of(kind)):
        return "".join([name, *_reduced(value, depth + 1)])
    return name


def text_of(value: Any) -> str:
    """A fingerprint as text: classes by name, sets in order."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple):
        items = list(map(text_of, value))
        if value and value[0] in (set, frozenset):  # Other processes hash strings otherwise.
            items.sort()
        return f"({', '.join(items)})"
    return repr(value)
