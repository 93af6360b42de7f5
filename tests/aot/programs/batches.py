"""Programs side by side in one function, so that a C++ compiler is started once for all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.programs.differential import Inputs
from tests.aot.programs.programs import FAILURES, Program


@dataclass(frozen=True)
class Batch:
    """Several programs, called one after the other on inputs of their own.

    Attributes:
        programs: The programs.
        store: Where a call leaves what any of them stores.
    """

    programs: tuple[Program, ...]
    store: SimpleNamespace = field(default_factory=SimpleNamespace, compare=False, repr=False)

    @property
    def tensors(self) -> int:
        """How many tensors a caller has after a call."""
        return sum(program.tensors for program in self.programs)

    def inputs(self) -> Inputs:
        """Fresh equal inputs of all programs."""
        made = [program.inputs() for program in self.programs]
        return Inputs(
            [tensor for inputs in made for tensor in inputs.args],
            [tensor for inputs in made for tensor in inputs.watched],
            [tensor for inputs in made for tensor in inputs.leaves],
        )

    def __call__(self, *args: torch.Tensor) -> tuple[Any, ...]:
        """Run them all."""
        results: list[Any] = []
        taken = 0
        for number, program in enumerate(self.programs):
            count = len(program.layouts)
            made, stored = program.run(*args[taken : taken + count])
            results.extend(made)
            for name, value in stored.items():
                setattr(self.store, f"program_{number}_{name}", value)
            taken += count
        return tuple(results)


def batches(programs: Iterable[Program], size: int, *, grad_mode: bool) -> Iterator[Batch]:
    """Put those programs together that can be captured, so many at a time."""
    chosen: list[Program] = []
    for program in programs:
        if can_be_captured(program, grad_mode=grad_mode):
            chosen.append(program)
        if len(chosen) == size:
            yield Batch(tuple(chosen))
            chosen = []
    if chosen:
        yield Batch(tuple(chosen))


def can_be_captured(program: Program, *, grad_mode: bool) -> bool:
    """Whether a call succeeds: one program that raises would take the others with it."""
    try:
        with torch.set_grad_enabled(grad_mode):
            funcaot.compile(program, backend="eager")(*program.inputs().args)
    except (UnsupportedError, *FAILURES):
        return False
    return True


def writes_in_the_graph(program: Program) -> bool:
    """Whether the graph of a program ends by writing to inputs, instead of the epilogue."""
    compiled = funcaot.compile(program, backend="eager")
    try:
        compiled(*program.inputs().args)
    except (UnsupportedError, *FAILURES):
        return False
    return "inside the graph" in str(funcaot.report(compiled))
