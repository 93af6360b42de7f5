"""Run a user's reverse rule at a level among others."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import in_dual_level, once_differentiable_body
from funcaot._torch.levels.functorch import is_batching_failure, is_level_failure, transforms_active
from funcaot._torch.levels.level_refusals import requires_grad_refused
from funcaot.classes.context import RecordingContext, attributes_of
from funcaot.classes.opaque import current_captor
from funcaot.classes.traits import display_name, has_jvp, origin_of, reverse_rule
from funcaot.operator.operator import custom_function_call
from funcaot.rules.generated.jvp_from_backward import register_reverse_runner
from funcaot.rules.operands.flat_call import FlatCall, apart_from, tensors_of
from funcaot.rules.operands.kept import HeldCall, flatten_held
from funcaot.transforms.forms.once import once_at_every_level
from funcaot.transforms.forms.without_levels import RuleCall, call_without_levels

__all__ = ["BackwardPerExample", "run_reverse", "run_rule"]


def run_reverse(function: type, ctx: Any, cotangents: tuple[Any, ...]) -> Any:
    """Run ``backward`` of ``function``, whatever it's decorated with, at the current level."""
    return run_rule(function, reverse_rule(function), ctx, cotangents)


def run_rule(
    function: type, rule: Callable[..., Any], ctx: Any, cotangents: tuple[Any, ...]
) -> Any:
    """Run a reverse rule, as a Function of its own if it can't run at this level as it is.

    Adjoint methods and checkpoints call ``requires_grad_`` and ``torch.autograd.grad`` in backward,
    which functorch refuses; and a rule may do what ``vmap`` can't batch. As a Function of what it
    reads, such a rule has its levels peeled off, all of them or the batched ones, before it runs.
    """
    body = once_differentiable_body(rule)
    boxed = getattr(function, "boxed_grads_call", False)
    arguments = (list(cotangents),) if boxed else cotangents
    refuses = not transforms_active() and _is_for_levels(function)
    try:
        with requires_grad_refused() if refuses else contextlib.nullcontext():
            if body is not None:
                return once_at_every_level(function, body, ctx, arguments)
            return rule(ctx, *arguments)
    except RuntimeError as error:
        if not (transforms_active() or refuses):
            raise
        without_levels = is_level_failure(error)
        if not without_levels and not is_batching_failure(error):
            raise
        needs, saved, attributes = ctx.needs_input_grad, ctx.saved_tensors, attributes_of(ctx)
        given = (saved, attributes, tuple(arguments))
        call, tensors = flatten_held(given, display_name(function))
        rule_or_body = rule if body is None else body
    if without_levels:
        captor = current_captor()
        transposes = captor is not None and captor.transposes
        linear_from = len(tensors) - len(tensors_of(arguments)) if transposes else None
        code = RuleCall(function, rule_or_body, needs, call, linear_from)
        if body is None:
            return call_without_levels(code, tensors)
        return once_at_every_level(
            function, lambda ctx, *_: call_without_levels(code, tensors), ctx, arguments
        )
    return custom_function_call(BackwardPerExample, function, rule_or_body, needs, call, *tensors)


def _is_for_levels(function: type) -> bool:
    """Whether a rule that runs below every level answers a derivative that eager hasn't.

    That is so on a tape, if levels ask it for a derivative; and of dual numbers whose Function has
    no ``jvp``. Where there is one, eager goes on with what the rule detached, and so do we.
    """
    captor = current_captor()
    if captor is None:
        return in_dual_level() and not has_jvp(origin_of(function))
    if captor.asked_by == "tangents":
        return not has_jvp(origin_of(function))
    return captor.asked_by == "levels"


class BackwardPerExample(torch.autograd.Function):
    """A reverse rule as a Function, on its saved tensors, attributes and cotangents.

    As a Function it meets ``vmap`` one level at a time, and is run once per example there.
    """

    generate_vmap_rule = True
    vmap_by_loop = True
    generate_jvp_rule = False

    @staticmethod
    def forward(
        function: type, rule: Any, needs: tuple[bool, ...], call: FlatCall | HeldCall, *tensors: Any
    ) -> Any:
        """Run the rule."""
        saved, attributes, cotangents = call.arguments(tensors)
        ctx = RecordingContext(
            needs, saved_tensors=saved, attributes=attributes, owner=display_name(function)
        )
        result = rule(ctx, *cotangents)
        return apart_from(tensors, result if isinstance(result, tuple) else (result,))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the operands."""
        ctx.fixed, tensors = inputs[:4], inputs[4:]
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Pull back through the rule."""
        kept = [j for j, cotangent in enumerate(cotangents) if cotangent is not None]
        rule, where, primals = _as_function_of_floats(ctx, kept)
        gradients = torch.func.vjp(rule, *primals)[1](tuple(cotangents[j] for j in kept))
        found = dict(zip(where, gradients, strict=True))
        return (None,) * 4 + tuple(found.get(i) for i in range(len(ctx.saved_tensors)))

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        """Push through the rule."""
        return run_rule(BackwardPerExample, _push, ctx, tangents)


def _push(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
    output = BackwardPerExample.forward(*ctx.fixed, *ctx.saved_tensors)
    kept = [j for j, value in enumerate(output) if isinstance(value, torch.Tensor)]
    rule, where, primals = _as_function_of_floats(ctx, kept)
    given = tuple(
        torch.zeros_like(p) if tangents[4 + i] is None else tangents[4 + i]
        for i, p in zip(where, primals, strict=True)
    )
    pushed = dict(zip(kept, torch.func.jvp(rule, tuple(primals), given)[1], strict=True))
    return tuple(pushed.get(j) for j in range(len(output)))


def _as_function_of_floats(
    ctx: Any, kept: list[int]
) -> tuple[Callable[..., Any], list[int], list[torch.Tensor]]:
    """The rule as a function of its floating-point tensors, to differentiate."""
    tensors = ctx.saved_tensors
    where = [i for i, t in enumerate(tensors) if t.is_floating_point() or t.is_complex()]

    def rule(*primals: torch.Tensor) -> tuple[Any, ...]:
        filled = list(tensors)
        for i, primal in zip(where, primals, strict=True):
            filled[i] = primal
        output = BackwardPerExample.forward(*ctx.fixed, *filled)
        return tuple(output[j] for j in kept)

    return rule, where, [tensors[i] for i in where]


register_reverse_runner(run_reverse)
