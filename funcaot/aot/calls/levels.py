"""Running a graph under the transforms of its caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.levels.situation import situation
from funcaot.errors import UnsupportedError
from funcaot.rules import batching


class BatchInfo(NamedTuple):
    """How a vmap level batches: the size of its dimension and what random ops do."""

    size: int
    randomness: str


class BatchableProgram(Protocol):
    """What this file needs of a program (see ``program.GraphProgram``)."""

    name: str
    draws: bool

    def __call__(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run at the level of the operands."""
        ...

    def execute(
        self, operands: Sequence[torch.Tensor], *, trusting: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Run below every level."""
        ...

    def batched(
        self,
        operands: Sequence[torch.Tensor],
        in_dims: tuple[int | None, ...],
        batch: BatchInfo,
    ) -> tuple[BatchableProgram, tuple[int | None, ...]]:
        """The program of a batch, and its outputs' batch dimensions."""
        ...


def call_at_level(
    program: BatchableProgram, operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Peel the innermost transform off the operands and call the program one level below.

    Raises:
        UnsupportedError: Under a level that a graph can't run at; ``grad`` and ``jvp`` levels
            are peeled by the operator before a graph is called.
    """
    interpreter: Any = functorch.coerce_cinterpreter(functorch.peek_interpreter_stack())
    key = interpreter.key()
    if key == functorch.TransformType.Vmap:
        return _call_batched(program, interpreter, operands)
    if key == functorch.TransformType.Functionalize:
        api = functorch.FunctorchFunctionalizeAPI(interpreter)
        inner = api.unwrap_tensors(tuple(operands))
        with api.redispatch_to_next():
            outputs: Any = program(*inner)
        return tuple(api.wrap_tensors(outputs))
    raise UnsupportedError(
        f"The graph {program.name} was called under a level of kind {key}.",
        remedy="please report this with the function that was compiled.",
    )


def _call_batched(
    program: BatchableProgram, interpreter: Any, operands: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    level = interpreter.level()
    inner, in_dims = batching.unbatched(tuple(operands), level)
    with interpreter.lower():
        if not program.draws and all(dim is None for dim in in_dims):
            return program(*operands)
        batch = BatchInfo(interpreter.batch_size(), interpreter.randomness())
        derived, out_dims = program.batched(inner, in_dims, batch)
        around = situation()
        if around.transforms or around.modes:
            outputs = derived(*inner)
        else:
            outputs = derived.execute(inner, trusting=True)
    return tuple(
        [
            output if dim is None else functorch.add_batch_dimension(output, dim, level)
            for output, dim in zip(outputs, out_dims, strict=True)
        ]
    )


def is_plain_call(values: Sequence[torch.Tensor]) -> bool:
    """Whether a graph may run on values as it is: at most vmaps are active."""
    around = situation()
    if around.transforms and around.function_modes:
        return False
    return functorch.only_vmaps_active() and not functorch.has_legacy_batched(values)


def run_batched(
    function: Any,
    in_dims: tuple[int | None, ...],
    batch: BatchInfo,
    operands: Sequence[torch.Tensor],
) -> tuple[tuple[torch.Tensor, ...], tuple[int | None, ...]]:
    """Run a function of tensors under one vmap level; outputs keep their own batch dimensions."""
    outputs, out_dims = batching.run_batched(
        function,
        tuple(operands),
        tuple(in_dims),
        batch_size=batch.size,
        randomness=batch.randomness,
    )
    return tuple(outputs), tuple(out_dims)
