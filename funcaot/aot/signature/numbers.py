"""Number arguments that a program leaves open: how a call's are given to it, what must be true.

A float is given as a float64 tensor of no dimensions. A whole number of at least 2 is given as a
tensor without elements of which it is the first size, so that it is a size like others. One that
was read off a tensor may be 0 and 1 as well: the size is larger by two, since an open one is never
less. Where a function only computes with a whole number, any is given as a float is (`Whole`), and
so is a number of NumPy's.
"""

from __future__ import annotations

import dataclasses
import gc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.tensors.sizes.number_log import NumberLog
from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot.aot.graph.source import Source
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.signature import Constant, Signature
from funcaot.base.numpy_kinds import is_numpy_float, is_numpy_kind, with_text

__all__ = [
    "Numbers",
    "Whole",
    "can_be_computed_with",
    "can_be_open",
    "number_of",
    "tensor_of_float",
    "tensor_of_int",
]

# Products of two of them, and of some sizes, are numbers of 64 bits.
LARGEST = 2**31
# Larger whole numbers may not be floats.
_EXACT = 2**53
_CPU = torch.device("cpu")
_FLOAT = TensorSpec((), (), torch.float64, _CPU, torch.strided, False, True)


class Whole(int):
    """The kind of a whole number that a program computes with, and that is no size to it."""


def number_of(leaf: Any) -> Any:
    """The number that a leaf of a signature is; None for anything else."""
    if not isinstance(leaf, Constant):
        return None
    if leaf.kind is float:
        return float(leaf.value)
    if is_numpy_kind(leaf.kind):
        return with_text(leaf.kind, leaf.value)
    return leaf.value if leaf.kind is int else None


def can_be_open(leaf: Any, least: int = 2) -> bool:
    """Whether a program can leave a leaf of a signature open, if it is a float or large enough."""
    number = number_of(leaf)
    return type(number) is float or (type(number) is int and least <= number < LARGEST)


def can_be_computed_with(leaf: Any) -> bool:
    """Whether a leaf is a whole number, or one of NumPy's, that a program is given as a float."""
    number = number_of(leaf)
    if is_numpy_float(type(number)):
        return True
    return number is not None and type(number) is not float and -_EXACT < number < _EXACT


def tensor_of_float(number: float) -> torch.Tensor:
    """What a program is given for a float."""
    return torch.scalar_tensor(number, dtype=torch.float64, device=_CPU)


def tensor_of_int(number: int) -> torch.Tensor:
    """What a program is given for a whole number."""
    return torch.empty((number, 0), dtype=torch.float32, device=_CPU)


def _spec_of_int(number: int) -> TensorSpec:
    return TensorSpec((number, 0), (1, 1), torch.float32, _CPU, torch.strided, False, True)


@dataclass(frozen=True, eq=False)
class Numbers:
    """The open numbers of one program.

    Attributes:
        kinds: ``float``, ``int``, ``Whole`` or a kind of NumPy's of each, by position among the
            leaves.
        read: Which leaves were read off tensors.
        log: What the capture asked about them.
    """

    kinds: Mapping[int, type]
    read: range = range(0)
    log: NumberLog = field(default_factory=NumberLog)
    largest = LARGEST

    def added(self, position: int) -> int:
        """What the size that stands for a whole number is larger by."""
        return 2 if position in self.read else 0

    def fits(self, position: int, leaf: Any) -> bool:
        """Whether a call's leaf is a number that the program serves at a position."""
        kind = self.kinds[position]
        if kind is Whole:
            return can_be_computed_with(leaf) and leaf.kind is int
        if is_numpy_kind(kind):
            return can_be_computed_with(leaf) and leaf.kind is kind
        return type(number_of(leaf)) is kind and can_be_open(leaf, 2 - self.added(position))

    def signature(self, signature: Signature) -> Signature | None:
        """A call's signature with tensors in place of these numbers; None if it has others."""
        leaves: list[Any] = list(signature.leaves)
        for position, kind in self.kinds.items():
            leaf: Any = leaves[position] if position < len(leaves) else None
            if not self.fits(position, leaf):
                return None
            size = int(leaf.value) + self.added(position) if kind is int else None
            leaves[position] = _FLOAT if size is None else _spec_of_int(size)
        return dataclasses.replace(signature, leaves=tuple(leaves))

    def leaves(self, leaves: Sequence[Any]) -> list[Any]:
        """A call's leaves with tensors in place of these numbers."""
        found = list(leaves)
        for position, kind in self.kinds.items():
            number = found[position]
            if kind is not int and type(number) in (float, int, kind):
                found[position] = tensor_of_float(number)
            elif type(number) is int:
                found[position] = tensor_of_int(number + self.added(position))
        return found

    def hold(self, signature: Signature) -> bool:
        """Whether what was assumed is true of a call's numbers."""
        conditions = self.conditions()
        if not conditions:
            return True
        names = {f"number_{at}": number_of(signature.leaves[at]) for at in self.kinds}
        try:
            return all(eval(condition, {"math": math}, names) for condition in conditions)
        except ArithmeticError:
            return False

    def conditions(self) -> tuple[str, ...]:
        """What must be true, in Python, of ``number_<position>``."""
        asked = list(self.log.answers.items())
        return tuple(text if answer else f"not ({text})" for text, answer in asked)

    def write(self, source: Source, names: Sequence[str]) -> list[str]:
        """Write the lines that compare a call's numbers and make their tensors.

        Args:
            source: The function being written; it leaves by ``MISS``.
            names: The variable that holds each leaf.

        Returns:
            The variables with tensors in place of these numbers.
        """
        asked = " and ".join(self.conditions())
        for position, kind in self.kinds.items():
            name = names[position]
            limits = ""
            if kind is int:
                limits = f" and {2 - self.added(position)} <= {name} < {LARGEST}"
            elif kind is not float and not is_numpy_float(kind):
                limits = f" and {-_EXACT} < {name} < {_EXACT}"
            is_one = "float" if kind is float else "int"
            if is_numpy_kind(kind):
                is_one = source.constant(kind)
            source.line(f"if not (type({name}) is {is_one}{limits}): return MISS")
            if f"number_{position}" in asked:
                source.line(f"number_{position} = {name}")
        if asked:
            source.namespace["math"] = math
            source.line(f"if not ({asked}): return MISS")
        opened = list(names)
        for position, kind in self.kinds.items():
            make = source.constant(tensor_of_int if kind is int else tensor_of_float)
            added = f" + {self.added(position)}" if kind is int else ""
            opened[position] = source.name("n")
            source.line(f"{opened[position]} = {make}({names[position]}{added})")
        return opened

    def close(self, values: Sequence[Any]) -> None:
        """Take note that the capture is over, for which the function was called.

        Args:
            values: The call's leaves.

        Raises:
            SizeError: If the function kept a number where later code finds it.
        """
        self.log.end()
        if self.log.are_kept():
            gc.collect()  # A frame may be part of a cycle.
        if self.log.are_kept():
            raise SizeError(
                "The function keeps an open number.", remedy="set open_numbers to False."
            )
        for position in sorted(self.log.fixed):
            if self.kinds[position] is float:
                self.log.answers[f"repr(number_{position}) == {repr(values[position])!r}"] = True
            else:
                self.log.answers[f"number_{position} == {values[position]}"] = True
