"""Samples seen in a user's own program: what ``record`` writes and ``check`` reads."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.levels.functorch import is_functorch_wrapped_tensor
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot.errors import FuncaotError
from funcaot.testing.check.target import caller, problem_of
from funcaot.testing.records import describe_value

KINDS = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Size)
MOST_CALLS = 6
# Jacobians of larger arguments take minutes.
MOST_ELEMENTS = 512
Calls = dict[str, list[tuple[Any, ...]]]


def key_of(function: Any, script: str = "") -> str:
    """The name of a Function in the file; what a script defines has the script's name."""
    module = function.__module__
    module = Path(script).stem if module == "__main__" and script else module
    return f"{module}:{function.__qualname__}"


class Recorder:
    """Keeps the smallest calls of each Function, one for each kind of arguments.

    Attributes:
        calls: Arguments, by the name of the Function.
        left_out: How many calls had arguments that can't be kept, by the name.
    """

    def __init__(self, script: str = "") -> None:
        self.script = script
        self.calls: Calls = {}
        self.left_out: dict[str, int] = {}
        self._kinds: dict[str, dict[str, tuple[Any, ...]]] = {}

    def __call__(self, function: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes one call."""
        name = key_of(function, self.script)
        if kwargs or not all(can_keep(leaf) for leaf in tree_flatten(args)[0]):
            self.left_out[name] = self.left_out.get(name, 0) + 1
            return
        kinds = self._kinds.setdefault(name, {})
        kind = repr([described(leaf) for leaf in tree_flatten(args)[0]])
        if kind in kinds:
            return
        kinds[kind] = tuple(_kept(value) for value in args)
        smallest = sorted(kinds.items(), key=lambda item: elements(item[1]))[:MOST_CALLS]
        self._kinds[name] = dict(smallest)
        self.calls[name] = [values for _, values in smallest]


def can_keep(leaf: Any) -> bool:
    """Whether an argument is a plain tensor, or a value that a file can hold."""
    if isinstance(leaf, Tensor):
        plain = type(leaf) in (Tensor, torch.nn.Parameter) and leaf.layout is torch.strided
        return plain and not is_functorch_wrapped_tensor(leaf)
    return type(leaf) in KINDS


def described(leaf: Any) -> str:
    """What makes two arguments of one kind: all but a tensor's values."""
    if not isinstance(leaf, Tensor):
        return repr(leaf)
    return f"{describe_value(leaf)} {leaf.stride()}"


def _kept(value: Any) -> Any:
    if isinstance(value, Tensor):
        copy = value.detach().clone().cpu()
        return copy.requires_grad_(value.requires_grad)
    return value


def elements(values: Sequence[Any]) -> int:
    """How many numbers the tensors of a call hold."""
    return sum(leaf.numel() for leaf in tree_flatten(values)[0] if isinstance(leaf, Tensor))


def write(path: Path, calls: Calls) -> None:
    """Writes the calls, with the tensors' values."""
    torch.save({"funcaot_samples": 1, "calls": calls}, path)


def read(path: Path) -> Calls:
    """The calls of a file.

    Raises:
        FuncaotError: There is no such file, or ``record`` didn't write it.
    """
    try:
        document = torch.load(path, weights_only=True)
        return document["calls"]
    except Exception as error:
        raise FuncaotError(
            f"funcaot check can't read samples from {path}.",
            expected="a file that `python -m funcaot record` wrote",
            got=f"{type(error).__name__}",
            remedy="write it again: python -m funcaot record script.py.",
        ) from error


def inputs_for(function: Any, calls: Mapping[str, list[tuple[Any, ...]]]) -> list[Any] | None:
    """What to check a Function on: calls that are small enough, in double precision if it takes it.

    Args:
        function: A Function class, or a callable.
        calls: Of a file.

    Returns:
        Arguments of calls; None where no call was recorded.

    Raises:
        FuncaotError: All that were recorded are too large.
    """
    main = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", "") or ""
    recorded = calls.get(key_of(function, main)) if hasattr(function, "__qualname__") else None
    if not recorded:
        return None
    small = [values for values in recorded if elements(values) <= MOST_ELEMENTS]
    if not small:
        raise FuncaotError(
            f"every recorded call of {function.__name__} is too large to be checked.",
            expected=f"arguments of at most {MOST_ELEMENTS} numbers in all",
            got=f"{elements(recorded[0])} in the smallest call",
            remedy="record a smaller run of the program.",
        )
    return [_double(function, values) for values in small]


def _double(function: Any, values: tuple[Any, ...]) -> tuple[Any, ...]:
    wide = tuple(_wide(value) for value in values)
    return values if problem_of(caller(function), wide) else wide


def _wide(value: Any) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.detach().to(torch.float64).requires_grad_(value.requires_grad)
    return value
