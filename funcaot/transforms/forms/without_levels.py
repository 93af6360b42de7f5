"""Code that runs autograd itself, as a Function that runs it where no level is active.

Adjoint methods and checkpoints call ``requires_grad_`` and ``torch.autograd.grad`` in backward,
which functorch refuses. As a Function of the tensors it reads, such code has its levels peeled off
before it runs. What it detaches is part of how it computes, and eager can't differentiate it under
a transform at all; so its derivative is that of the map it computes: the ops that it ran, its inner
backward's among them, are run again where they are differentiated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tracing.recorded_ops import (
    NotDifferentiableError,
    OpRecorder,
    Recording,
    data_access_refused,
)
from funcaot.classes.context import RecordingContext
from funcaot.classes.traits import defined_at, display_name
from funcaot.errors import MissingRuleError
from funcaot.operator.operator import custom_function_call
from funcaot.rules.generated.linearity import may_be_nonlinear, nonlinear
from funcaot.rules.metadata import zeros_apart
from funcaot.rules.operands.flat_call import FlatCall, apart_from
from funcaot.rules.operands.kept import HeldCall

__all__ = ["RuleCall", "WithoutLevels", "call_without_levels", "register_interception"]

Interception = Callable[[], contextlib.AbstractContextManager[None]]
_interception: list[Interception] = [contextlib.nullcontext]


def register_interception(intercepting: Interception) -> None:
    """Say how Functions inside are kept whole, with their rules; that is above this."""
    _interception[0] = intercepting


@dataclass(frozen=True, eq=False)
class RuleCall:
    """A reverse rule on the tensors that it reads.

    Attributes:
        function: The user's Function.
        rule: Its rule, as ``rule(ctx, *cotangents)``.
        needs: What ``ctx.needs_input_grad`` says.
        call: How saved tensors, attributes and cotangents are made of the tensors.
        linear_from: From which tensor on it has to be linear, as its transpose is forward mode.
    """

    function: type
    rule: Callable[..., Any]
    needs: tuple[bool, ...]
    call: FlatCall | HeldCall
    linear_from: int | None = None

    def __call__(self, *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Run the rule."""
        saved, attributes, cotangents = self.call.arguments(tensors)
        ctx = RecordingContext(
            self.needs,
            saved_tensors=saved,
            attributes=attributes,
            owner=display_name(self.function),
        )
        result = self.rule(ctx, *cotangents)
        return result if isinstance(result, tuple) else (result,)


