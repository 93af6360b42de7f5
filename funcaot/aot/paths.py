"""Where an object of a function's environment is, written as its owner would."""

from __future__ import annotations

import re
import types
from typing import Any

from funcaot.aot.environment import Environment

_KEY = re.compile(r"\{parent\}(?:\._\w+)?\[(.+)\]$")


def path_of(environment: Environment, identity: int) -> str:
    """Where an object was found, as one would write it."""
    text = ""
    while environment.places[identity]:
        place = environment.places[identity][0]
        holder = environment.objects[place.parent]
        if environment.places[place.parent]:
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
    if access.startswith("type("):
        return access.replace("type({parent})", "")
    if key is not None and "._" in access:
        return "." + key[1].strip("'")
    if key is not None:
        return f"[{key[1]}]"
    return "" if "__func__" in access or "__self__" in access else access.replace("{parent}", "")
