"""Looks at users' objects without running their code; what follows an environment calls it.

A class may define how its objects' attributes are looked up, what is iterated and how long it is.
Such code may raise, import, count or take long, so only its own program calls it.
"""

from __future__ import annotations

import inspect
import logging
import types
import weakref
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import torch

# What isn't a method, and is compared where code has its name in it; some is made at first use.
_TEXTS = frozenset(
    {
        *("__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__"),
        *("__annotations_cache__", "__dict__", "__doc__", "__firstlineno__", "__module__"),
        *("__qualname__", "__static_attributes__", "__type_params__", "__weakref__"),
    }
)


_UNSET = object()


def module_of(thing: Any) -> str:
    """The name of the module that a class or function says it is of; empty if it says none."""
    name = getattr(thing, "__module__", "")
    return name if isinstance(name, str) else ""


def name_of(module: types.ModuleType) -> str:
    """A module's name; empty if it has none."""
    name = module.__dict__.get("__name__", "")
    return name if isinstance(name, str) else ""


def dictionary_of(thing: Any) -> dict[str, Any] | None:
    """An object's dictionary, or None. A proxy may name another's."""
    kind = type(thing)
    if hasattr(kind, "__getattr__") and not any("__dict__" in k.__dict__ for k in kind.__mro__):
        return None
    try:
        own = thing.__dict__
    except Exception:  # noqa: BLE001 - a property may raise anything
        return None
    return own if isinstance(own, dict) else None


def is_proxy(thing: Any) -> bool:
    """Whether something is a weak proxy, which says that it is of the class of what it is for."""
    return type(thing) in weakref.ProxyTypes


def behind(proxy: Any) -> Any:
    """What a weak proxy is for; None if that is gone."""
    try:
        return proxy.__reduce_ex__.__self__
    except ReferenceError:
        return None


def in_context(variable: ContextVar[Any]) -> Any:
    """What a context variable holds here."""
    try:
        return variable.get()
    except LookupError:
        return _UNSET


def written(value: Any) -> str:
    """A value as it would be written, or what it is if its own text raises."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001 - so may this
        return object.__repr__(value)


def in_slot(holder: Any, name: str) -> tuple[Any, ...]:
    """What is in a slot of an object, as a tuple of one; an empty tuple if there is nothing."""
    for kind in type(holder).__mro__:
        if name not in kind.__dict__:
            continue
        member = kind.__dict__[name]
        if not isinstance(member, types.MemberDescriptorType):
            return ()  # An attribute of a subclass hides the slot.
        try:
            return (member.__get__(holder, type(holder)),)
        except AttributeError:
            return ()
    return ()


def lacks(holder: Any, names: Sequence[str]) -> bool:
    """Whether a module, a class or an object with slots has none of some attributes.

    Attributes that a ``__getattr__`` makes up aren't there: it runs when it is asked.
    """
    if isinstance(holder, types.ModuleType):
        return holder.__dict__.keys().isdisjoint(names)
    if not isinstance(holder, type):
        return not any(in_slot(holder, name) for name in names)
    meta: type = type(holder)
    if meta is type:
        return not any(hasattr(holder, name) for name in names)
    kinds = (*holder.__mro__, *meta.__mro__)
    return all(kind.__dict__.keys().isdisjoint(names) for kind in kinds)


def own_names(holder: Any) -> list[str]:
    """The names of what is in a class or module itself, but for those that Python keeps there."""
    return [name for name in holder.__dict__ if not name.startswith("__")]


def is_in_any(kind: type, name: str, count: int, *, metas: bool) -> bool:
    """Whether one of the first classes in the order of lookup has an attribute.

    Args:
        kind: Where lookup starts.
        name: The attribute's.
        count: How many classes.
        metas: Whether those of its metaclass are meant.
    """
    order = inspect.getmro(type(kind) if metas else kind)
    return any(name in vars(base) for base in order[:count])


def bases_with(kind: type, name: str) -> tuple[int, ...]:
    """Where in the order of lookup an attribute is: ``super()`` finds the next one."""
    return tuple(index for index, base in enumerate(kind.__mro__) if name in vars(base))


def subclasses_of(kind: type) -> tuple[type, ...]:
    """The classes that are made of a class so far."""
    return tuple(type.__subclasses__(kind))


def special_names(kind: type) -> tuple[str | int, ...]:
    """The special methods that a class or its metaclass has, each with where lookup finds it.

    Python asks for them by itself, without their name in anybody's code: whether there is a
    ``__bool__`` decides how ``if thing:`` goes on.
    """
    found: list[str | int] = []
    for order in (kind.__mro__, inspect.getmro(type(kind))):
        first: dict[str, int] = {}
        for index, base in enumerate(order):
            for name in vars(base):
                if name.startswith("__") and name not in _TEXTS:
                    first.setdefault(name, index)
        for name in sorted(first):
            found += (name, first[name])
    return tuple(found)


def logged_levels(logger: logging.Logger) -> tuple[int, int, bool]:
    """What decides whether a logger takes a message: its level, that of all, whether it is off."""
    return logging.Logger.getEffectiveLevel(logger), logger.manager.disable, logger.disabled


def is_steps_own(thing: Any) -> bool:
    """Whether something is an optimizer whose step needs nobody's help to find its state."""
    return isinstance(thing, torch.optim.Optimizer) and has_plain_state(thing)


def has_plain_state(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer's state is tensors by name, of each parameter."""
    return all(
        isinstance(parameter, torch.Tensor)
        and isinstance(state, dict)
        and all(value is None or isinstance(value, torch.Tensor) for value in state.values())
        for parameter, state in optimizer.state.items()
    )


def weakly(thing: Any) -> weakref.ref[Any] | None:
    """A weak reference, or None to what has none."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return None
