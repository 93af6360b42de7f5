"""Functions that run Python code on real values and know what comes out.

A backward that can't be traced becomes one, and so does a function of torch's that reads values.
The derivatives of such a Function are such Functions once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch

from funcaot._torch.autograd.autograd import jvp_inside_dual_level
from funcaot.classes.opaque import Layout, current_captor, layout_of

__all__ = ["OfTorch", "contiguous", "has_open_sizes", "opaque_function"]


def contiguous(tensor: torch.Tensor) -> Layout:
    """The layout of what looks like a tensor and is contiguous."""
    if tensor.is_nested:  # A ragged size has no product with an open one.
        return Layout(tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.device)
    stride: list[int] = []
    step = 1
    for size in reversed(tensor.shape):
        stride.insert(0, step)
        step *= max(size, 1)
    return Layout(tuple(tensor.shape), tuple(stride), tensor.dtype, tensor.device)


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
        layouts = tuple(contiguous(tensor) for tensor in saved if _moves(tensor))
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


def has_open_sizes(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a size of some tensors isn't known."""
    return any(isinstance(size, torch.SymInt) for tensor in tensors for size in tensor.shape)


def _laid(run: Callable[..., Any], tensors: Sequence[torch.Tensor]) -> tuple[Layout, ...]:
    """What torch's gradients look like, from values or from ones in their place; else nothing."""
    captor = current_captor()
    if captor is None or has_open_sizes(tensors):
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
            derivatives run instead of the code. ``funcaot_constant`` are positions of results that
            depend on nothing that is differentiated.
    """
    constant = sorted(members.get("funcaot_constant", ()))
    rules = _Rules(members.get("funcaot_again", run), layouts, name, reason, linear, of_torch)

    def abstract(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(layout.empty() for layout in layouts)

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)
        if constant:
            ctx.mark_non_differentiable(*[output[index] for index in constant])

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
