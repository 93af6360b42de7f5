"""Checks on what a user's rule returns; cheap when all is well, explicit when it isn't."""

from __future__ import annotations

from typing import Any

import torch

from funcaot.classes.traits import defined_at, display_name
from funcaot.errors import RuleError

__all__ = ["checked_gradients", "checked_tangents", "shapes_of"]

_Shapes = tuple[torch.Size | None, ...]


def shapes_of(values: tuple[Any, ...]) -> _Shapes:
    """The shape of each tensor, None for the rest."""
    return tuple([v.shape if isinstance(v, torch.Tensor) else None for v in values])


def describe(value: Any) -> str:
    """One value in an error message: a tensor by dtype and shape, never by data."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    name = type(value).__name__
    return f"{name} {value!r}" if isinstance(value, (int, float)) else name


def checked_gradients(function: type, result: Any, shapes: _Shapes) -> Any:
    """Check what ``backward`` returned against the inputs it belongs to.

    Raises:
        RuleError: A wrong number of gradients, something that isn't a tensor, a wrong shape.
    """
    gradients = result if type(result) is tuple else (result,)
    if len(gradients) != len(shapes):
        gradients = _without_trailing_nones(function, gradients, shapes)
    for index, (gradient, shape) in enumerate(zip(gradients, shapes)):  # noqa: B905
        if gradient is None:
            continue
        if not isinstance(gradient, torch.Tensor):
            raise RuleError(
                f"backward of {display_name(function)} (reverse mode) returned something that is "
                f"no gradient at position {index}",
                expected="a tensor or None",
                got=describe(gradient),
                remedy="return one tensor or None per input of forward, as a tuple.",
                where=defined_at(function),
            )
        if shape is None or gradient.shape == shape or _sums_to(gradient.shape, shape):
            continue
        raise RuleError(
            f"backward of {display_name(function)} (reverse mode) returned a gradient of the wrong "
            f"shape at position {index}",
            expected=f"shape {list(shape)}, that of the input, or one that broadcasts from it",
            got=describe(gradient),
            remedy="sum or reshape the gradient to the input's shape.",
            where=defined_at(function),
        )
    return result


def _without_trailing_nones(
    function: type, gradients: tuple[Any, ...], shapes: _Shapes
) -> tuple[Any, ...]:
    extra = gradients[len(shapes) :]
    if len(gradients) > len(shapes) and all(gradient is None for gradient in extra):
        return gradients[: len(shapes)]
    raise RuleError(
        f"backward of {display_name(function)} (reverse mode) returned the wrong number of "
        "gradients",
        expected=f"{len(shapes)}, one per input of forward",
        got=str(len(gradients)),
        remedy="return None for the inputs that have no gradient.",
        where=defined_at(function),
    )


def _sums_to(shape: torch.Size, target: torch.Size) -> bool:
    if len(shape) < len(target):
        return False
    tail = shape[len(shape) - len(target) :]
    return all(t in (1, s) for s, t in zip(tail, target, strict=True))


def checked_tangents(function: type, result: Any, output_shapes: _Shapes) -> Any:
    """Check what ``jvp`` returned against the outputs it belongs to.

    Raises:
        RuleError: A wrong number of tangents, something that isn't a tensor, a wrong shape.
    """
    tangents = result if isinstance(result, tuple) else (result,)
    if len(tangents) != len(output_shapes):
        raise RuleError(
            f"jvp of {display_name(function)} (forward mode) returned the wrong number of tangents",
            expected=f"{len(output_shapes)}, one per output of forward",
            got=str(len(tangents)),
            remedy="return None for the outputs that have no tangent.",
            where=defined_at(function),
        )
    for index, (tangent, shape) in enumerate(zip(tangents, output_shapes, strict=True)):
        if tangent is None:
            continue
        if not isinstance(tangent, torch.Tensor):
            raise RuleError(
                f"jvp of {display_name(function)} (forward mode) returned something that is no "
                f"tangent at position {index}",
                expected="a tensor or None",
                got=describe(tangent),
                remedy="return one tensor or None per output of forward.",
                where=defined_at(function),
            )
        if shape is not None and tangent.shape != shape:
            raise RuleError(
                f"jvp of {display_name(function)} (forward mode) returned a tangent of the wrong "
                f"shape at position {index}",
                expected=f"shape {list(shape)}, that of the output",
                got=describe(tangent),
                remedy="a tangent has the shape of the output it belongs to; expand or reshape it.",
                where=defined_at(function),
            )
    return result


def differentiated_twice(name: str, where: str) -> RuleError:
    """What a second derivative raises: eager's words, with the name.

    Args:
        name: The Function, or the Functions among which it is; empty where that isn't known.
        where: Where its class is defined, if that is known.
    """
    return RuleError(
        "trying to differentiate twice a function that was marked with @once_differentiable"
        + (f": the backward of {name}" if name else ""),
        remedy="write that backward with torch's operations, and leave the decorator out.",
        where=where,
    )