@dataclass(frozen=True, eq=False)
class _Derivative:
    """What pullback and pushforward of a piece of code share.

    Attributes:
        code: The code.
        linear_from: How many tensors the code is given; in what follows, cotangents or tangents,
            a derivative is linear.
        where: Which of them are differentiated.
        kept: Which of its results are.
    """

    code: Callable[..., tuple[Any, ...]]
    linear_from: int
    where: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def function(self) -> type:
        return self.code.function  # type: ignore[attr-defined, no-any-return]

    def differentiable(self, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
        """The code as a function of the tensors that are differentiated, and these."""
        recording, _ = recorded(self.code, tensors)

        def values(*primals: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(tensors)
            for index, primal in zip(self.where, primals, strict=True):
                filled[index] = primal
            results = recording.replay(filled)
            return tuple(results[j] for j in self.kept)

        return values, [tensors[index] for index in self.where]


class _Pullback(_Derivative):
    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, primals = self.differentiable(tensors[: self.linear_from])
        return torch.func.vjp(values, *primals)[1](tuple(tensors[self.linear_from :]))


class _LinearPullback(_Pullback):
    """The same of a rule that is transposed, which has to be linear there: this is looked at."""

    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        recording, results = recorded(super().__call__, tensors, self.function)
        if recording.depends_on(self.where) and not may_be_nonlinear(self.function):
            raise nonlinear(self.function, "isn't visibly linear in the cotangents")
        return results


class _Pushforward(_Derivative):
    def __call__(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Transpose twice: every op that a second derivative may meet has a reverse formula."""
        values, primals = self.differentiable(tensors[: self.linear_from])
        outputs, pullback = torch.func.vjp(values, *primals)
        zeros = tuple(torch.zeros_like(output) for output in outputs)
        return torch.func.vjp(pullback, zeros)[1](tuple(tensors[self.linear_from :]))[0]


def recorded(
    code: Callable[..., tuple[Any, ...]],
    tensors: Sequence[torch.Tensor],
    function: type | None = None,
) -> tuple[Recording, tuple[Any, ...]]:
    """Run code and record its ops.

    Raises:
        MissingRuleError: It can't be differentiated by running them again.
    """
    own = [tensor.detach() for tensor in tensors]
    recorder = OpRecorder(own)
    try:
        with _interception[0](), data_access_refused(), recorder:
            results = code(*own)
        return recorder.recording(results), results
    except NotDifferentiableError as error:
        known: Any = function or code.function  # type: ignore[attr-defined]
        raise _refusal(known, str(error)) from None


def _refusal(function: type, got: str) -> MissingRuleError:
    return MissingRuleError(
        f"A derivative was taken of the backward of {display_name(function)}, which runs autograd "
        "itself (a second derivative, or forward mode generated from it)",
        expected="a backward made of differentiable operations",
        got=got,
        remedy="write the gradient in closed form, or with torch.func.vjp.",
        where=defined_at(function),
    )


class WithoutLevels(torch.autograd.Function):
    """Code on tensors that has to run where no level is active."""

    generate_vmap_rule = True
    vmap_by_loop = True
    generate_jvp_rule = False

    @staticmethod
    def forward(code: Callable[..., tuple[Any, ...]], *tensors: torch.Tensor) -> tuple[Any, ...]:
        """Run the code."""
        return apart_from(tensors, code(*tensors))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Keep the code and its operands."""
        ctx.code, tensors = inputs[0], inputs[1:]
        ctx.moving = tuple(isinstance(v, torch.Tensor) and _moves(v) for v in output)
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        """Pull back through the ops that the code ran."""
        saved, found = ctx.saved_tensors, {}
        kept = tuple(j for j, cotangent in enumerate(cotangents) if cotangent is not None)
        given = [cotangents[j] for j in kept]
        wanted = [i for i, t in enumerate(saved) if ctx.needs_input_grad[1 + i] and _moves(t)]
        linear_from = len(saved) if ctx.code.linear_from is None else ctx.code.linear_from
        for linear in (False, True):
            where = tuple(i for i in wanted if (i >= linear_from) is linear)
            if where and kept:
                checked = linear and isinstance(ctx.code, RuleCall)
                kind = _LinearPullback if checked else _Pullback
                pullback = kind(ctx.code, len(saved), where, kept)
                at = saved
                if linear:
                    at = (*saved[:linear_from], *map(zeros_apart, saved[linear_from:]))
                gradients = call_without_levels(pullback, (*at, *given))
                found.update(zip(where, gradients, strict=True))
        return (None, *[found.get(i) for i in range(len(saved))])

    @staticmethod
    def jvp(ctx: Any, _code: Any, *tangents: Any) -> Any:
        """Push through the ops that the code ran."""
        saved = ctx.saved_tensors
        where = tuple(i for i, tangent in enumerate(tangents) if tangent is not None)
        kept = tuple(j for j, moving in enumerate(ctx.moving) if moving)
        if not where or not kept:
            return (None,) * len(ctx.moving)
        pushforward = _Pushforward(ctx.code, len(saved), where, kept)
        given = [tangents[i] for i in where]
        found = dict(zip(kept, call_without_levels(pushforward, (*saved, *given)), strict=True))
        return tuple(found.get(j) for j in range(len(ctx.moving)))


def _moves(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def call_without_levels(
    code: Callable[..., tuple[Any, ...]], tensors: Sequence[torch.Tensor]
) -> tuple[Any, ...]:
    """Run code on tensors below every level; it can be differentiated to any order."""
    return custom_function_call(WithoutLevels, code, *tensors)  # type: ignore[no-any-return]


class _Whole:
    """One call of a Function among the ops of a recording."""

    def __init__(self, function: type) -> None:
        self._function = function

    def __call__(self, *operands: Any) -> Any:
        return custom_function_call(self._function, *operands)


def recorder_rule(mode: OpRecorder, function: type, *operands: Any) -> Any:
    """Record a Function as one call, which keeps its rules."""
    output = custom_function_call.below_autograd(function, *operands)
    mode.note(_Whole(function), operands, {}, output)
    return output


custom_function_call.py_impl(OpRecorder)(recorder_rule)
