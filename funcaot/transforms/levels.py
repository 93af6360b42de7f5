"""What the Grad and Jvp rules share: unwrap, call again one level down, wrap."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch.autograd import forward_ad

from funcaot._torch.autograd.autograd import (
    forward_grad_enabled,
    is_forward_grad_enabled,
    is_zero_tensor,
)
from funcaot._torch.levels.functorch import (
    TransformType,
    coerce_cinterpreter,
    gradients_leave_level,
    map_tensors,
    peek_interpreter_stack,
    requires_grad_at_any_level,
    single_level_functions_allowed,
    unwrap_dead,
    unwrap_for_grad,
    unwrap_if_dead,
    wrap_for_grad,
)
from funcaot.classes.class_cache import cache_of
from funcaot.classes.context import OverlayContext
from funcaot.classes.protocol import program_of, values_of
from funcaot.classes.traits import origin_of
from funcaot.operator.operator import custom_function_call
from funcaot.operator.single_level import RuleRunner, single_level_class
from funcaot.transforms.reverse import run_reverse
from funcaot.transforms.values import only_values

__all__ = ["BaseRunner", "LevelRunner", "LowerLevel", "apply_level", "laid_out_for", "rewrapped"]


class _Pending(threading.local):
    """How a cached class learns its level.

    A class per call, closing over the interpreter, is what makes torch's own path slow. ``apply``
    calls forward at once and in the same thread, so the call that belongs to it can wait here.
    """

    call: Any = None
    tangents: tuple[Any, ...] = ()


_pending = _Pending()


def _forward(*operands: Any) -> Any:
    call, _pending.call = _pending.call, None
    return call(operands)


def apply_level(function: type, call: Any, operands: tuple[Any, ...]) -> Any:
    """Apply the cached single-level class of ``function``, whose forward is ``call(operands)``."""
    cache = cache_of(function)
    generated = cache.get("level")
    if generated is None:
        generated = cache["level"] = single_level_class(function, _forward, LevelRunner())
    _pending.call = call
    try:
        with single_level_functions_allowed():
            return generated.apply(*operands)
    finally:
        _pending.call = None


class BaseRunner(RuleRunner):
    """Runs the user's rules where no level was active when forward ran."""

    def reverse(self, function: type, ctx: Any, cotangents: tuple[Any, ...]) -> Any:
        """See :mod:`funcaot.transforms.reverse`."""
        return run_reverse(function, ctx, map_tensors(ordinary, cotangents))

    def jvp(self, rule: Any, ctx: Any, tangents: tuple[Any, ...]) -> Any:
        """Run the forward rule, and remember its result for ``with_tangents``."""
        result = rule(ctx, *tangents)
        _pending.tangents = result if isinstance(result, tuple) else (result,)
        return result


def with_tangents(call: Any) -> Any:
    """Apply a class to dual tensors, and give its outputs the tangents that autograd drops.

    After an output that is a view of an input without a tangent, it sets no more of them.
    """
    _pending.tangents = ()
    try:
        outputs = call()
    finally:
        tangents, _pending.tangents = _pending.tangents, ()
    if not isinstance(outputs, tuple) or len(tangents) < 2:
        return outputs
    return tuple(map(_with_tangent, outputs, (*tangents, *[None] * len(outputs))))


def _with_tangent(output: Any, tangent: Any) -> Any:
    if not isinstance(output, torch.Tensor) or tangent is None:
        return output
    if forward_ad.unpack_dual(output).tangent is not None:
        return output
    return forward_ad.make_dual(output, tangent)


class LevelRunner(BaseRunner):
    """Runs the user's rules at one level among others."""

    def reverse(self, function: type, ctx: Any, cotangents: tuple[Any, ...]) -> Any:
        """Run the reverse rule on values that are alive.

        The function that ``vjp`` returns may be called after the level has ended. What was saved is
        then wrapped for a dead level, whose number the next transform inside the rule takes over.
        """
        if values_of(function) is not None and gradients_leave_level():
            return _below_level(function, ctx, cotangents)
        alive = map_tensors(ordinary, unwrap_dead(cotangents))
        return run_reverse(function, _MappedContext(ctx, unwrap_if_dead), alive)

    def jvp(self, rule: Any, ctx: Any, tangents: tuple[Any, ...]) -> Any:
        """Run the forward rule one level down.

        Autograd calls it with forward mode off, so at this level what it computes has no tangents
        for the levels below either, and a ``jvp`` of a ``jvp`` would be zero. Primal and tangent
        are both plain values one level down, and there they're computed like any others.
        """
        interpreter = peek_interpreter_stack()
        if interpreter is None or interpreter.key() != TransformType.Jvp:
            return super().jvp(rule, ctx, tangents)
        interpreter = coerce_cinterpreter(interpreter)
        level = interpreter.level()

        def unwrap(tensor: torch.Tensor) -> torch.Tensor:
            return unwrap_for_grad(tensor, level)

        lowered = map_tensors(unwrap, tangents)
        with forward_grad_enabled(True), interpreter.lower():
            lowered = map_tensors(ordinary, lowered)
            result = rule(_MappedContext(ctx, unwrap), *lowered)
        output = rewrapped(result, lowered, tangents, lambda tensor: wrap_for_grad(tensor, level))
        for tangent in output if isinstance(output, tuple) else (output,):
            # Autograd asks the version of a dirty input's tangent whether it was updated in place;
            # one level down that counted the version of another object.
            if tangent is not None and any(tangent is given for given in tangents):
                torch.autograd.graph.increment_version(tangent)
        return output


