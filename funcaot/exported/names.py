"""What a tensor that a function closes over is called; ``artifact`` asks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from funcaot.aot.closure.walk import scan
from funcaot.aot.closure.where import path_of

_KEY = re.compile(r"\[['\"]?(.*?)['\"]?\]")


def tensor_names(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """A name for each tensor that a function closes over.

    Those of a module are the names of its ``state_dict``; those that a plain function reaches
    begin with the name of the variable. What can't be found is counted.
    """
    found = scan(tuple(_unwrapped(function)))
    seen: dict[str, int] = {}
    unique = []
    for index, tensor in enumerate(tensors):
        known = id(tensor) in found.places
        # As in a state_dict, also where a key is written in brackets.
        name = _KEY.sub(r".\1", path_of(found, id(tensor))) if known else f"tensor_{index}"
        name = name.lstrip(".")
        count = seen[name] = seen.get(name, 0) + 1
        unique.append(name if count == 1 else f"{name}_{count}")
    return tuple(unique)


def _unwrapped(function: Any) -> Iterator[Any]:
    """What a function is made of, the user's own code first."""
    if isinstance(function, functools.partial):
        yield from _unwrapped(function.func)
        yield from (function.args, function.keywords)
        return
    wrapped = getattr(function, "__wrapped__", None)
    if wrapped is not None:
        yield from _unwrapped(wrapped)
    yield function


def is_constant(owner: Any, tensor: torch.Tensor) -> bool:
    """Whether a module holds a tensor that isn't in its ``state_dict``.

    Such a tensor (a buffer that isn't persistent, a plain attribute) has no name that a caller
    knows, so it is written into the file whatever becomes of the parameters.
    """
    if not isinstance(owner, torch.nn.Module):
        return False
    return not any(found is tensor for found in owner.state_dict(keep_vars=True).values())


def further_names(owner: Any, names: Mapping[int, str]) -> dict[str, str]:
    """The other names of tied parameters in a module's ``state_dict``, each with the first name.

    Args:
        owner: What is exported.
        names: The first name of each tensor, by its ``id``.
    """
    if not isinstance(owner, torch.nn.Module):
        return {}
    state = owner.state_dict(keep_vars=True)
    found = {name: names.get(id(tensor), name) for name, tensor in state.items()}
    return {name: first for name, first in found.items() if name != first}
