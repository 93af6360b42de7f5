"""Forward mode made from a reverse rule: the transpose of the map from cotangents to gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import once_differentiable_body
from funcaot._torch.levels.functorch import is_level_failure
from funcaot.classes.context import OverlayContext
from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import defined_at, display_name, reverse_rule
from funcaot.errors import MissingRuleError
from funcaot.rules.generated.linearity import check_linear, refuse_severed
from funcaot.rules.metadata import CallMetadata

__all__ = ["jvp_from_backward", "register_reverse_runner"]


ReverseRunner = Callable[[type, Any, tuple[Any, ...]], Any]


def _plainly(function: type, ctx: Any, cotangents: tuple[Any, ...]) -> Any:
    return reverse_rule(function)(ctx, *cotangents)


_runner: list[ReverseRunner] = [_plainly]


def register_reverse_runner(runner: ReverseRunner) -> None:
    """Say how a reverse rule is run at a level; that takes the operator, which is above this."""
    _runner[0] = runner


def jvp_from_backward(function: type, ctx: Any, tangents: tuple[Any, ...]) -> Any:
    """Apply the Jacobian to ``tangents``, knowing only ``backward``.

    ``backward`` computes ``g -> J^H g``. That map is linear in ``g``, so its own vjp at ``g = 0``,
    applied to ``tangents``, is ``J tangents``. This holds when ``backward`` is linear in the
    cotangent, differentiable in it, and doesn't branch on its values.

    Args:
        function: The Function, for errors and for its ``allow_nonlinear_rule``.
        ctx: A ctx whose ``_funcaot_call`` describes the call.
        tangents: One tangent or None per input.

    Returns:
        One tangent or None per output, alone if forward returned one value.

    Raises:
        MissingRuleError: ``backward`` is ``once_differentiable`` and so has no vjp.
        RuleError: ``backward`` isn't linear or not differentiable in the cotangents.
    """
    if once_differentiable_body(reverse_rule(function)) is not None:
        raise MissingRuleError(
            f"{display_name(function)} was differentiated in forward mode and its rule can't be "
            "generated",
            expected="a `backward` that can itself be differentiated, to be transposed",
            got="a `backward` marked @once_differentiable",
            remedy="define `jvp(ctx, *tangents)`.",
            where=defined_at(function),
        )
    call: CallMetadata = ctx._funcaot_call
    ctx = OverlayContext(
        ctx,
        needs_input_grad=tuple(tangent is not None for tangent in tangents),
        saved_tensors=ctx.saved_tensors,
    )
    where = [j for j, differentiable in enumerate(call.differentiable) if differentiable]
    kept: list[int] = []

    def pulled(looks: bool, *cotangents: torch.Tensor) -> tuple[torch.Tensor, ...]:
        full: list[Any] = [
            None if metadata is None or not call.materialize else metadata.zeros()
            for metadata in call.outputs
        ]
        for j, cotangent in zip(where, cotangents, strict=True):
            full[j] = cotangent
        result = _runner[0](function, ctx, tuple(full))
        result = result if isinstance(result, tuple) else (result,)
        if looks and (captor := current_captor()) is not None:
            refuse_severed(captor, function, result, cotangents)
        kept[:] = [
            i
            for i, (gradient, tangent) in enumerate(zip(result, tangents, strict=False))
            if gradient is not None and tangent is not None
        ]
        # As autograd does with a gradient of another dtype than its input's.
        return tuple(result[i].to(tangents[i].dtype) for i in kept)

    zeros = [metadata.zeros() for j in where if (metadata := call.outputs[j]) is not None]
    outputs: list[Any] = [None] * len(call.outputs)
    if where:
        gradients = _looked_at(function, pulled, zeros)
        at_zero, transpose = _transposed(function, gradients, zeros)
        if kept:
            check_linear(function, gradients, zeros, at_zero, transpose)
            # What is overwritten below must not be what autograd saves of this.
            dirty = {i for i, _ in call.dirty}
            given = {i: tangents[i].clone() if i in dirty else tangents[i] for i in kept}
            # backward may return a gradient that autograd would sum down to the input's shape
            expanded = tuple(
                given[i].expand(value.shape) for i, value in zip(kept, at_zero, strict=True)
            )
            for j, tangent in zip(where, transpose(expanded), strict=True):
                outputs[j] = tangent
            _separate(outputs, [*given.values(), *expanded], call)
    for i, j in call.dirty:  # autograd wants the tangent of an in-place Function changed in place
        if tangents[i] is not None and outputs[j] is not None:
            outputs[j] = tangents[i].copy_(outputs[j])
    return outputs[0] if call.single else tuple(outputs)


def _looked_at(function: type, pulled: Any, zeros: list[torch.Tensor]) -> Any:
    """The rule: looked at when it runs, or by now if what is recorded has grad mode off anyway."""
    looking = functools.partial(pulled, True)
    if current_captor() is None or torch.is_grad_enabled():
        return looking
    with torch.enable_grad():
        _transposed(function, looking, zeros)
    return functools.partial(pulled, False)


def _separate(outputs: list[Any], given: list[torch.Tensor], call: CallMetadata) -> None:
    """Give tangents memory of their own: ``backward`` may return its argument, a jvp may not.

    A write to an output in place would change the tangent of an input, or of another output.
    """
    for j, tangent in enumerate(outputs):
        if tangent is None or not call.owning[j]:
            continue
        others = [*given, *(other for k, other in enumerate(outputs) if k < j)]
        if tangent._is_view() or any(tangent is other for other in others):
            outputs[j] = tangent.clone()


def _transposed(function: type, gradients: Any, zeros: list[torch.Tensor]) -> Any:
    try:
        return torch.func.vjp(gradients, *zeros)
    except RuntimeError as error:
        if not is_level_failure(error):
            raise
        raise MissingRuleError(
            f"{display_name(function)} was differentiated in forward mode and its rule can't be "
            "generated",
            expected="a `backward` made of differentiable operations, to be transposed",
            got=f"one that functorch refuses: {str(error).splitlines()[0]}",
            remedy="define `jvp(ctx, *tangents)`.",
            where=defined_at(function),
        ) from error
