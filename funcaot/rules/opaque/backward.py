"""A backward that can't be traced becomes one opaque call: it runs on real values.

Its gradients' metadata are those of the inputs that they belong to, so nothing is asked of the
user. The call is a Function of everything that the backward reads, and its own derivative is
taken by autograd on real values, so any order works as far as the backward's operations allow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, NoReturn

import torch
from torch import default_generator

from funcaot._torch.autograd.autograd import version_of
from funcaot._torch.autograd.nodes import leads_to, node_of
from funcaot._torch.tensors.seeding import generators_among, place_of
from funcaot._torch.tracing.tracing import (
    is_untraceable_function,
    why_untraceable,
    without_torch_function,
)
from funcaot.classes.containers import leaving
from funcaot.classes.context import RecordingContext
from funcaot.classes.found_now import found_now
from funcaot.classes.opaque import (
    Captor,
    Layout,
    Opaque,
    Watch,
    current_watch,
    forget_effects_after,
)
from funcaot.classes.premise import refused
from funcaot.classes.traits import defined_at, display_name, origin_of, reverse_rule
from funcaot.errors import UnsupportedError
from funcaot.rules.kept_objects import note_kept_objects
from funcaot.rules.nested_backward import RefuseOutsideGradients
from funcaot.rules.opaque.function import contiguous, has_open_sizes, opaque_function
from funcaot.rules.operands.entered import is_of_a_call
from funcaot.rules.operands.kept import flatten_held, without_traced
from funcaot.rules.returns import checked_gradients, differentiated_twice
from funcaot.rules.stores import is_ours, taken_back, watch_of

__all__ = ["input_layouts", "traced_or_opaque"]

Rule = Callable[..., Any]
_OURS = frozenset(
    {
        "_funcaot_shapes",
        "_funcaot_output_shapes",
        "_funcaot_outputs",
        "_funcaot_layouts",
        "_funcaot_given",
        "_funcaot_graph",
    }
)


def input_layouts(inputs: Sequence[Any]) -> tuple[Layout | None, ...]:
    """What the gradient of each input looks like, None for one that isn't a tensor.

    Its strides aren't known before it is computed, and it is computed once; it is made contiguous.
    """
    return tuple(contiguous(v) if isinstance(v, torch.Tensor) else None for v in inputs)


def traced_or_opaque(
    captor: Captor,
    function: type,
    rule: Rule,
    ctx: Any,
    cotangents: tuple[Any, ...],
    *,
    in_step: bool = False,
) -> Any:
    """Run a backward while a capture records, or leave it for later if it asks for data.

    Args:
        captor: The capture in progress.
        function: The user's Function.
        rule: Its backward, as ``rule(ctx, *cotangents)``.
        ctx: Its ctx, which carries ``_funcaot_layouts``.
        cotangents: What autograd gave.
        in_step: Whether the captured function itself calls ``backward``.

    Returns:
        A gradient or None for each input.
    """
    callers = current_watch()
    watch = callers or _watch(function, ctx)
    looked, drawn = watch and watch.look(), _drawn_from(captor)
    ran = set() if callers is None else callers.ran()
    before = next(iter(reversed(captor.graph.nodes)))
    given = [*cotangents, *_attributes(ctx).values()]
    given = [each for each in given if isinstance(each, torch.Tensor)]
    versions = list(map(version_of, given))
    try:
        followed = contextlib.nullcontext() if watch is None else watch.following()
        with refused(), followed, _leaving(function, ctx._funcaot_given, _attributes(ctx)):
            result = rule(ctx, *cotangents)
        if watch is None or callers is not None:  # then what it changes is its caller's
            return result
        note_kept_objects(_attributes(ctx).values())
        reason = "backward: it changes what isn't a tensor, as each call has to"
        if not watch.take_back(looked):
            if _drawn_from(captor) - drawn <= {*watch.generators(), place_of(default_generator)}:
                return result
            reason = "backward: it draws from a random generator that it makes"
    except Exception as error:
        if not is_untraceable_function(error):
            raise
        if watch is not None:
            watch.take_back(looked)  # it runs for this call yet
        reason = f"backward: {why_untraceable(error)}"
    if versions != list(map(version_of, given)):  # by now the tape has what was written, too
        raise UnsupportedError(
            f"The backward of {display_name(function)} runs on real values ({reason}), and writes "
            "to a tensor that it is given.",
            remedy="compute a new tensor there instead.",
        )
    forget_effects_after(before)
    recorded = _Recorded(function, rule, ctx, cotangents, in_step=in_step)

    def run_now(opaque: type) -> list[Any]:
        if callers is None or not in_step:
            return []
        return found_now(captor, callers, opaque, recorded.tensors, _watch(function, ctx), ran)

    made = iter(_as_node(captor, recorded, reason, run_now))
    return tuple(next(made) if wanted else None for wanted in recorded.wanted)


def _as_node(
    captor: Captor, recorded: _Recorded, reason: str, run_now: Callable[[type], list[Any]]
) -> tuple[torch.Tensor, ...]:
    """The gradients, traced, of a node that runs a backward on real values.

    Args:
        captor: The capture.
        recorded: The backward.
        reason: Why it is run so.
        run_now: Gives what it returned in the capture, if it ran there for the call.
    """
    recorded.find_constants(captor)
    opaque: Any = opaque_function(
        recorded.run,
        recorded.layouts,
        recorded.name,
        reason,
        funcaot_constant=recorded.constant,
        funcaot_again=recorded.refuse_second if recorded.once else recorded.run_again,
    )
    ran = run_now(opaque)
    looked_at = ran[0] if ran else recorded.found
    # The call takes what is in nobody else's hands.
    opaque.funcaot_found = [captor.outside(lambda: tuple(g.clone() for g in ran[0]))] if ran else []
    outputs = captor.call(opaque, *recorded.operands)
    if looked_at is not None:
        captor.remember(outputs, replace(Opaque.of(looked_at, reason), pending=(looked_at,)))
    return outputs  # type: ignore[no-any-return]


def _drawn_from(captor: Captor) -> set[int]:
    """The generators that a capture's graph draws from, by where they are in memory."""
    return set(map(place_of, generators_among(vars(captor.root).values())))


