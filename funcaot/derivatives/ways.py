"""Ways to write a rule: forward mode as a transpose, a backward as the gradient of a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from funcaot._torch.autograd.autograd import tangent_of
from funcaot._torch.levels.functorch import (
    begun_at_level,
    leaves_at_level,
    transforms_active,
    unwrap_if_dead,
)
from funcaot._torch.levels.innermost import differentiates_at_a_new_level

__all__ = ["entered", "gradient_of", "gradients_at", "gradients_of", "transposed"]

Maybe: TypeAlias = Tensor | None


def transposed(op: Callable[..., Any]) -> Callable[..., Any]:
    """A jvp for an op that can be differentiated twice in reverse.

    With ``u`` a cotangent, ``J^T u`` is linear in ``u``, and its own gradient along the tangents
    is ``J`` times these.
    """

    def jvp(tangents: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Maybe, ...]:
        with torch.enable_grad(), leaves_at_level():
            inner, named, moving = _moving(tangents, args, kwargs)
            outputs = _several(op(*inner, **named))
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
    tangents: Sequence[Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> tuple[list[Any], dict[str, Any], list[tuple[Tensor, Tensor]]]:
    """The arguments with new tensors for those that move, and each of these with its tangent."""
    inner, named, moving = list(args), dict(kwargs), []
    by_name: dict[str, Any] = {}
    if tangents and isinstance(tangents[-1], dict):
        *tangents, by_name = tangents
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
    for name, tangent in by_name.items():
        if tangent is not None:
            named[name] = entered(kwargs[name])
            moving.append((named[name], tangent))
    return inner, named, moving


def entered(tensor: Tensor, *, connected: bool = True) -> Tensor:
    """A tensor for a derivative to be taken by, with its tangent, if it carries one.

    Args:
        tensor: Of the level in progress.
        connected: Whether the derivative is itself differentiated by ``tensor``.
    """
    # Of a level that has ended, as what a function of ``torch.func.vjp`` was recorded at.
    tensor = unwrap_if_dead(tensor)
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


def _several(outputs: Any) -> Sequence[Any]:
    return outputs if isinstance(outputs, tuple | list) else (outputs,)


def gradient_of(function: Callable[..., Tensor], primal: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient of a function of one tensor, which can be differentiated again."""
    with torch.enable_grad():
        (gradient,) = gradients_of(function, [primal], [cotangent])
    return torch.zeros_like(primal) if gradient is None else gradient


def gradients_at(
    places: Sequence[int],
    function: Callable[..., Any],
    values: Sequence[Any],
    cotangents: Sequence[Maybe],
) -> dict[int, Maybe]:
    """The gradients of a function of values by those at some places; see ``gradients_of``."""

    def of_these(*inner: Tensor) -> Any:
        filled = list(values)
        for place, value in zip(places, inner, strict=True):
            filled[place] = value
        return function(*filled)

    others = [
        value
        for place, value in enumerate(values)
        if place not in places and isinstance(value, Tensor)
    ]
    found = gradients_of(of_these, [values[place] for place in places], cotangents, others)
    return dict(zip(places, found, strict=True))


def gradients_of(
    function: Callable[..., Any],
    primals: Sequence[Tensor],
    cotangents: Sequence[Maybe],
    also: Sequence[Tensor] = (),
) -> list[Maybe]:
    """The gradients of a function, wherever the backward that asks for them runs.

    They can be differentiated again where grad mode is on.

    Args:
        function: Of the primals; gives a tensor or several, None among them.
        primals: Of the level in progress, of those below, or of one that has ended.
        cotangents: One per output, None for zero.
        also: What else the function depends on, besides the cotangents.
    """
    primals = [unwrap_if_dead(primal) for primal in primals]
    if differentiates_at_a_new_level():
        return _at_a_new_level(function, primals, cotangents)
    again = torch.is_grad_enabled()
    if again and not transforms_active():
        # Where nothing is recorded, the leaves that are made here would be.
        given = [unwrap_if_dead(value) for value in (*cotangents, *also) if value is not None]
        again = any(value.requires_grad for value in (*primals, *given))
    with torch.enable_grad(), leaves_at_level():
        inner = [entered(primal, connected=again) for primal in primals]
        outputs = _several(function(*inner))
        pairs = [
            (output, cotangent)
            for output, cotangent in zip(outputs, cotangents, strict=False)
            if cotangent is not None and output is not None and output.requires_grad
        ]
        if not pairs:
            return [None] * len(primals)
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            inner,
            [cotangent for _, cotangent in pairs],
            create_graph=again,
            allow_unused=True,
        )
    return list(found)


def _at_a_new_level(
    function: Callable[..., Any], primals: Sequence[Tensor], cotangents: Sequence[Maybe]
) -> list[Maybe]:
    """The same where the level in progress records nothing, as the one of a ``vmap``."""
    reached: list[int] = []

    def differentiable(*inner: Tensor) -> tuple[Tensor, ...]:
        outputs = _several(function(*inner))
        asked = zip(outputs, cotangents, strict=False)
        reached[:] = [
            index
            for index, (output, cotangent) in enumerate(asked)
            if output is not None and cotangent is not None
        ]
        return tuple(outputs[index] for index in reached)

    with torch.enable_grad():
        _, pull = torch.func.vjp(differentiable, *primals)
    return list(pull(tuple(cotangents[index] for index in reached)))
