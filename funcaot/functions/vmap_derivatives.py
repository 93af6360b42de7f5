"""Derivatives of a function with a batching rule, which have one too: the derivative of the rule.

The Function behind ``custom_vmap`` calls this. Pushforward and pullback are functions of flat lists
of tensors, decorated like the function itself, so that levels may come in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.autograd.autograd import jvp_inside_dual_level
from funcaot._torch.levels.functorch import pytree
from funcaot.rules.batching import run_batched, with_dimension
from funcaot.rules.metadata import zeros_apart
from funcaot.rules.operands.lifted_call import LiftedCall, has_tangent_type

__all__ = ["Derivatives"]

Flags = Sequence[bool]


class Derivatives:
    """Pushforward and pullback of one call."""

    def __init__(
        self,
        rules: Any,
        call: LiftedCall,
        decorator: Callable[..., Any],
        linear_from: int | None = None,
    ) -> None:
        """Keep what calls the user's rule, the call, and ``custom_vmap`` itself.

        In the operands from ``linear_from`` on the function is linear.
        """
        self._rules, self._call, self._decorator = rules, call, decorator
        self._linear_from = linear_from

    def _derived(
        self, function: Callable[..., Any], rule: Callable[..., Any], count: int
    ) -> Callable[..., Any]:
        """A derivative of the function: decorated too, and linear in what follows ``count``."""
        derived = self._decorator(function)
        derived.linear_from = count
        derived.def_vmap(rule)
        return derived

    def _function(self, *tensors: Any) -> list[Any]:
        bound = self._call.bound(tensors)
        return pytree.tree_leaves(bound.functions[0](*bound.arguments))

    def _batched(self, size: int, flags: Flags, *tensors: Any) -> tuple[list[Any], list[bool]]:
        return self._rules.ruled(size, self._call, list(flags), list(tensors))[:2]

    def _for_each(
        self,
        derivative: tuple[Any, Any],
        operands: tuple[list[Any], list[Any]],
        batched: Flags,
        size: int,
    ) -> tuple[list[Any], list[bool]]:
        """A derivative at one point in many directions, which is one function for levels outside.

        Args:
            derivative: The derivative, and its rule, of primals and directions.
            operands: These.
            batched: Which of the directions have the batch in front.
            size: The size of the batch.
        """
        function, rule = derivative

        def many(primals: list[Any], directions: list[Any]) -> list[Any]:
            dims = [0 if flag else None for flag in batched]
            output, found = _mapped(function, primals, directions, dims, size)
            return [with_dimension(x, d, 0, size) for x, d in zip(output, found, strict=True)]

        def rule_of_many(outer: int, in_batched: list[Any], primals: Any, directions: Any) -> Any:
            outside = _flags(in_batched[1])
            dims = [int(o) if flag else None for o, flag in zip(outside, batched, strict=True)]
            flags: list[bool] = []

            def ruled(primals: list[Any], directions: list[Any]) -> list[Any]:
                output, flags[:] = rule(outer, in_batched, primals, directions)
                return output

            output, found = _mapped(ruled, primals, directions, dims, size)
            places = zip(output, found, map(int, flags), strict=True)
            return [with_dimension(x, d, place, size) for x, d, place in places], flags

        result = self._derived(many, rule_of_many, len(operands[0]))(*operands)
        return result, [True] * len(result)

    def pushed(self, primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
        """One tangent or None per leaf of the output."""
        where = [i for i, tangent in enumerate(tangents) if tangent is not None]
        kinds: list[bool] = []

        def function(primals: list[Any], tangents: list[Any]) -> list[Any]:
            return _pushed(self._function, where, primals, tangents, kinds)

        def rule(size: int, in_batched: list[Any], primals: Any, tangents: Any) -> Any:
            own, given = _flags(in_batched[0]), _flags(in_batched[1])
            if not any(own):
                return self._for_each((function, rule), (primals, tangents), given, size)
            moving = dict(zip(where, given, strict=True))
            both = [flag or moving.get(i, False) for i, flag in enumerate(own)]
            primals = _expanded(primals, own, both, size)
            tangents = _expanded(tangents, given, [both[i] for i in where], size)
            found: list[bool] = []

            def ruled(*tensors: Any) -> list[Any]:
                leaves, found[:] = self._batched(size, both, *tensors)
                return leaves

            dense = [primals[i].contiguous() if i in where else primals[i] for i in range(len(own))]
            output = _pushed(ruled, where, dense, tangents, kinds)
            return output, [flag for flag, kind in zip(found, kinds, strict=True) if kind]

        derived = self._derived(function, rule, len(primals))
        result = iter(derived(list(primals), [tangents[i] for i in where]))
        return tuple(next(result) if kind else None for kind in kinds)

    def pulled(
        self, primals: Sequence[Any], cotangents: Sequence[Any], needs: Flags
    ) -> tuple[Any, ...]:
        """One gradient or None per operand."""
        where = [i for i, p in enumerate(primals) if needs[i] and has_tangent_type(p)]
        first = len(primals) if self._linear_from is None else self._linear_from
        found = self._pulled(primals, cotangents, [i for i in where if i < first])
        linear = [i for i in where if i >= first]
        if linear:
            at_zero = (*primals[:first], *map(zeros_apart, primals[first:]))
            found |= self._pulled(at_zero, cotangents, linear)
        return tuple(found.get(i) for i in range(len(primals)))

    def _pulled(
        self, primals: Sequence[Any], cotangents: Sequence[Any], where: list[int]
    ) -> dict[int, Any]:
        """The gradients of some of the operands."""
        given = [j for j, cotangent in enumerate(cotangents) if cotangent is not None]
        if not where or not given:
            return {}

        def function(primals: list[Any], cotangents: list[Any]) -> list[Any]:
            return _pulled(self._function, where, given, primals, cotangents)

        def rule(size: int, in_batched: list[Any], primals: Any, cotangents: Any) -> Any:
            own, come = _flags(in_batched[0]), _flags(in_batched[1])
            if not any(own):
                return self._for_each((function, rule), (primals, cotangents), come, size)
            both = [flag or i in where for i, flag in enumerate(own)]
            primals = _expanded(primals, own, both, size)
            cotangents = _expanded(cotangents, come, [True] * len(come), size)

            def ruled(*tensors: Any) -> list[Any]:
                leaves, flags = self._batched(size, both, *tensors)
                wanted = [flag or j in given for j, flag in enumerate(flags)]
                return _expanded(leaves, flags, wanted, size)

            output = _pulled(ruled, where, given, primals, cotangents)
            return output, [True] * len(output)

        derived = self._derived(function, rule, len(primals))
        result = derived(list(primals), [cotangents[j] for j in given])
        return dict(zip(where, result, strict=True))


def _flags(flags: Any) -> list[bool]:
    return [bool(flag) for flag in flags]


def _expanded(tensors: Sequence[Any], own: Flags, wanted: Flags, size: int) -> list[Any]:
    """Give those tensors a batch dimension that are to have one."""
    return [
        with_dimension(tensor, None, 0, size) if want and not flag else tensor
        for tensor, flag, want in zip(tensors, own, wanted, strict=True)
    ]


def _restricted(function: Any, where: Sequence[int], primals: Sequence[Any]) -> Any:
    """A function of some of its operands."""

    def restricted(*given: Any) -> list[Any]:
        filled = list(primals)
        for i, primal in zip(where, given, strict=True):
            filled[i] = primal
        return function(*filled)

    return restricted, tuple(primals[i] for i in where)


def _pushed(
    function: Any, where: list[int], primals: list[Any], tangents: list[Any], kinds: list[bool]
) -> list[Any]:
    """The tangents of the leaves that have any; which these are, in ``kinds``."""
    restricted, own = _restricted(function, where, primals)

    def differentiable(*given: Any) -> tuple[Any, ...]:
        leaves = restricted(*given)
        kinds[:] = [isinstance(x, torch.Tensor) and has_tangent_type(x) for x in leaves]
        return tuple(leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind)

    with jvp_inside_dual_level():
        return list(torch.func.jvp(differentiable, own, tuple(tangents))[1])


def _pulled(
    function: Any, where: list[int], given: list[int], primals: list[Any], cotangents: list[Any]
) -> list[Any]:
    restricted, own = _restricted(function, where, primals)

    def wanted(*primals: Any) -> tuple[Any, ...]:
        leaves = restricted(*primals)
        return tuple(leaves[j] for j in given)

    return list(torch.func.vjp(wanted, *own)[1](tuple(cotangents)))


def _mapped(
    function: Any, primals: list[Any], directions: list[Any], dims: list[int | None], size: int
) -> tuple[list[Any], list[int | None]]:
    """Run a function for each direction; its outputs, and where they have the batch."""
    return run_batched(
        function,
        (list(primals), list(directions)),
        ([None] * len(primals), dims),
        batch_size=size,
        randomness="error",
    )
