"""The rule for ``vmap`` levels: the user's staticmethod, or the generated rule."""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.levels.functorch import (
    TransformType,
    VmapInfo,
    add_batch_dimension,
    broadcast_to_and_flatten,
    pytree,
)
from funcaot.classes.traits import defined_at, display_name, draws_random, has_vmap, may_generate
from funcaot.errors import MissingRuleError, RuleError
from funcaot.operator.operator import custom_function_call
from funcaot.rules.batching import unbatched
from funcaot.rules.returns import describe
from funcaot.transforms.generated_vmap import dimensions_of, vmapped
from funcaot.transforms.values import only_values


def vmap_rule(interpreter: Any, function: type, *operands: Any) -> Any:
    """Run the batch with the Function's own rule, or per example with the generated one."""
    values = only_values(function, operands)
    if values is not None:
        return values(operands)
    level = interpreter.level()
    physical, in_dims = unbatched(operands, level)
    if not draws_random(function) and _nothing_batched(in_dims):
        with interpreter.lower():
            return custom_function_call(function, *operands)
    if has_vmap(function):
        output, out_dims = _user_rule(interpreter, function, in_dims, physical)
    else:
        output, out_dims = _generated_rule(interpreter, function, in_dims, physical)
    return _batched(output, out_dims, level, zip(physical, operands, strict=True))


def _nothing_batched(in_dims: Any) -> bool:
    return all(dim is None for dim in pytree.tree_leaves(in_dims))


def _user_rule(
    interpreter: Any, function: type, in_dims: Any, physical: tuple[Any, ...]
) -> tuple[Any, list[Any]]:
    if function.generate_vmap_rule:
        raise RuleError(
            f"{display_name(function)} was called under vmap and says two things about it",
            expected="a `vmap` staticmethod or `generate_vmap_rule = True`",
            got="both",
            remedy="delete the staticmethod, or set generate_vmap_rule to False.",
            where=defined_at(function),
        )
    info = VmapInfo(interpreter.batch_size(), interpreter.randomness())
    with interpreter.lower():
        result = function.vmap(info, in_dims, *physical)
    name = f"the vmap staticmethod of {display_name(function)}"
    if not isinstance(result, tuple) or len(result) != 2:
        raise RuleError(
            f"{name} returned something that can't be unpacked",
            expected="a tuple of two, (output, out_dims)",
            got=describe(result),
            remedy="return the output and, for each of its tensors, its batch dimension or None.",
            where=defined_at(function),
        )
    output, out_dims = result
    leaves, spec = pytree.tree_flatten(output)
    flat_dims = broadcast_to_and_flatten(out_dims, spec)
    if flat_dims is None:
        raise RuleError(
            f"{name} returned out_dims that don't match its output",
            expected=f"one integer or None per output, {len(leaves)} in all",
            got=f"out_dims={out_dims!r}",
            remedy="return out_dims of the same structure as the output.",
            where=defined_at(function),
        )
    for leaf, dim in zip(leaves, flat_dims, strict=True):
        _check_dimension(name, leaf, dim, info.batch_size)
    return output, flat_dims


def _check_dimension(name: str, value: Any, dim: Any, batch_size: int) -> None:
    if dim is None or not isinstance(value, torch.Tensor):
        return
    valid = isinstance(dim, int) and -value.dim() <= dim < value.dim()
    if not valid or value.shape[dim] != batch_size:
        raise RuleError(
            f"{name} returned an out_dim that isn't the batch dimension of its output",
            expected=f"a dimension of size {batch_size}, or None for an output without it",
            got=f"out_dim={dim!r} for {describe(value)}",
            remedy="return the index at which the output carries the batch.",
        )


def _generated_rule(
    interpreter: Any, function: type, in_dims: Any, physical: tuple[Any, ...]
) -> tuple[Any, list[Any]]:
    if not may_generate(function, "generate_vmap_rule"):
        raise MissingRuleError(
            f"{display_name(function)} was called under vmap and has no rule for it",
            expected="a `vmap(info, in_dims, *args)` staticmethod, or `generate_vmap_rule = True`",
            got="neither",
            remedy="set `generate_vmap_rule = True` if forward and backward are written with torch "
            "operations; otherwise define `vmap`.",
            where=defined_at(function),
        )
    # A program that draws is batched whatever its operands are.
    size = interpreter.batch_size() if _nothing_batched(in_dims) else None
    batched = vmapped(function, in_dims, interpreter.randomness(), size)
    with interpreter.lower():
        result = custom_function_call(batched, *physical)
    output, dimensions = dimensions_of(result, physical, in_dims)
    flat_dims = pytree.tree_leaves(dimensions.dims)
    return (output[0] if dimensions.single else tuple(output)), flat_dims


def _batched(output: Any, flat_dims: list[Any], level: int, operands: Any) -> Any:
    own = {id(low): high for low, high in operands if isinstance(low, torch.Tensor)}
    leaves, spec = pytree.tree_flatten(output)
    wrapped = []
    for leaf, dim in zip(leaves, flat_dims, strict=True):
        if not isinstance(leaf, torch.Tensor):
            wrapped.append(leaf)
        elif id(leaf) in own:  # an operand that comes back is the same object: see mark_dirty
            wrapped.append(own[id(leaf)])
        elif dim is None:
            wrapped.append(leaf)
        else:
            wrapped.append(add_batch_dimension(leaf, dim % leaf.dim(), level))
    return pytree.tree_unflatten(wrapped, spec)


custom_function_call.py_impl(TransformType.Vmap)(vmap_rule)
