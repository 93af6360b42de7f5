"""The rule for Functions whose forward takes ``ctx``: split them, and call the operator again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from funcaot._torch.autograd.autograd import in_dual_level, set_version, version_of
from funcaot._torch.levels.functorch import (
    TransformType,
    coerce_cinterpreter,
    has_tangent,
    is_leaf_at_every_level,
    peek_interpreter_stack,
    requires_grad_at_any_level,
    transforms_active,
)
from funcaot.classes.traits import display_name, has_jvp, has_vmap
from funcaot.errors import ArgumentError, UnsupportedError
from funcaot.operator.operator import custom_function_call
from funcaot.rules.old_style import run_forward, split
from funcaot.rules.seen import what_is_seen
from funcaot.transforms.forms.dirty import dirty_inputs, out_of_place

__all__ = ["second_order", "second_order_of"]

MODES = ("eager", "strict", "exact")


class _Default(threading.local):
    mode = "eager"


_default = _Default()


@contextlib.contextmanager
def second_order(mode: str) -> Iterator[None]:
    """Choose what second derivatives of old-style Functions do with saved intermediates.

    Eager autograd takes an intermediate that an old-style forward saved for a constant, so a second
    derivative through it is incomplete without a word. A class may choose for itself with an
    attribute ``second_order``, which wins.

    Args:
        mode: ``eager`` does the same. ``strict`` raises when such a derivative is asked for.
            ``exact`` differentiates forward, which must be written with torch operations.

    Raises:
        ArgumentError: There's no such mode.

    Example:
        >>> import torch, funcaot
        >>> class Cube(funcaot.Function):
        ...     @staticmethod
        ...     def forward(ctx, x):
        ...         ctx.square = x * x  # an intermediate
        ...         return x * ctx.square
        ...     @staticmethod
        ...     def backward(ctx, gradient):
        ...         return 3 * gradient * ctx.square
        >>> with funcaot.second_order("exact"):
        ...     torch.func.grad(torch.func.grad(Cube.apply))(torch.tensor(2.0))
        tensor(12.)
    """
    previous, _default.mode = _default.mode, _checked(mode, "funcaot.second_order")
    try:
        yield
    finally:
        _default.mode = previous


def _checked(mode: Any, who: str) -> str:
    if mode not in MODES:
        raise ArgumentError(
            f"{who} was given a mode that doesn't exist",
            expected=f"one of {', '.join(MODES)}",
            got=repr(mode),
            remedy="choose one of them.",
        )
    return mode


def second_order_of(function: type) -> str:
    """The mode of one old-style Function."""
    mode = getattr(function, "second_order", None)
    return _default.mode if mode is None else _checked(mode, display_name(function))


class LinkedIntermediates(torch.autograd.Function):
    """Intermediates that remember the inputs they were computed from.

    Operands are the old-style Function, the mode, which intermediates, then their values, then the
    operands of the call. The value is the kept one; only a derivative runs forward again.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        function: type, mode: str, indices: tuple[int, ...], *values: Any
    ) -> tuple[torch.Tensor, ...]:
        """Return the kept values."""
        return tuple(value.detach() for value in values[: len(indices)])

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the operands of the call."""
        function, mode, indices, *values = inputs
        operands = values[len(indices) :]
        ctx.function, ctx.mode, ctx.indices = function, mode, indices
        ctx.is_tensor = tuple(isinstance(value, torch.Tensor) for value in operands)
        pairs = list(zip(ctx.is_tensor, operands, strict=True))
        ctx.constants = tuple(None if given else value for given, value in pairs)
        tensors = [value for given, value in pairs if given]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        constants = [o for o in output if not (o.is_floating_point() or o.is_complex())]
        ctx.mark_non_differentiable(*constants)
        ctx.floating = tuple(o.is_floating_point() or o.is_complex() for o in output)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Raise, or pull back through forward."""
        recompute, where, primals = _recompute(ctx)
        gradients = iter(torch.func.vjp(recompute, *primals)[1](_floating(cotangents, ctx)))
        return (None,) * (3 + len(ctx.indices)) + tuple(
            next(gradients) if i in where else None for i in range(len(ctx.is_tensor))
        )

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Raise, or push through forward."""
        recompute, where, primals = _recompute(ctx)
        given = [tangents[3 + len(ctx.indices) + i] for i in where]
        filled = tuple(
            torch.zeros_like(p) if t is None else t for p, t in zip(primals, given, strict=True)
        )
        pushed = iter(torch.func.jvp(recompute, tuple(primals), filled)[1])
        return tuple(next(pushed) if ok else None for ok in ctx.floating)


def _floating(cotangents: tuple[Any, ...], ctx: Any) -> tuple[torch.Tensor, ...]:
    return tuple(c for c, ok in zip(cotangents, ctx.floating, strict=True) if ok)


def _recompute(ctx: Any) -> tuple[Any, list[int], list[torch.Tensor]]:
    function = ctx.function
    if ctx.mode == "strict":
        raise UnsupportedError(
            f"A second derivative of {display_name(function)} goes through an intermediate that "
            "its forward saved",
            expected="saved inputs and outputs only, in second_order mode `strict`",
            got="a saved intermediate, which eager autograd would take for a constant",
            remedy="use second_order = 'exact', or compute the intermediate in backward.",
        )
    rest = iter(ctx.saved_tensors)
    operands = [next(rest) if t else v for t, v in zip(ctx.is_tensor, ctx.constants, strict=True)]
    where = [
        i
        for i, v in enumerate(operands)
        if isinstance(v, torch.Tensor) and (v.is_floating_point() or v.is_complex())
    ]

    def recompute(*primals: torch.Tensor) -> tuple[torch.Tensor, ...]:
        filled = list(operands)
        for i, primal in zip(where, primals, strict=True):
            filled[i] = primal
        *filled, seen = filled
        _, intermediates, plan = run_forward(function, tuple(filled), seen)
        if plan.dirty:
            raise UnsupportedError(
                f"second_order='exact' was asked of {display_name(function)}, which changes an "
                "input in place",
                expected="a forward that can be run again",
                got="a forward that calls mark_dirty",
                remedy="write forward out of place, or use second_order = 'eager'.",
            )
        values = [intermediates[k] for k in ctx.indices]
        return tuple(v for v, ok in zip(values, ctx.floating, strict=True) if ok)

    return recompute, where, [operands[i] for i in where]


def linked_intermediates(
    function: type,
    mode: str,
    indices: tuple[int, ...],
    values: tuple[torch.Tensor, ...],
    operands: tuple[Any, ...],
) -> tuple[torch.Tensor, ...]:
    """The kept intermediates, connected to the operands that they depend on."""
    return custom_function_call(LinkedIntermediates, function, mode, indices, *values, *operands)


def old_style_rule(function: type, operands: tuple[Any, ...]) -> Any:
    """Call the split Function, and drop what only its ``setup_context`` needs."""
    interpreter = peek_interpreter_stack()
    if interpreter is not None and interpreter.key() == TransformType.Vmap and has_vmap(function):
        rule = custom_function_call.functorch_table[TransformType.Vmap]
        return rule(coerce_cinterpreter(interpreter), function, *operands)
    function = split(function, second_order_of(function), linked_intermediates)
    seen = what_is_seen(function, operands, partial(_says, moves=not has_jvp(function)))
    operands = (*operands, seen)
    views = any(isinstance(value, torch.Tensor) and value._is_view() for value in operands)
    dirty = dirty_inputs(function, operands) if views else ()
    if any(operands[i]._is_view() for i, _ in dirty):
        return _on_views(function, operands, dirty)
    *outputs, plan = custom_function_call(function, *operands)
    return outputs[0] if plan.single else tuple(outputs[: plan.outputs])


def _says(tensor: torch.Tensor, *, moves: bool = False) -> tuple[bool, bool]:
    """Whether some level differentiates a tensor, and whether none made it.

    Eager can't run such a Function under a transform; this is what ``requires_grad`` is for there.
    A tangent counts where the forward rule has to be made of what forward keeps for its backward.
    """
    needed = requires_grad_at_any_level(tensor) or (moves and has_tangent(tensor))
    return needed, is_leaf_at_every_level(tensor)


def _on_views(function: type, operands: tuple[Any, ...], dirty: Any) -> Any:
    """Call a split Function that changes a view in place.

    Autograd allows that to Functions with one output only, and a split one has its plan too.
    """
    called = out_of_place(function, dirty)
    *outputs, plan = custom_function_call(called, *operands)
    if plan.outputs > 1:
        raise RuntimeError(
            "If your Function modifies inplace an input that is a view of another Tensor, your "
            "Function cannot return more than one Tensor. This is not supported by the current "
            "autograd engine. You should either make sure the input is not a view (using .clone() "
            "for example) or make your Function only return one Tensor."
        )
    ((i, j),) = dirty
    version = version_of(operands[i])
    operands[i].copy_(outputs[j])
    if not (operands[i].is_inference() or transforms_active()):
        # What forward wrote, and the mark.
        writes: dict[int, int] = getattr(called, "funcaot_writes", {})
        set_version(operands[i], version + writes.get(i, 0) + 1)
    return operands[i] if plan.single else (operands[i],)


def wants_split(function: type) -> bool:
    """Whether a call of an old-style Function has to be split where no transform is active."""
    return in_dual_level() or second_order_of(function) != "eager"


custom_function_call.register("old_style")(old_style_rule)
custom_function_call.register("wants_split")(wants_split)
