"""The arguments of an op's call, read for the kernels of ``kernels``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.autograd.op_kernels import schema_of
from funcaot.derivatives.table import Derivative

__all__ = ["flat", "has_tensors", "lacks", "with_tensors"]


def has_tensors(value: Any) -> bool:
    """Whether an argument is a list with tensors in it."""
    return isinstance(value, list | tuple) and any(isinstance(v, Tensor) for v in value)


def with_tensors(kinds: Sequence[str], args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Tensors in place of numbers where an op has tensors: ``x // 2`` comes as a number."""
    numbers = int | float | complex
    places = [i for i, v in enumerate(args) if kinds[i] == "Tensor" and isinstance(v, numbers)]
    if not places:
        return args
    other = next(value for value in args if isinstance(value, Tensor))
    found = list(args)
    for place in places:
        found[place] = torch.tensor(args[place], dtype=torch.result_type(other, args[place]))
    return tuple(found)


def lacks(rule: Derivative, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether reverse mode is asked for by an argument that torch's doesn't know."""
    if not rule.lacking:
        return False
    names = [argument.name for argument in schema_of(rule.op).arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    chosen = [given.get(name) for name in rule.lacking]
    return any(isinstance(value, Tensor) and value.requires_grad for value in chosen)


def flat(args: Sequence[Any], kwargs: dict[str, Any]) -> list[Tensor]:
    """All tensors among the arguments."""
    found: list[Tensor] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, list | tuple):
            found += [v for v in value if isinstance(v, Tensor)]
    return found
