"""A backward that can't be traced becomes one opaque call: it runs on real values.

Its gradients' metadata are those of the inputs that they belong to, so nothing is asked of the
user. The call is a Function of everything that the backward reads, and its own derivative is
taken by autograd on real values, so any order works as far as the backward's operations allow.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import default_generator

from funcaot._torch.autograd.autograd import jvp_inside_dual_level
from funcaot._torch.tensors.seeding import generators_among, place_of
from funcaot._torch.tracing.tracing import is_untraceable_function, why_untraceable
from funcaot.classes.containers import leaving
from funcaot.classes.context import RecordingContext
from funcaot.classes.opaque import (
    Captor,
    Layout,
    Watch,
    current_captor,
    current_watch,
    forget_effects_after,
    layout_of,
)
from funcaot.classes.premise import refused
from funcaot.classes.traits import display_name, origin_of, reverse_rule
from funcaot.rules.kept_objects import note_kept_objects
from funcaot.rules.nested_backward import RefuseOutsideGradients
from funcaot.rules.operands.kept import flatten_held, without_traced
from funcaot.rules.returns import checked_gradients
from funcaot.rules.stores import is_ours, taken_back, watch_of

__all__ = ["OfTorch", "input_layouts", "opaque_function", "traced_or_opaque"]

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
    return tuple(_contiguous(v) if isinstance(v, torch.Tensor) else None for v in inputs)


def _contiguous(tensor: torch.Tensor) -> Layout:
    if tensor.is_nested:  # A ragged size has no product with an open one.
        return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
    stride: list[int] = []
    step = 1
    for size in reversed(tensor.shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return Layout(tuple(tensor.shape), tuple(stride), tensor.dtype, tensor.device)


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
    before = next(iter(reversed(captor.graph.nodes)))
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
    forget_effects_after(before)
    recorded = _Recorded(function, rule, ctx, cotangents, in_step=in_step)
    opaque = opaque_function(
        recorded.run,
        recorded.layouts,
        recorded.name,
        reason,
        funcaot_again=recorded.run_again,
    )
    made = iter(captor.call(opaque, *recorded.tensors))
    return tuple(next(made) if wanted else None for wanted in recorded.wanted)


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
    """One invocation of a backward: the tensors that it reads, apart from everything else."""

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


@dataclass(frozen=True)
class OfTorch:
    """What is known of an opaque function of torch's, whose backwards are linear.

    Attributes:
        differentiable: Where the function and its backwards run, so that they can be
            differentiated.
        linear_in: Positions of operands that the results are linear in, taken together.
    """

    differentiable: Callable[[], AbstractContextManager[None]]
    linear_in: frozenset[int] = frozenset()

    def linear_after(self, first: int, count: int) -> OfTorch:
        """The same of a function that is linear in some operands that come after others."""
        return replace(self, linear_in=frozenset(range(first, first + count)))

    def unread(self, differentiable: Sequence[bool]) -> dict[int, frozenset[int]]:
        """For each gradient by what the function is linear in, that again: it doesn't matter."""
        moving = [index for index, moves in enumerate(differentiable) if moves]
        return {
            place: self.linear_in for place, index in enumerate(moving) if index in self.linear_in
        }


@dataclass(frozen=True)
class _Rules:
    """The derivatives of an opaque function, each an opaque function once more."""

    run: Callable[..., Any]
    layouts: tuple[Any, ...]
    name: str
    reason: str
    linear: bool
    of_torch: OfTorch | None

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Any:
        """Tangents by forward mode on real values."""
        moving = [tangent is not None for tangent in tangents]
        given = [tangent for tangent in tangents if tangent is not None]
        # A tangent for what has one: floating-point outputs.
        wanted = [_moves(layout) for layout in self.layouts]
        inner = tuple(layout for layout in self.layouts if _moves(layout))
        following = opaque_function(
            _inside(self.of_torch, _pushforward(self.run, moving, wanted)),
            inner,
            f"{self.name}Forward",
            self.reason,
            of_torch=self.of_torch and self.of_torch.linear_after(len(tangents), len(given)),
        )
        pushed = iter(_call()(following, *ctx.saved_tensors, *given) if inner else ())
        return tuple(next(pushed) if moves else None for moves in wanted)

    def backward(self, ctx: Any, *cotangents: torch.Tensor) -> Any:
        """Gradients by autograd on real values."""
        saved, known = ctx.saved_tensors, self.of_torch
        differentiable = [_moves(tensor) for tensor in saved]
        pullback = _inside(known, _pullback(self.run, differentiable))
        layouts = tuple(_contiguous(tensor) for tensor in saved if _moves(tensor))
        if known is not None:
            layouts = _laid(pullback, (*saved, *cotangents)) or layouts
        following = opaque_function(
            pullback,
            layouts,
            f"{self.name}Backward",
            self.reason,
            linear=self.linear,
            of_torch=known and known.linear_after(len(saved), len(cotangents)),
            funcaot_unread={} if known is None else known.unread(differentiable),
        )
        if self.linear:
            saved = tuple(tensor.detach() for tensor in saved)
        gradients = iter(_call()(following, *saved, *cotangents))
        return tuple(next(gradients) if moves else None for moves in differentiable)