def _below_level(function: type, ctx: Any, cotangents: tuple[Any, ...]) -> Any:
    """Run a program's backward one level down, since at this level nobody differentiates it."""
    interpreter = coerce_cinterpreter(peek_interpreter_stack())
    level = interpreter.level()

    def unwrap(tensor: torch.Tensor) -> torch.Tensor:
        return unwrap_for_grad(tensor, level)

    lowered = map_tensors(unwrap, cotangents)
    saved = map_tensors(unwrap, ctx.saved_tensors)
    with interpreter.lower():
        recorded = torch.is_grad_enabled() and any(
            isinstance(value, torch.Tensor) and requires_grad_at_any_level(value)
            for value in (*saved, *lowered)
        )
        with torch.set_grad_enabled(recorded):
            seen = OverlayContext(ctx, saved_tensors=saved)
            return function.backward(seen, *lowered)  # type: ignore[attr-defined]


class _MappedContext(OverlayContext):
    """A ctx whose tensors are seen through a function of each."""

    def __init__(self, ctx: Any, function: Any) -> None:
        """Look at ``ctx`` through ``function``."""
        super().__init__(ctx, _funcaot_function=function)

    def __getattr__(self, name: str) -> Any:
        value = super().__getattr__(name)
        return map_tensors(self.__dict__["_funcaot_function"], (value,))[0]


class LowerLevel:
    """Forward at a Grad or Jvp level: the same operator on what this level has wrapped."""

    def __init__(self, interpreter: Any, function: type) -> None:
        """Bind the level, and what was being recorded when the Function was called.

        ``apply`` switches both kinds of derivatives off for forward. This level's own are recorded
        by the class around us; ``lower`` restores the kind that the level covers to what it was
        outside. The other kind is for the levels below, and goes on as the caller left it.
        """
        self.interpreter, self.function = interpreter, function
        forward_level = interpreter.key() == TransformType.Jvp
        self.reverse = torch.is_grad_enabled() if forward_level else True
        of_a_program = program_of(origin_of(function)) is not None
        self.apart = forward_level and of_a_program
        self.forward = True if forward_level else is_forward_grad_enabled()

    def __call__(self, operands: tuple[Any, ...]) -> Any:
        """Unwrap, call one level down, wrap; an input that comes back comes back as itself."""
        level = self.interpreter.level()
        if values_of(self.function) is not None:
            return self._program(operands, level)
        unwrapped = map_tensors(lambda tensor: unwrap_for_grad(tensor, level), operands)
        with (
            torch.set_grad_enabled(self.reverse),
            forward_grad_enabled(self.forward),
            self.interpreter.lower(),
        ):
            unwrapped = map_tensors(ordinary, unwrapped)
            output = custom_function_call(self.function, *unwrapped)
            if self.apart:
                (output,) = map_tensors(_with_elements_apart, (output,))
        return rewrapped(output, unwrapped, operands, lambda tensor: wrap_for_grad(tensor, level))

    def _program(self, operands: tuple[torch.Tensor, ...], level: int) -> tuple[Any, ...]:
        """The same for a program that offers ``values``: tensors, none of which comes back."""
        lowered = [unwrap_for_grad(tensor, level) for tensor in operands]
        with (
            torch.set_grad_enabled(self.reverse),
            forward_grad_enabled(self.forward),
            self.interpreter.lower(),
        ):
            lowered = [ordinary(tensor) for tensor in lowered]
            values = only_values(self.function, lowered)
            if values is None:
                made = custom_function_call(self.function, *lowered)
            else:
                made = values(lowered)
        return tuple([wrap_for_grad(tensor, level) for tensor in made])


def ordinary(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros with memory of their own, where torch's forward mode has only noted that they are."""
    return tensor.clone() if is_zero_tensor(tensor) else tensor


def _with_elements_apart(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of one that was expanded.

    Autograd lays a tangent out as its value is, and can't write to elements that share memory.
    """
    if tensor.layout is not torch.strided:
        return tensor
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    expanded = any(step == 0 and size > 1 for size, step in sizes)
    return tensor.clone(memory_format=torch.contiguous_format) if expanded else tensor


def laid_out_for(value: torch.Tensor, tangent: torch.Tensor | None) -> torch.Tensor:
    """A value that is about to get a tangent, which may lie in memory in another way."""
    if tangent is None or not value.layout is tangent.layout is torch.strided:
        return value
    return value if tangent.stride() == value.stride() else _with_elements_apart(value)


def rewrapped(output: Any, lowered: tuple[Any, ...], operands: tuple[Any, ...], wrap: Any) -> Any:
    """Wrap the tensors of ``output``; one that is a lowered operand becomes that operand.

    Autograd recognises a dirty input by the identity of what forward returns.
    """
    own = {
        id(low): high
        for low, high in zip(lowered, operands, strict=True)
        if isinstance(low, torch.Tensor)
    }

    def convert(tensor: torch.Tensor) -> torch.Tensor:
        known = own.get(id(tensor))
        return wrap(tensor) if known is None else known

    if isinstance(output, tuple):
        return map_tensors(convert, output)
    return map_tensors(convert, (output,))[0]
