"""Tensors that a function keeps for itself while it is captured: later calls find no values."""

from __future__ import annotations

import re
import types
import warnings
from typing import Any

from funcaot._torch import tracing
from funcaot.aot.environment import Environment
from funcaot.errors import LeakWarning

_KEY = re.compile(r"\{parent\}(?:\.__dict__)?\[(.+)\]$")


def warn_of_leaks(environment: Environment, name: str) -> None:
    """Warn once, naming the places, if the environment holds a tensor of the capture.

    Args:
        environment: What the function can reach, scanned after the capture.
        name: The user's function.
    """
    places = [
        _path(environment, identity)
        for identity, value in environment.objects.items()
        if isinstance(value, tracing.FunctionalTensor | tracing.FakeTensor)
    ]
    if places:
        warnings.warn(
            f"{name} keeps a tensor of its capture at {', '.join(sorted(places))}. Python code "
            "runs once per compilation, so what is kept has no value and later calls don't change "
            "it. Return the tensor instead, or copy it into a buffer (buffer.copy_(x)).",
            LeakWarning,
            stacklevel=2,
        )


def _path(environment: Environment, identity: int) -> str:
    """Where an object was found, as one would write it."""
    text = ""
    while environment.places[identity]:
        place = environment.places[identity][0]
        holder = environment.objects[place.parent]
        text = _step(holder, place.access) + text
        identity = place.parent
    return text.lstrip(".") or "the function"


def _step(holder: Any, access: str) -> str:
    if isinstance(holder, types.FunctionType):
        cell = re.search(r"__closure__\[(\d+)\]", access)
        if cell is not None:
            return holder.__code__.co_freevars[int(cell[1])]
        found = re.search(r"\[(.+)\]", access)
        return "" if found is None else found[1].strip("'")
    key = _KEY.match(access)
    if key is not None and "__dict__" in access:
        return "." + key[1].strip("'")
    if key is not None:
        return f"[{key[1]}]"
    return "" if "__func__" in access or "__self__" in access else access.replace("{parent}", "")
