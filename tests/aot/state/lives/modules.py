"""Modules made of text, and what is in results; random programs with state are made of these."""

from __future__ import annotations

import itertools
import linecache
import sys
import types
from collections.abc import Iterator
from typing import Any

import torch

_numbers = itertools.count()


def module_of(text: str) -> dict[str, Any]:
    """The names of a new module, whose source Python shows."""
    module = types.ModuleType("funcaot_lives")
    sys.modules[module.__name__] = module
    file = f"<life {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), module.__dict__)
    return module.__dict__


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors with a history in a result."""
    if isinstance(value, torch.Tensor):
        if value.requires_grad and value.grad_fn is not None:
            yield value
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(tensors_in, value.values()))
    elif isinstance(value, (list, tuple)):
        yield from itertools.chain.from_iterable(map(tensors_in, value))
