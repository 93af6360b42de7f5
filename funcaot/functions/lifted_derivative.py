"""What the rules of ``custom_jvp`` and ``custom_vjp`` share: derivatives that no rule speaks of.

A rule is about the arguments. By a tensor that it closes over, the function is derived itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.errors import RuleError
from funcaot.rules.metadata import TensorMetadata
from funcaot.rules.operands.lifted_call import LiftedCall, has_tangent_type
from funcaot.rules.returns import describe
from funcaot.rules.symbolic_zeros import SymbolicZero

__all__ = ["FunctionOfLifted", "OutputsMetadata", "check_output", "in_place_of"]


@dataclass(frozen=True, eq=False)
class OutputsMetadata:
    """What the leaves of an output look like; opaque, so that every level passes it on."""

    leaves: tuple[TensorMetadata | None, ...]

    @property
    def differentiable(self) -> tuple[bool, ...]:
        """Which of them have derivatives."""
        return tuple(m is not None and m.is_differentiable for m in self.leaves)


class FunctionOfLifted:
    """A function with its arguments fixed, of the tensors that it closes over."""

    def __init__(
        self,
        call: LiftedCall,
        operands: Sequence[Any],
        outputs: OutputsMetadata,
        name: str,
        *,
        first: int | None = None,
    ) -> None:
        """Fix the arguments; or only the operands before the ``first`` that is differentiated."""
        self._call, self._operands, self._outputs, self._name = call, operands, outputs, name
        self._first = call.count if first is None else first

    def _restricted(self, where: Sequence[int]) -> tuple[Any, list[torch.Tensor]]:
        """The function of some of the tensors, and these."""
        places = [self._first + k for k in where]

        def function(*primals: torch.Tensor) -> tuple[torch.Tensor, ...]:
            needs = [i in places for i in range(len(self._operands))]
            filled = list(self._call.without_writes(tuple(self._operands), needs))
            for place, primal in zip(places, primals, strict=True):
                filled[place] = primal
            bound = self._call.bound(filled).discarding_writes(filled)
            leaves = pytree.tree_leaves(bound.functions[0](*bound.arguments))
            if len(leaves) != len(self._outputs.leaves):
                raise RuleError(
                    f"A rule of {self._name} returned an output of another structure than the "
                    "function",
                    expected=f"{len(leaves)} leaves",
                    got=str(len(self._outputs.leaves)),
                    remedy="return what the function returns.",
                )
            pairs = zip(leaves, self._outputs.differentiable, strict=True)
            return tuple(leaf for leaf, kept in pairs if kept)

        return function, [self._operands[place] for place in places]

    def pushed(self, tangents: Sequence[Any]) -> tuple[Any, ...]:
        """The tangents of the outputs, by transposing twice: no forward level is needed for it."""
        where = [k for k, tangent in enumerate(tangents) if tangent is not None]
        function, primals = self._restricted(where)
        outputs, pullback = torch.func.vjp(function, *primals)
        zeros = tuple(torch.zeros_like(output) for output in outputs)
        given = tuple(tangents[k] for k in where)
        pushed = iter(torch.func.vjp(pullback, zeros)[1](given)[0])
        return tuple(next(pushed) if kept else None for kept in self._outputs.differentiable)

    def pulled(self, cotangents: Sequence[Any], needs: Sequence[bool]) -> tuple[Any, ...]:
        """The gradients of the tensors that are closed over."""
        first = self._first
        where = [
            k
            for k, needed in enumerate(needs)
            if needed and has_tangent_type(self._operands[first + k])
        ]
        if not where:
            return (None,) * len(needs)
        function, primals = self._restricted(where)
        given = tuple(
            metadata.zeros() if cotangent is None else cotangent
            for cotangent, metadata in zip(cotangents, self._outputs.leaves, strict=True)
            if metadata is not None and metadata.is_differentiable
        )
        pulled = dict(zip(where, torch.func.vjp(function, *primals)[1](given), strict=True))
        return tuple(pulled.get(k) for k in range(len(needs)))


def check_output(output: Any, spec: Any, outputs: OutputsMetadata, who: str) -> None:
    """Check what a rule returned as the function's output.

    Raises:
        RuleError: Its structure or a shape isn't that of what the function returned.
    """
    leaves, found = pytree.tree_flatten(output)
    shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else None for x in leaves]
    expected = [None if m is None else m.shape for m in outputs.leaves]
    if found == spec and all(
        given is None or wanted is None or given == wanted
        for given, wanted in zip(shapes, expected, strict=True)
    ):
        return
    raise RuleError(
        f"{who} returned an output that isn't what the function returns",
        expected=f"{spec} with shapes {[None if s is None else list(s) for s in expected]}",
        got=f"{found} with shapes {[None if s is None else list(s) for s in shapes]}",
        remedy="return the function's output first.",
    )


def in_place_of(value: Any, metadata: TensorMetadata | None, who: str) -> Any:
    """A tangent or cotangent as a tensor, where a rule may say it by a number or not at all."""
    if metadata is None or not metadata.is_differentiable:
        return None
    if value is None or isinstance(value, SymbolicZero):
        return metadata.zeros()
    if isinstance(value, (int, float, complex)):
        return torch.full(metadata.shape, value, dtype=metadata.dtype, device=metadata.device)
    if not isinstance(value, torch.Tensor):
        raise RuleError(
            f"{who} returned something that is no tangent",
            expected="a tensor, a number or None",
            got=describe(value),
            remedy="return one for each leaf of the output.",
        )
    if tuple(value.shape) != metadata.shape:
        raise RuleError(
            f"{who} returned a tangent of another shape than its output's",
            expected=f"shape {list(metadata.shape)}",
            got=describe(value),
            remedy="expand or reshape the tangent.",
        )
    return value if value.dtype == metadata.dtype else value.to(metadata.dtype)
