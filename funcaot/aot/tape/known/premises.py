"""What a capture does with an op that only values can answer: it asks them and makes a premise."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.tensors.ops import OpOverload
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing import tracing
from funcaot.aot.graph.location import calling_line
from funcaot.aot.tape.known import sizes_of_values
from funcaot.classes import premise
from funcaot.classes.opaque import Layout, current_captor, layout_of
from funcaot.errors import RuleError
from funcaot.rules.opaque.function import opaque_function
from funcaot.rules.operands.flat_call import flatten_values

Call = tuple[tuple[Any, ...], dict[str, Any]]


def answer(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], error: Exception) -> Any:
    """The result of an op that failed on the tape's tensors, from those of the present call.

    Args:
        op: The op; below autograd.
        args: Its arguments, with the tape's tensors.
        kwargs: Its keyword arguments.
        error: How it failed.

    Returns:
        A Python value, or traced tensors of the shapes that they have now. ``NotImplemented`` if
        no values are known, or the op isn't a function of values.
    """
    if premise.are_allowed() and tracing.is_untraceable(error):
        given = sizes_of_values.current()
        found = NotImplemented if given is None else given.answer(op, args, kwargs)
        if found is not NotImplemented:
            return found
    if not premise.are_allowed() or not tracing.is_untraceable(error) or not _is_functional(op):
        return NotImplemented
    return _Question(op, (args, kwargs)).answer()


def _is_functional(op: Any) -> bool:
    """Whether an op makes new results and changes none of its arguments."""
    if not isinstance(op, OpOverload) or op._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in op.tags:
        return False
    return all(value.alias_info is None for value in op._schema.returns)


def numbers_in(tensor: torch.Tensor) -> Any:
    """The numbers in a traced tensor as lists, all of them one premise.

    Returns:
        The lists, or ``NotImplemented`` if no values are known.
    """
    if not premise.are_allowed():
        return NotImplemented
    return _Question(torch.Tensor.tolist, ((tensor,), {})).answer()


def number_in(tensor: torch.Tensor) -> Any:
    """The number in a traced tensor of one, as ``numbers_in``."""
    if not premise.are_allowed():
        return NotImplemented
    return _Question(torch.Tensor.item, ((tensor,), {})).answer()


def _conforming(found: Any, layouts: tuple[Layout, ...], reason: str) -> tuple[torch.Tensor, ...]:
    """Results in the layouts that a program was made for; other shapes make it leave."""
    results = (found,) if isinstance(found, torch.Tensor) else tuple(found)
    try:
        return tuple(
            layout.conform(result, reason) for layout, result in zip(layouts, results, strict=True)
        )
    except RuleError as error:
        raise premise.PremiseFailed(reason, str(error.got)) from None


class _Question:
    """An op asked of real values, and the node that asks it again in every call."""

    def __init__(self, op: Any, call: Call) -> None:
        self.op = op
        self.call, tensors = flatten_values(call)
        self.tensors = [tracing.functional_inner(tensor) for tensor in tensors]
        name = str(getattr(op, "__name__", op)).partition(".")[0].strip("_")
        self.name = "item" if name == "local_scalar_dense" else name

    def compute(self, *operands: torch.Tensor) -> Any:
        args, kwargs = self.call.arguments(operands)
        return self.op(*args, **kwargs)

    def answer(self) -> Any:
        captor = current_captor()
        values = None if captor is None else captor.exact_values(self.tensors)
        if captor is None or values is None:
            return NotImplemented
        found = captor.outside(lambda: self.compute(*values))
        leaves = tree_flatten(found)[0]
        where = calling_line()
        reason = f"{self.name} at {where}" if where else self.name
        if not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
            if captor.are_examples(self.tensors):
                return NotImplemented
            reason = f"{reason} is {str(found)[:40]}"
            made = captor.outside(
                # Its result is that of the present call, a real tensor.
                lambda: premise.number_function(self.compute, found, self.name, reason)
            )
            captor.call(made, *self.tensors)
            return found
        if not all(isinstance(leaf, torch.Tensor) and not leaf.is_nested for leaf in leaves):
            return NotImplemented
        captor.refuse_open_sizes()
        layouts = tuple(layout_of(leaf) for leaf in leaves)
        shapes = " and ".join(str(list(layout.shape)) for layout in layouts)
        reason = f"the shape of {reason} is {shapes}"

        def checked(*operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return _conforming(self.compute(*operands), layouts, reason)

        made = opaque_function(
            checked,
            layouts,
            self.name,
            reason,
            funcaot_premise=True,
            funcaot_found=[tuple(leaves)],
        )
        results = captor.call(made, *self.tensors)
        return results[0] if isinstance(found, torch.Tensor) else results
