"""The Function class that autograd really sees: one level, the user's rules, checked."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.autograd.autograd import (
    SingleLevelFunction,
    compiled_autograd_key,
    new_function_class,
)
from funcaot.base.tracebacks import shortened
from funcaot.classes.containers import (
    ChangesGivenError,
    Contents,
    holds_container,
    note_kept,
)
from funcaot.classes.context import attributes_of
from funcaot.classes.opaque import Captor, current_captor
from funcaot.classes.protocol import values_of
from funcaot.classes.traits import defined_at, display_name, has_backward, has_jvp, reverse_rule
from funcaot.errors import MissingRuleError, RuleError, UnsupportedError
from funcaot.rules.generated.complete import completed
from funcaot.rules.generated.linearity import refuse_severed
from funcaot.rules.kept_graphs import RetainingGraphs, keeps_graph, own_leaves
from funcaot.rules.opaque.backward import input_layouts, traced_or_opaque
from funcaot.rules.operands.entered import enter_kept, fill
from funcaot.rules.returns import checked_gradients, checked_tangents, shapes_of

__all__ = ["USER_FUNCTION", "RuleRunner", "single_level_class"]

USER_FUNCTION = "_funcaot_function"
_SHAPES = "_funcaot_shapes"
_OUTPUT_SHAPES = "_funcaot_output_shapes"

Rule = Callable[..., Any]


class RuleRunner:
    """How a generated class runs the user's rules; what torch does where one level is all."""

    def reverse(self, function: type, ctx: Any, cotangents: tuple[Any, ...]) -> Any:
        """Run the reverse rule."""
        boxed = getattr(function, "boxed_grads_call", False)
        return reverse_rule(function)(ctx, *((list(cotangents),) if boxed else cotangents))

    def jvp(self, rule: Rule, ctx: Any, tangents: tuple[Any, ...]) -> Any:
        """Run the forward rule."""
        return rule(ctx, *tangents)


def single_level_class(
    function: type, forward: Callable[..., Any], runner: RuleRunner | None = None
) -> type:
    """Generate a Function for one level.

    Args:
        function: The user's Function, with ``setup_context``.
        forward: What forward does at this level: lower the call, or compute it.
        runner: How the user's rules are run. None: as torch runs them.

    Returns:
        A class of the user's name, so that ``grad_fn`` and anomaly mode show it.
    """
    function = completed(function)
    runner = RuleRunner() if runner is None else runner
    namespace = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(_setup_context(function)),
        "backward": staticmethod(_backward(function, runner)),
        "jvp": staticmethod(_jvp(function, runner)),
        "clear_saved_tensors_on_access": getattr(function, "clear_saved_tensors_on_access", False),
        "_compiled_autograd_key": staticmethod(compiled_autograd_key),
        "__module__": function.__module__,
        USER_FUNCTION: function,
    }
    return new_function_class(function.__name__, SingleLevelFunction, namespace)


def _setup_context(function: type) -> Callable[..., None]:
    keeps_outputs = has_jvp(function)
    trusted = values_of(function) is not None

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        if trusted and current_captor() is None:
            function.setup_context(ctx, inputs, output)
            return
        shapes = shapes_of(inputs)
        ctx._funcaot_shapes = shapes
        if keeps_outputs:
            output_shapes = shapes_of(output if isinstance(output, tuple) else (output,))
            ctx._funcaot_output_shapes = output_shapes
        captor = current_captor()
        if captor is None:
            function.setup_context(ctx, inputs, output)
        else:
            ctx._funcaot_layouts = input_layouts(inputs)
            ctx._funcaot_given = ()
            _keep(function, ctx, inputs, output)
            enter_kept(captor, ctx)
            ctx._funcaot_graph = _has_graph(ctx, inputs, output)
            _refuse_constant_inputs(function, captor, ctx.non_differentiable, inputs, output)
        if ctx._funcaot_shapes is not shapes:
            raise _clash(function, _SHAPES)
        if keeps_outputs and ctx._funcaot_output_shapes is not output_shapes:
            raise _clash(function, _OUTPUT_SHAPES)
        if keeps_outputs:
            ctx._funcaot_outputs = _differentiable(ctx, output)

    return setup_context


