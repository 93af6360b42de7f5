"""What a Function class defines, and which of its rules may be generated."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import defines_setup_context
from funcaot.classes.protocol import program_of
from funcaot.errors import RuleError

__all__ = [
    "asks_for",
    "defined_at",
    "display_name",
    "draws_random",
    "has_backward",
    "has_jvp",
    "has_vmap",
    "is_old_style",
    "may_generate",
    "name_of_reverse",
    "origin_of",
    "reverse_rule",
]

_BASE = torch.autograd.Function


def origin_of(function: type) -> type:
    """The user's Function class that a generated class stands for."""
    return getattr(function, "funcaot_origin", function)


def display_name(function: type) -> str:
    """How errors call a Function class."""
    return origin_of(function).__name__


def defined_at(function: type) -> str:
    """Where a Function class is written, for errors; empty where that isn't known."""
    origin = origin_of(function)
    name = f"{origin.__module__}.{origin.__qualname__}"
    code = getattr(inspect.unwrap(origin.forward), "__code__", None)  # type: ignore[attr-defined]
    if code is None:
        return name
    return f"{name}, its forward at {code.co_filename}:{code.co_firstlineno}"


def draws_random(function: type) -> bool:
    """Whether a compiled program, batched or not, draws at random: all vmap levels have a say."""
    return getattr(program_of(origin_of(function)), "draws", False)


def _overrides(function: type, name: str) -> bool:
    base = getattr(_BASE, name)
    return getattr(function, name, base) is not base


def has_backward(function: type) -> bool:
    """Whether ``backward`` or its other name, ``vjp``, is defined."""
    return _overrides(function, "backward") or _overrides(function, "vjp")


def has_jvp(function: type) -> bool:
    """Whether ``jvp`` is defined."""
    return _overrides(function, "jvp")


def has_vmap(function: type) -> bool:
    """Whether the ``vmap`` staticmethod is defined."""
    return _overrides(function, "vmap")


def is_old_style(function: type) -> bool:
    """Whether forward takes ``ctx`` and there's no ``setup_context``."""
    return not defines_setup_context(function)


def reverse_rule(function: type) -> Callable[..., Any]:
    """The reverse rule under whichever of its two names it was defined.

    Raises:
        RuleError: Both names are defined.
    """
    backward, vjp = _overrides(function, "backward"), _overrides(function, "vjp")
    if backward and vjp:
        raise RuleError(
            f"{display_name(function)} was differentiated in reverse mode and defines two rules",
            expected="one of `backward` and `vjp`, which are two names of the same rule",
            got="both",
            remedy="delete one of the two staticmethods.",
            where=defined_at(function),
        )
    return function.vjp if vjp else function.backward


def name_of_reverse(function: type) -> str:
    """Which of the two names the reverse rule has."""
    return "vjp" if _overrides(function, "vjp") else "backward"


def _is_a_base(ancestor: type) -> bool:
    """Whether a class is torch's base class or ours, whose flags are defaults and no answer."""
    own = ancestor.__dict__
    return ancestor is _BASE or ("funcaot_checks_rules" in own and "funcaot_origin" not in own)


def asks_for(function: type, flag: str) -> bool:
    """Whether the class itself, and no base class of ours or torch's, sets ``flag``."""
    for ancestor in function.__mro__:
        if _is_a_base(ancestor):
            return False
        if flag in ancestor.__dict__:
            return bool(ancestor.__dict__[flag])
    return False


def may_generate(function: type, flag: str) -> bool:
    """Whether ``flag`` (``generate_vmap_rule`` and so on) allows a rule to be generated.

    A ``funcaot.Function`` asks for generated rules. A class that doesn't know funcaot can't, so
    unless it says no itself, its missing rules are generated; so are those of a Function whose
    forward takes ``ctx``, since it has to be taken apart anyway.
    """
    for ancestor in function.__mro__:
        if _is_a_base(ancestor):
            break
        if flag in ancestor.__dict__:
            return bool(ancestor.__dict__[flag])
    asks = getattr(function, "funcaot_checks_rules", False)
    return program_of(function) is None and (not asks or is_old_style(function))