def _has_open_sizes(tensors: Sequence[torch.Tensor]) -> bool:
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def _laid(run: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> tuple[Layout, ...]:
    """What torch's gradients look like, from values or from ones in their place; else nothing."""
    captor = current_captor()
    if captor is None or _has_open_sizes(tensors):
        return ()
    values = captor.real_values(tensors) or captor.stand_ins(tensors)
    try:
        return tuple(map(layout_of, captor.outside(lambda: run(*values))))
    except RuntimeError:  # as of ones
        return ()


def opaque_function(
    run: Callable[..., Any],
    layouts: tuple[Any, ...],
    name: str,
    reason: str,
    *,
    linear: bool = False,
    of_torch: OfTorch | None = None,
    **members: Any,
) -> type:
    """A Function that runs Python code on real values and knows what comes out.

    Args:
        run: The code: tensors to a tuple of tensors.
        layouts: What each result looks like.
        name: Shown by graphs.
        reason: Why it is opaque, for the report.
        linear: Whether its gradients depend on the cotangents only, and so don't require grad on
            the operands' account.
        of_torch: What is known of code that is torch's; nothing is of the user's.
        **members: Further attributes of the class. ``funcaot_unread`` has, for a result's
            position, those of operands that it doesn't depend on; ``funcaot_again`` is what its
            derivatives run instead of the code.
    """
    rules = _Rules(members.get("funcaot_again", run), layouts, name, reason, linear, of_torch)

    def abstract(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layout.empty() for layout in layouts)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    def vmap(info: Any, in_dims: Any, *tensors: torch.Tensor) -> Any:
        columns = _one_by_one(made, info.batch_size, in_dims, tensors)
        return columns, (0,) * len(layouts)

    members = {
        **members,
        "forward": staticmethod(run),
        "abstract": staticmethod(abstract),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(rules.backward),
        "jvp": staticmethod(rules.jvp),
        "vmap": staticmethod(vmap),
        "funcaot_reason": reason,
        "__module__": __name__,
    }
    made = type(name, (torch.autograd.Function,), members)
    return made


def _inside(of_torch: OfTorch | None, run: Callable[..., Any]) -> Callable[..., Any]:
    """The same, where what torch lacks can be differentiated."""
    if of_torch is None:
        return run

    def inside(*tensors: torch.Tensor) -> Any:
        with of_torch.differentiable():
            return run(*tensors)

    return inside


def _one_by_one(
    function: type, size: int, in_dims: Any, tensors: tuple[torch.Tensor, ...]
) -> tuple[torch.Tensor, ...]:
    call = _call()
    rows = [
        call(
            function,
            *[
                tensor if dim is None else tensor.select(dim, index)
                for tensor, dim in zip(tensors, in_dims, strict=True)
            ],
        )
        for index in range(size)
    ]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True))


def _call() -> Callable[..., Any]:
    captor = current_captor()
    if captor is None:
        raise RuntimeError("an opaque backward is differentiated and batched on a tape only")
    return captor.call


def _moves(tensor: torch.Tensor | Layout) -> bool:
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


def _pullback(run: Callable[..., Any], differentiable: Sequence[bool]) -> Callable[..., Any]:
    """``(*operands, *cotangents) -> gradients``, taken by autograd on real values."""

    def pullback(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count = len(differentiable)
        create_graph = torch.is_grad_enabled()
        with torch.enable_grad():
            operands = [
                tensor.view_as(tensor)
                if create_graph and tensor.requires_grad
                else tensor.detach().requires_grad_(moves)
                for tensor, moves in zip(tensors[:count], differentiable, strict=True)
            ]
            moving = [t for t, moves in zip(operands, differentiable, strict=True) if moves]
            pairs = [
                (output, cotangent)
                for output, cotangent in zip(run(*operands), tensors[count:], strict=True)
                if output.requires_grad
            ]
        if not pairs:
            return tuple(torch.zeros_like(tensor) for tensor in moving)
        gradients = torch.autograd.grad(
            [output for output, _ in pairs],
            moving,
            [cotangent for _, cotangent in pairs],
            allow_unused=True,
            create_graph=create_graph,
        )
        return tuple(
            torch.zeros_like(tensor) if gradient is None else gradient
            for tensor, gradient in zip(moving, gradients, strict=True)
        )

    return pullback


def _pushforward(
    run: Callable[..., Any], moving: Sequence[bool], wanted: Sequence[bool]
) -> Callable[..., Any]:
    """``(*operands, *tangents) -> tangents``, taken by autograd on real values."""

    def pushforward(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        operands, tangents = tensors[: len(moving)], tensors[len(moving) :]

        def active(*given: torch.Tensor) -> Any:
            rest = iter(given)
            chosen = zip(operands, moving, strict=True)
            return run(*[next(rest) if moves else operand for operand, moves in chosen])

        primals = tuple(t for t, moves in zip(operands, moving, strict=True) if moves)
        with jvp_inside_dual_level():
            pushed = torch.func.jvp(active, primals, tuple(tangents))[1]
        return tuple(tangent for tangent, moves in zip(pushed, wanted, strict=True) if moves)

    return pushforward