def _keep(function: Any, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Run a setup_context in a capture, and note which of the caller's containers it keeps.

    Raises:
        ChangesGivenError: It changes one.
    """
    given = Contents(inputs) if holds_container(inputs) else None
    fill(function, ctx, inputs, output)
    if given is None:
        return
    if given.changed():
        given.put_back()
        raise ChangesGivenError.of(display_name(function), "setup_context")
    ctx._funcaot_given = note_kept(attributes_of(ctx), inputs)


def _differentiable(ctx: Any, output: Any) -> tuple[Any, ...]:
    """For each output that forward mode gives a tangent, a reference that keeps nothing alive."""
    constant = {id(tensor) for tensor in ctx.non_differentiable or ()}
    return tuple(
        [
            weakref.ref(value)
            if isinstance(value, torch.Tensor)
            and (value.is_floating_point() or value.is_complex())
            and id(value) not in constant
            else None
            for value in (output if isinstance(output, tuple) else (output,))
        ]
    )


def _has_graph(ctx: Any, inputs: tuple[Any, ...], output: Any) -> tuple[Any, ...] | None:
    """The operands of a call whose ctx keeps a graph that setup_context recorded, else None."""
    outputs = output if isinstance(output, tuple) else (output,)
    return inputs if keeps_graph(ctx, (*inputs, *outputs)) else None


def _with_zeros(ctx: Any, result: Any) -> Any:
    """What ``jvp`` returned, with zeros for None: torch's own code expects a tensor there.

    It asks for tangents while the call runs, so its outputs are alive.
    """
    tangents = result if isinstance(result, tuple) else (result,)
    if all(tangent is not None for tangent in tangents):
        return result
    outputs = [None if seen is None else seen() for seen in ctx._funcaot_outputs]
    filled = tuple(
        [
            torch.zeros_like(output) if tangent is None and output is not None else tangent
            for tangent, output in zip(tangents, outputs, strict=True)
        ]
    )
    return filled if isinstance(result, tuple) else filled[0]


def _refuse_constant_inputs(
    function: type, captor: Captor, marked: Any, inputs: tuple[Any, ...], output: Any
) -> None:
    """Refuse an input that is returned as it is and marked: a capture returns a view of it."""
    constant = [tensor for tensor in marked or () if any(tensor is value for value in inputs)]
    outputs = output if isinstance(output, tuple) else (output,)
    if any(captor.stands_for(value, tensor) for tensor in constant for value in outputs):
        raise UnsupportedError(
            f"{display_name(function)} returns an input that requires grad and marks it "
            "non-differentiable.",
            remedy="return x.detach(), and mark that.",
        )


def _clash(function: type, name: str) -> RuleError:
    return RuleError(
        f"setup_context of {display_name(function)} set `ctx.{name}`, which funcaot reserves",
        expected="attributes of ctx that don't begin with `_funcaot_`",
        got=f"`ctx.{name}`",
        remedy="rename the attribute.",
        where=defined_at(function),
    )


def _backward(function: type, runner: RuleRunner) -> Callable[..., Any]:
    if not has_backward(function):

        def missing(ctx: Any, *cotangents: Any) -> Any:
            raise MissingRuleError(
                f"{display_name(function)} was differentiated in reverse mode (grad, vjp, jacrev "
                "or backward) and has no rule for it",
                expected="a `backward` staticmethod",
                got="`jvp` only" if has_jvp(function) else "neither `backward` nor `jvp`",
                remedy="define `backward(ctx, *grad_outputs)`, or set `generate_backward_rule = "
                "True` on a Function whose `jvp` is linear in the tangents.",
                where=defined_at(function),
            )

        return missing

    trusted = values_of(function) is not None

    def run(ctx: Any, *cotangents: Any) -> Any:
        try:
            given = getattr(ctx, "_funcaot_graph", None)
            if given is not None:
                with RetainingGraphs(display_name(function), own_leaves(ctx, given)):
                    return runner.reverse(function, ctx, cotangents)
            return runner.reverse(function, ctx, cotangents)
        except Exception as error:  # noqa: BLE001 (it is raised again)
            raise shortened(error)  # noqa: B904 (it is the same error)

    def backward(ctx: Any, *cotangents: Any) -> Any:
        captor = current_captor()
        if captor is None:
            result = run(ctx, *cotangents)
        else:
            with captor.running_rule() as in_step:
                result = traced_or_opaque(captor, function, run, ctx, cotangents, in_step=in_step)
        if captor is not None and captor.transposes:
            refuse_severed(captor, function, result, cotangents)
        if trusted:
            return result
        return checked_gradients(function, result, ctx._funcaot_shapes)

    return backward


def _jvp(function: type, runner: RuleRunner) -> Callable[..., Any]:
    if not has_jvp(function):

        def missing(ctx: Any, *tangents: Any) -> Any:
            raise MissingRuleError(
                f"{display_name(function)} was differentiated in forward mode (jvp, jacfwd or a "
                "dual tensor) and has no rule for it",
                expected="a `jvp` staticmethod",
                got="`backward` only" if has_backward(function) else "neither `jvp` nor `backward`",
                remedy="define `jvp(ctx, *tangents)`, or set `generate_jvp_rule = True` on a "
                "Function whose `backward` is linear in the cotangents.",
                where=defined_at(function),
            )

        return missing

    trusted = values_of(function) is not None

    def jvp(ctx: Any, *tangents: Any) -> Any:
        try:
            result = runner.jvp(function.jvp, ctx, tangents)
        except Exception as error:  # noqa: BLE001 (it is raised again)
            raise shortened(error)  # noqa: B904 (it is the same error)
        if trusted:
            return result
        return _with_zeros(ctx, checked_tangents(function, result, ctx._funcaot_output_shapes))

    return jvp
