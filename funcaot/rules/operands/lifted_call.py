"""A call of a function with rules of its own, as operands of a Function and a record of the rest.

``custom_jvp``, ``custom_vjp`` and ``custom_vmap`` make one for each call. Operands are the tensors
among the arguments, then those that the function, its rules and other arguments close over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.autograd.autograd import tangent_of
from funcaot._torch.levels.functorch import (
    dispatch_mode_count,
    is_functorch_wrapped_tensor,
    pytree,
    unwrap_if_dead,
)
from funcaot.classes.opaque import current_captor
from funcaot.errors import ArgumentError, RuleError
from funcaot.rules.metadata import TensorMetadata
from funcaot.rules.operands.closures import Hollow, Sealed, hollowed
from funcaot.rules.operands.copied_writes import Writes
from funcaot.rules.operands.flat_call import OPERAND, flatten_like
from funcaot.rules.returns import describe
from funcaot.rules.symbolic_zeros import CustomVJPPrimal, SymbolicZero, is_number

__all__ = [
    "Bound",
    "LiftedCall",
    "lifted_call",
    "positional",
    "signature_of",
    "unwrapped_while_dead",
]


@dataclass(frozen=True)
class Bound:
    """A call with the tensors of one level in their places.

    Attributes:
        functions: The function and its rules.
        arguments: The arguments, by position.
        written: What sees what the functions write to copies of what they close over.
    """

    functions: tuple[Any, ...]
    arguments: tuple[Any, ...]
    written: Sequence[Writes] = ()

    def run(self) -> Any:
        """Call the function, whose first run this is, and keep what it writes to copies."""
        output = self.functions[0](*self.arguments)
        self.keep_written()
        return output

    def keep_written(self) -> None:
        """Write to what the user has what was written to copies."""
        for writes in self.written:
            writes.repeat()

    def discarding_writes(self, operands: Sequence[Any]) -> Bound:
        """The same with functions that hold copies of all but operands, to be run once more.

        What they write to buffers, a batch norm its statistics, was written when they ran first.
        """
        kept = {id(operand) for operand in operands}
        try:
            hollow, held, _ = hollowed(self.functions, lambda tensor: id(tensor) not in kept)
        except Sealed:
            return self
        return Bound(hollow.filled([tensor.clone() for tensor in held]), self.arguments)


@dataclass(frozen=True, eq=False)
class LiftedCall:
    """What a call is without its tensors.

    Attributes:
        nondiff: Positions of arguments that have no derivative.
        specs: The tree structure of each argument.
        hollow: The functions, and the leaves of each argument with a mark in place of tensors.
        count: How many operands are tensors among the arguments.
        names: The variables that held the others.
    """

    nondiff: tuple[int, ...]
    specs: tuple[Any, ...]
    hollow: Hollow
    count: int
    names: tuple[str, ...]

    def bound(self, tensors: Sequence[Any]) -> Bound:
        """Put operands in their places."""
        written: list[Writes] = []
        functions, leaves = self.hollow.filled(tensors[self.count :], written)
        rest = iter(tensors[: self.count])
        arguments = self._arguments(leaves, lambda leaf: next(rest), lambda leaf: leaf)
        return Bound(functions, arguments, written)

    def without_writes(self, tensors: tuple[Any, ...], needs: Sequence[bool]) -> tuple[Any, ...]:
        """Operands for a second run, whose writes to what the function holds aren't seen."""
        return tuple(
            tensor.clone() if i >= self.count and not needs[i] else tensor
            for i, tensor in enumerate(tensors)
        )

    def functions(self, lifted: Sequence[Any]) -> Bound:
        """The functions alone, as they are now."""
        written: list[Writes] = []
        return Bound(self.hollow.filled(lifted, written, later=True)[0], (), written)

    def _arguments(self, leaves: Any, operand: Any, other: Any) -> tuple[Any, ...]:
        return tuple(
            pytree.tree_unflatten([operand(x) if x is OPERAND else other(x) for x in own], spec)
            for own, spec in zip(leaves, self.specs, strict=True)
        )

    def with_perturbed(self, tensors: Sequence[Any], needs: Sequence[bool]) -> tuple[Any, ...]:
        """The arguments, in which each leaf that has a derivative says whether one is asked for."""
        leaves = self.hollow.filled(tensors[self.count :])[1]
        rest = iter(zip(tensors, needs, strict=False))
        plain = self.bound(tensors).arguments
        marked = self._arguments(
            leaves,
            lambda leaf: CustomVJPPrimal(*next(rest)),
            lambda leaf: leaf if leaf is None else CustomVJPPrimal(leaf, perturbed=False),
        )
        return tuple(plain[i] if i in self.nondiff else value for i, value in enumerate(marked))

    def leaves(self, of_tensor: Any, of_other: Any) -> tuple[Any, ...]:
        """The structure of the arguments with other leaves, made of the tensor's place or leaf."""
        places = iter(range(self.count))
        return self._arguments(self.hollow.roots[1], lambda leaf: of_tensor(next(places)), of_other)

    def split(self, values: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Separate one value per argument into those without and those with a derivative."""
        fixed = tuple(v for i, v in enumerate(values) if i in self.nondiff)
        return fixed, tuple(v for i, v in enumerate(values) if i not in self.nondiff)

    def tangents(self, primals: Sequence[Any], values: Sequence[Any], symbolic: bool) -> Any:
        """One tangent tree per differentiable argument; numbers have zeros, other leaves None."""
        rest = iter(zip(primals, values, strict=False))

        def of_tensor(leaf: Any) -> Any:
            primal, tangent = next(rest)
            if tangent is not None:
                return tangent
            if symbolic:
                return SymbolicZero.like(primal)
            return torch.zeros_like(primal) if has_tangent_type(primal) else None

        def of_other(leaf: Any) -> Any:
            if not is_number(leaf):
                return None
            return SymbolicZero.like(leaf) if symbolic else 0.0

        leaves = self.hollow.roots[1]
        return self.split(self._arguments(leaves, of_tensor, of_other))[1]

    def gradients(
        self, trees: Any, who: str, inputs: Sequence[TensorMetadata | None]
    ) -> tuple[Any, ...]:
        """Flatten one cotangent tree per differentiable argument into one value per tensor.

        Raises:
            RuleError: The number of trees, the structure of one or a symbolic zero is wrong.
        """
        wanted = len(self.specs) - len(self.nondiff)
        if not isinstance(trees, (tuple, list)) or len(trees) != wanted:
            raise RuleError(
                f"{who} returned the wrong number of cotangents",
                expected=f"a tuple of {wanted}, one per differentiable argument",
                got=describe(trees),
                remedy="return a tuple; use None for an argument without a derivative.",
            )
        rest, metadata = iter(trees), iter(inputs)
        flat: list[Any] = []
        leaves_of = self.hollow.roots[1]
        for index, (leaves, spec) in enumerate(zip(leaves_of, self.specs, strict=True)):
            values: tuple[Any, ...] = (None,) * len(leaves)
            if index not in self.nondiff:
                values = flatten_like(next(rest), spec, who, f"argument {index}")
            flat.extend(
                _gradient(value, next(metadata), f"{who} returned for argument {index}")
                for value, leaf in zip(values, leaves, strict=True)
                if leaf is OPERAND
            )
        return tuple(flat)


def has_tangent_type(tensor: Any) -> bool:
    """Whether tensors of this dtype have derivatives."""
    return tensor.is_floating_point() or tensor.is_complex()


def _gradient(value: Any, metadata: TensorMetadata | None, who: str) -> Any:
    if metadata is None or not metadata.is_differentiable:
        return None
    if isinstance(value, SymbolicZero):
        if tuple(value.shape) != metadata.shape:
            raise RuleError(
                f"{who} a SymbolicZero of another shape",
                expected=f"shape {list(metadata.shape)}",
                got=f"shape {list(value.shape)}",
                remedy="return None there.",
            )
        return None
    if isinstance(value, (int, float, complex)):
        return torch.full(metadata.shape, value, dtype=metadata.dtype, device=metadata.device)
    return value


def is_lifted(tensor: torch.Tensor) -> bool:
    """Whether a level or a mode needs a tensor as an operand to look at it."""
    if current_captor() is not None or dispatch_mode_count():
        return True
    tensor = unwrapped_while_dead(tensor)
    if is_functorch_wrapped_tensor(tensor):
        return True
    return tensor.requires_grad or tangent_of(tensor) is not None


def unwrapped_while_dead(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor without the wrappers of levels that have ended."""
    while is_functorch_wrapped_tensor(tensor):
        inner = unwrap_if_dead(tensor)
        if inner is tensor:
            break
        tensor = inner
    return tensor


def lifted_call(
    functions: tuple[Any, ...], nondiff: tuple[int, ...], arguments: tuple[Any, ...]
) -> tuple[LiftedCall, tuple[torch.Tensor, ...]]:
    """Describe a call.

    Args:
        functions: The function and its rules.
        nondiff: Positions of arguments that have no derivative; negative ones count from the end.
        arguments: The arguments, by position.

    Returns:
        The record, and the operands.

    Raises:
        UnsupportedError: A tensor that a transform looks at is held by what can't be copied.
    """
    flat = [pytree.tree_flatten(argument) for argument in arguments]
    tensors = [x for leaves, _ in flat for x in leaves if isinstance(x, torch.Tensor)]
    leaves = tuple(
        tuple(OPERAND if isinstance(x, torch.Tensor) else x for x in own) for own, _ in flat
    )
    captor = current_captor()
    note = None if captor is None else captor.closed_over.note_path
    hollow, lifted, names = hollowed((functions, leaves), is_lifted, note)
    count = len(arguments)
    positions = tuple(sorted(index % count for index in nondiff)) if count else ()
    call = LiftedCall(positions, tuple(spec for _, spec in flat), hollow, len(tensors), names)
    return call, (*tensors, *lifted)


def signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    """The parameters of a function; None for a builtin that doesn't say."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def positional(
    name: str,
    signature: inspect.Signature | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[Any, ...]:
    """The arguments of a call by position, with defaults.

    Raises:
        ArgumentError: The arguments don't fit, or one can only be passed by keyword.
    """
    if signature is None:
        if not kwargs:
            return args
        raise ArgumentError(
            f"{name} was called with keywords, and doesn't say what its parameters are.",
            expected="arguments by position",
            got=f"the keywords {sorted(kwargs)}",
            remedy="wrap it in a function of your own.",
        )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{name} was called with arguments that it doesn't take: {error}",
            expected=f"{name}{signature}",
            got=f"{len(args)} positional and keywords {sorted(kwargs)}",
            remedy="pass what the function takes.",
        ) from None
    bound.apply_defaults()
    given = sorted(name for name in bound.kwargs if name in kwargs)
    if given:
        raise ArgumentError(
            f"{name} was given arguments that can only be passed by keyword: {given}",
            expected="positional parameters; its rules receive arguments by position",
            got="keyword-only parameters",
            remedy="make them positional, or bind them with functools.partial.",
        )
    return bound.args
