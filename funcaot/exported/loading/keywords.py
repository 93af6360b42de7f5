"""Arguments by name: ``artifact`` notes the names, ``load`` puts a call's arguments in order."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from typing import Any

import torch

from funcaot.errors import ArgumentError


def names_of(function: Any) -> tuple[str, ...]:
    """What a function calls its positional arguments; empty for those without a keyword."""
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(called).parameters.values()
    except (TypeError, ValueError):
        return ()
    found = []
    for parameter in parameters:
        if parameter.kind is parameter.POSITIONAL_ONLY:
            found.append("")
        elif parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            found.append(parameter.name)
    return tuple(found)


def in_order(
    names: Sequence[str],
    wanted: tuple[int, Collection[str]],
    given: tuple[tuple[Any, ...], dict[str, Any]],
    what: str,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call as the exported call passed them; as they are if that can't be.

    Args:
        names: What ``names_of`` found.
        wanted: How many were passed by position, and the keywords of the others.
        given: Arguments by position and by keyword.
        what: The artifact, for messages.

    Raises:
        ArgumentError: If one is passed twice.
    """
    args, kwargs = given
    count, keys = wanted
    first = sum(not name for name in names)
    if not first <= len(args) <= len(names) or count > len(names):
        return given
    bound = dict(zip(names[first:], args[first:], strict=False))
    twice = sorted(bound.keys() & kwargs.keys())
    if twice:
        raise ArgumentError(
            f"{what} was given {twice[0]} twice.",
            expected=f"{twice[0]} by position or by keyword",
            got="both",
            remedy="leave out one of them.",
        )
    bound |= kwargs
    positional = names[first:count]
    if not bound.keys() >= {*positional} or bound.keys() - {*positional} != {*keys}:
        return given
    ordered = (*args[:first], *(bound[name] for name in positional))
    return ordered, {key: bound[key] for key in keys}