def _watch(function: type, ctx: Any) -> Watch | None:
    """What looks at changes that a backward makes; None if that isn't known."""
    if is_ours(reverse_rule(origin_of(function))) and _rule_inside(function) is None:
        return None
    return _watch_of(function, _attributes(ctx))


def _rule_inside(function: type) -> Any:
    """The user's function that a rule of ours calls; None if it isn't known."""
    return getattr(origin_of(function), "_funcaot_rule", None)


def _watch_of(function: type, attributes: dict[str, Any]) -> Watch | None:
    """What looks at a backward, and at what its ctx keeps besides tensors."""
    inside = _rule_inside(function)
    if inside is not None:
        return watch_of(inside, function)
    kept = tuple(v for v in attributes.values() if not isinstance(v, torch.Tensor))
    return watch_of(reverse_rule(origin_of(function)), function, kept)


def _attributes(ctx: Any) -> dict[str, Any]:
    attributes = {k: v for k, v in vars(ctx).items() if k not in _OURS}
    return attributes.pop("recorded_attributes", attributes)


def _leaving(
    function: type, names: tuple[str, ...], attributes: dict[str, Any]
) -> AbstractContextManager[None]:
    return leaving(display_name(function), [attributes[n] for n in names if n in attributes])


class _Recorded:
    """One invocation of a backward: the tensors that it reads, apart from everything else.

    Attributes:
        operands: These tensors, detached where no gradient depends on them.
        constant: Positions of gradients that, as in eager, depend on nothing that requires grad.
        found: The gradients of this call, where a look at them was needed.
        once: Whether a gradient can't be differentiated, and requires grad to say so.
    """

    def __init__(
        self,
        function: type,
        rule: Rule,
        ctx: Any,
        cotangents: tuple[Any, ...],
        *,
        in_step: bool,
    ) -> None:
        self.function = function
        self.name = f"{function.__name__}Backward"
        self.rule = rule
        self.watched = function.__name__ if in_step else None
        self.needs = tuple(ctx.needs_input_grad)
        given = (tuple(ctx.saved_tensors), _attributes(ctx), cotangents)
        self.call, self.tensors = flatten_held(given, display_name(function))
        self.operands = self.tensors
        self.constant: frozenset[int] = frozenset()
        self.found: tuple[torch.Tensor, ...] | None = None
        self.once = False
        self.records = torch.is_grad_enabled()
        self.seen = tuple((tensor.requires_grad, tensor.is_leaf) for tensor in self.tensors)
        self.given = ctx._funcaot_given
        layouts = ctx._funcaot_layouts
        self.wanted = tuple(
            bool(need) and layout is not None
            for need, layout in zip(self.needs, layouts, strict=True)
        )
        self.shapes = tuple(layout and torch.Size(layout.shape) for layout in layouts)
        self.layouts = tuple(
            layout for layout, wanted in zip(layouts, self.wanted, strict=True) if wanted
        )

    def find_constants(self, captor: Captor) -> None:
        """Find out on the values of this call, where they are known, what depends on what.

        A backward that is ``once_differentiable``, or computes with what it finds by itself, gives
        gradients that require no grad.
        """
        if not (self.records and any(requires_grad for requires_grad, _ in self.seen)):
            return
        known = None if has_open_sizes(self.tensors) else self._known(captor)
        if known is None:
            return
        try:
            with without_torch_function():  # The user's own tensors stay what they are.
                reads = captor.outside(lambda: self._reads([value.clone() for value in known]))
        except Exception:  # noqa: BLE001 (what it raises, it raises when it runs)
            return
        self.once = any(requires_grad and not read for read, requires_grad in reads)
        self.constant = frozenset(i for i, (_, requires) in enumerate(reads) if not requires)
        if self.once:
            return
        read = frozenset[int]().union(*[read for read, _ in reads])
        self.operands = tuple(
            tensor if index in read else tensor.detach()
            for index, tensor in enumerate(self.tensors)
        )

    def _known(self, captor: Captor) -> list[torch.Tensor] | None:
        """The values of the tensors in this call; some are the user's own, of no tape."""
        traced = captor.real_values([each for each in self.tensors if is_of_a_call(each)])
        if traced is None:
            return None
        rest = iter(traced)
        return [next(rest) if is_of_a_call(each) else each for each in self.tensors]

    def _reads(self, values: Sequence[torch.Tensor]) -> list[tuple[frozenset[int], bool]]:
        """For each gradient what it depends on, and if it requires grad; nothing may change."""
        seen = tuple(map(_as_seen, values, self.seen))
        nodes = list(map(node_of, seen))  # A write makes a view's own another one.
        given = self.call.arguments(seen)
        watch = _watch_of(self.function, given[1])
        with contextlib.ExitStack() as stack, torch.enable_grad():
            if watch is not None:
                stack.callback(watch.take_back_writes)
                stack.enter_context(watch.noting_writes())
            stack.enter_context(taken_back(watch))
            gradients = self._gradients(*given)
            self.found = tuple(each.detach() for each in gradients)
            return [(leads_to(each, nodes), each.requires_grad) for each in gradients]

    def refuse_second(self, *tensors: torch.Tensor) -> NoReturn:
        """What a derivative of a ``once_differentiable`` backward runs."""
        raise differentiated_twice(display_name(self.function), defined_at(self.function))

    def run_again(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The same for its own derivative, where eager runs nothing: nothing may change."""
        _, attributes, _ = self.call.arguments(tensors)
        with taken_back(_watch_of(self.function, attributes)):
            return self.run(*tensors)

    def run(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the backward on these tensors; one gradient per input that needs one.

        It sees the grad mode and the flags of tensors that autograd would show to it.
        """
        differentiated = any(tensor.requires_grad for tensor in tensors)
        seen = tuple(map(_as_seen, tensors, self.seen))
        with torch.set_grad_enabled(self.records):
            gradients = self._gradients(*self.call.arguments(seen))
        if any(gradients[index].requires_grad for index in self.constant):
            raise UnsupportedError(
                f"The backward of {display_name(self.function)} runs on real values, and a "
                "gradient depends on what it is given, which didn't when the backward was traced.",
                remedy="let what decides that be an operand, or leave create_graph=True out.",
            )
        if differentiated:
            return gradients
        return tuple(gradient.detach() for gradient in gradients)

    def _gradients(
        self, saved: Any, attributes: dict[str, Any], cotangents: Any
    ) -> tuple[torch.Tensor, ...]:
        ctx = RecordingContext(self.needs, saved_tensors=saved, attributes=attributes)
        watched = contextlib.nullcontext()
        if self.watched is not None:
            watched = RefuseOutsideGradients(self.watched)
        given = _leaving(self.function, self.given, attributes)
        with watched, given, without_traced(display_name(self.function)):
            result = self.rule(ctx, *cotangents)
        checked_gradients(self.function, result, self.shapes)
        gradients = result if isinstance(result, tuple) else (result,)
        chosen = [g for g, wanted in zip(gradients, self.wanted, strict=False) if wanted]
        return tuple(
            _gradient(gradient, layout)
            for gradient, layout in zip(chosen, self.layouts, strict=True)
        )


def _as_seen(tensor: torch.Tensor, flags: tuple[bool, bool]) -> torch.Tensor:
    """A tensor that requires grad, and is a leaf, as that in its place did."""
    requires_grad, is_leaf = flags
    if not requires_grad:
        return tensor.detach() if tensor.requires_grad else tensor
    with torch.enable_grad():
        if not tensor.requires_grad:
            tensor = tensor.detach().requires_grad_()
        return tensor if is_leaf or not tensor.is_leaf else tensor.view_as(tensor)


def _gradient(gradient: torch.Tensor | None, layout: Layout) -> torch.Tensor:
    if gradient is None:
        return layout.empty().zero_()
    if gradient.layout is not torch.strided:
        gradient = gradient.to_dense()
    return gradient.to(layout.dtype).sum_to_size(layout.shape)
