"""What generated rules remember of a call: the metadata of its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.levels.functorch import fully_unwrapped
from funcaot._torch.tracing.tracing import storage_keys
from funcaot.classes.context import OverlayContext
from funcaot.errors import RuleError

__all__ = [
    "CallMetadata",
    "MaterializeObserver",
    "TensorMetadata",
    "attach",
    "call_metadata",
    "zeros_apart",
]

ATTRIBUTE = "_funcaot_call"


@dataclass(frozen=True)
class TensorMetadata:
    """Shape, dtype and device of one tensor, at the level where the rule runs."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(value: Any) -> TensorMetadata | None:
        """The metadata of a tensor; None for anything else."""
        if not isinstance(value, torch.Tensor):
            return None
        return TensorMetadata(tuple(value.shape), value.dtype, value.device)

    @property
    def is_differentiable(self) -> bool:
        """Whether tensors of this dtype have derivatives."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def zeros(self) -> torch.Tensor:
        """A tensor of zeros of this shape."""
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)


def zeros_apart(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros like a tensor that don't depend on it, not even for a tracer.

    A derivative is linear in what it is applied to, so its own derivative is the same everywhere.
    """
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)


@dataclass(frozen=True)
class CallMetadata:
    """One call of a Function.

    Attributes:
        inputs: Metadata per input.
        outputs: Metadata per output.
        differentiable: Whether each output has a derivative.
        single: Whether forward returned one value and no tuple.
        dirty: Pairs (input index, output index) of inputs changed in place.
        owning: Whether each output is neither an input nor a view, so that its tangent isn't one.
        materialize: Whether missing gradients and tangents become zeros.
    """

    inputs: tuple[TensorMetadata | None, ...]
    outputs: tuple[TensorMetadata | None, ...]
    differentiable: tuple[bool, ...]
    single: bool
    dirty: tuple[tuple[int, int], ...]
    owning: tuple[bool, ...]
    materialize: bool


def _index(tensor: Any, among: Any) -> int | None:
    return next((i for i, other in enumerate(among) if other is tensor), None)


def _owns(output: torch.Tensor, inputs: tuple[Any, ...]) -> bool:
    """Whether an output is neither an input nor a view of one, at this level or below."""
    if output._is_view() or _index(output, inputs) is not None:
        return False
    keys = storage_keys(fully_unwrapped(output))
    given = [fully_unwrapped(value) for value in inputs if isinstance(value, torch.Tensor)]
    return all(set(keys).isdisjoint(storage_keys(value)) for value in given)


class MaterializeObserver(OverlayContext):
    """A ctx on which ``set_materialize_grads`` leaves a trace: autograd's own can't be read."""

    def __init__(self, ctx: Any) -> None:
        """Watch ``ctx``."""
        super().__init__(ctx, observed_materialize=True)

    def set_materialize_grads(self, value: bool) -> None:
        """Set the flag, and remember it."""
        self.__dict__["observed_materialize"] = value
        self.__dict__["_funcaot_under"].set_materialize_grads(value)


def call_metadata(ctx: MaterializeObserver, inputs: tuple[Any, ...], output: Any) -> CallMetadata:
    """Describe a call after ``setup_context`` has run on an observed ``ctx``."""
    single = not isinstance(output, tuple)
    outputs = (output,) if single else output
    metadata = tuple(map(TensorMetadata.of, outputs))
    constants = ctx.non_differentiable or ()
    pairs = (
        (_index(tensor, inputs), _index(tensor, outputs)) for tensor in ctx.dirty_tensors or ()
    )
    return CallMetadata(
        inputs=tuple(map(TensorMetadata.of, inputs)),
        outputs=metadata,
        differentiable=tuple(
            m is not None and m.is_differentiable and _index(o, constants) is None
            for m, o in zip(metadata, outputs, strict=True)
        ),
        single=single,
        dirty=tuple((i, j) for i, j in pairs if i is not None and j is not None),
        owning=tuple(isinstance(o, torch.Tensor) and _owns(o, inputs) for o in outputs),
        materialize=ctx.observed_materialize,
    )


def attach(ctx: Any, name: str, value: Any, owner: str) -> None:
    """Keep ``value`` on ``ctx`` under a name of ours.

    Raises:
        RuleError: The user's ``setup_context`` took the name.
    """
    if getattr(ctx, name, None) is not None:
        raise RuleError(
            f"setup_context of {owner} set `ctx.{name}`, which funcaot reserves",
            expected="attributes of ctx that don't begin with `_funcaot_`",
            got=f"`ctx.{name}`",
            remedy="rename the attribute.",
        )
    setattr(ctx, name, value)
