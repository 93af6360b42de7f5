"""What a tensor that a function closes over is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

_DEPTH = 4


def tensor_names(function: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> tuple[str, ...]:
    """A name for each tensor that a function closes over.

    Those of a module are the names of its ``state_dict``; those that a plain function reaches
    begin with the name of the variable. What can't be found is counted.
    """
    found: dict[int, str] = {}
    for name, tensor in _reached(function, "", _DEPTH):
        found.setdefault(id(tensor), name)
    names = [found.get(id(tensor), f"tensor_{i}") for i, tensor in enumerate(tensors)]
    seen: dict[str, int] = {}
    unique = []
    for name in names:
        count = seen[name] = seen.get(name, 0) + 1
        unique.append(name if count == 1 else f"{name}_{count}")
    return tuple(unique)


def _reached(thing: Any, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a value leads to, each with its name."""
    if isinstance(thing, torch.Tensor):
        yield name, thing
        return
    if depth == 0:
        return
    if isinstance(thing, torch.nn.Module):
        prefix = f"{name}." if name else ""
        for key, tensor in thing.named_parameters(remove_duplicate=False):
            yield prefix + key, tensor
        for key, tensor in thing.named_buffers(remove_duplicate=False):
            yield prefix + key, tensor
        return
    if isinstance(thing, functools.partial):
        for part in (thing.func, thing.args, thing.keywords):
            yield from _reached(part, name, depth)
        return
    if isinstance(thing, Mapping):
        for key, item in list(thing.items()):
            yield from _reached(item, f"{name}.{key}" if name else str(key), depth - 1)
        return
    if isinstance(thing, tuple | list):
        for index, item in enumerate(thing):
            yield from _reached(item, f"{name}.{index}" if name else str(index), depth - 1)
        return
    yield from _of_code(thing, name, depth)


def _of_code(thing: Any, name: str, depth: int) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a function's variables, or the object of a method, lead to."""
    owner = getattr(thing, "__self__", None)
    if inspect.ismethod(thing) and owner is not None:
        yield from _reached(owner, name, depth)
    if inspect.isfunction(thing) or inspect.ismethod(thing):
        variables = inspect.getclosurevars(thing)
        for source in (variables.nonlocals, variables.globals):
            for key, item in source.items():
                if not inspect.ismodule(item) and not inspect.isclass(item):
                    yield from _reached(item, key, depth - 1)
        return
    wrapped = getattr(thing, "__wrapped__", None)
    if wrapped is not None:
        yield from _reached(wrapped, name, depth)
        return
    if hasattr(thing, "__dict__") and not inspect.isclass(thing) and not inspect.ismodule(thing):
        for key, item in list(vars(thing).items()):
            yield from _reached(item, f"{name}.{key}" if name else key, depth - 1)
