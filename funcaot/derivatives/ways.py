"""Ways to write a rule: forward mode as a transpose, a backward as the gradient of a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from funcaot._torch.autograd.autograd import tangent_of
from funcaot._torch.levels.functorch import begun_at_level, leaves_at_level
from funcaot.errors import MissingRuleError

__all__ = ["entered", "gradient_of", "transposed"]

Maybe: TypeAlias = Tensor | None


def transposed(op: Callable[..., Any]) -> Callable[..., Any]:
    """A jvp for an op that can be differentiated twice in reverse.

    With ``u`` a cotangent, ``J^T u`` is linear in ``u``, and its own gradient along the tangents
    is ``J`` times these.
    """

    def jvp(tangents: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Maybe, ...]:
        with torch.enable_grad(), leaves_at_level():
            inner, moving = _moving(tangents, args)
            outputs = op(*inner, **kwargs)
            outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
            reached = [i for i, v in enumerate(outputs) if _differentiable(v)]
            if not reached or not moving:
                return (None,) * len(outputs)
            probes = [torch.zeros_like(outputs[i]).requires_grad_() for i in reached]
            wanted = [tensor for tensor, _ in moving]
            pulled = torch.autograd.grad(
                [outputs[i] for i in reached], wanted, probes, create_graph=True, allow_unused=True
            )
            pairs = [
                (gradient, tangent)
                for gradient, (_, tangent) in zip(pulled, moving, strict=True)
                if gradient is not None and gradient.requires_grad
            ]
            if not pairs:
                return (None,) * len(outputs)
            pushed = torch.autograd.grad(
                [gradient for gradient, _ in pairs],
                probes,
                [tangent for _, tangent in pairs],
                create_graph=True,
                allow_unused=True,
            )
        found = dict(zip(reached, pushed, strict=True))
        return tuple(found.get(index) for index in range(len(outputs)))

    return jvp


def _moving(
    tangents: Sequence[Any], args: Sequence[Any]
) -> tuple[list[Any], list[tuple[Tensor, Tensor]]]:
    """The arguments with new tensors for those that move, and each of these with its tangent."""
    if tangents and isinstance(tangents[-1], dict):
        names = [name for name, tangent in tangents[-1].items() if tangent is not None]
        raise MissingRuleError(
            f"An op was differentiated in forward mode by its keywords {', '.join(names)}.",
            expected="tangents of positional arguments",
            got="one of a keyword",
            remedy="register a jvp that takes it, with funcaot.register_derivative.",
        )
    inner, moving = list(args), []
    for index, tangent in enumerate(tangents):
        if isinstance(tangent, Tensor):
            inner[index] = entered(args[index])
            moving.append((inner[index], tangent))
        elif isinstance(tangent, list):
            inner[index] = list(args[index])
            for place, part in enumerate(tangent):
                if part is not None:
                    inner[index][place] = entered(args[index][place])
                    moving.append((inner[index][place], part))
    return inner, moving


def entered(tensor: Tensor, *, connected: bool = True) -> Tensor:
    """A tensor for a derivative to be taken by, with its tangent, if it carries one.

    Args:
        tensor: Of the level in progress.
        connected: Whether the derivative is itself differentiated by ``tensor``.
    """
    if connected:
        view = tensor.view_as(tensor)
        if view.requires_grad:
            return view
    tangent = tangent_of(tensor)
    leaf = begun_at_level(tensor).requires_grad_()
    # It begins without the level's own tangent, too.
    return leaf if tangent is None else forward_ad.make_dual(leaf, tangent)


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def gradient_of(function: Callable[..., Tensor], primal: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient of a function of one tensor, which can be differentiated again."""
    with torch.enable_grad(), leaves_at_level():
        inner = entered(primal)
        output = function(inner)
        (gradient,) = torch.autograd.grad(output, inner, cotangent, create_graph=True)
    return gradient
