"""What an entry of the table of transforms is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from funcaot.testing.program import Program


@dataclass(frozen=True)
class Transform:
    """One entry of the table.

    Attributes:
        name: The word in test ids.
        apply: Maps a program and its oracle to the transformed program and the transformed oracle.
        needs: The ``supports_*`` fields of ``FunctionInfo`` that it uses, without the prefix.
        order: How many derivatives it takes.
        base_only: It works on plain tensors, so no torch.func transform may be outside of it.
        linear: It assumes that a backward is linear in the cotangent.
        depth_one: It is tested alone and not composed (its compositions would repeat another's).
        real_only: torch defines it for real numbers only.
        reproducible: With one seed, random numbers are those of the oracle.

    Example:
        >>> from funcaot.testing import Transform
        >>> def negative(program):
        ...     def run(*primals):
        ...         return tuple(-output for output in program.run(*primals))
        ...     def expected(*primals):
        ...         return tuple(-output for output in program.expected(*primals))
        ...     return program.then(run, expected)
        >>> Transform("negative", negative).order
        0
    """

    name: str
    apply: Callable[[Program], Program]
    needs: frozenset[str] = frozenset()
    order: int = 0
    base_only: bool = False
    linear: bool = False
    depth_one: bool = False
    real_only: bool = False
    reproducible: bool = True
