"""Where a rule of a Function is written, for annotations and error messages of a check."""

from __future__ import annotations

import inspect
from typing import Any

import torch

Place = tuple[str, int]
NOWHERE: Place = ("", 0)


def place_of(target: Any, rule: str = "forward") -> Place:
    """The file and line of a rule, or of what stands for it.

    Args:
        target: A Function class, or any callable.
        rule: The name of a staticmethod; where the class doesn't define it, its forward counts.

    Returns:
        The file and the line of its first decorator or ``def``; an empty name and 0 for code that
        isn't written in Python.
    """
    if not isinstance(target, type):
        return _written(getattr(target, "function", target))
    found = getattr(target, rule, None)
    if found is None or found is getattr(torch.autograd.Function, rule, None):
        found = getattr(target, "forward", None)
    return _written(found)


def _written(function: Any) -> Place:
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return (code.co_filename, code.co_firstlineno) if code is not None else NOWHERE
