"""Ways to write a rule: forward mode as a transpose, a backward as the gradient of a formula."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from funcaot._torch.autograd.op_kernels import OpOverload
from funcaot._torch.levels.functorch import leaves_at_level

__all__ = ["gradient_of", "transposed"]

Maybe: TypeAlias = Tensor | None


def transposed(op: OpOverload) -> Callable[..., Any]:
    """A jvp for an op that can be differentiated twice in reverse.

    With ``u`` a cotangent, ``J^T u`` is linear in ``u``, and its own gradient along the tangents
    is ``J`` times these.
    """

    def jvp(tangents: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Maybe, ...]:
        moving = [i for i, tangent in enumerate(tangents) if isinstance(tangent, Tensor)]
        inner = list(args)
        with torch.enable_grad(), leaves_at_level():
            for index in moving:
                inner[index] = _entered(args[index])
            outputs = op(*inner, **kwargs)
            outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
            reached = [i for i, v in enumerate(outputs) if _differentiable(v)]
            probes = [torch.zeros_like(outputs[i]).requires_grad_() for i in reached]
            wanted = [inner[index] for index in moving]
            pulled = torch.autograd.grad(
                [outputs[i] for i in reached], wanted, probes, create_graph=True, allow_unused=True
            )
            pairs = [
                (gradient, tangents[index])
                for index, gradient in zip(moving, pulled, strict=True)
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


def _entered(tensor: Tensor) -> Tensor:
    view = tensor.view_as(tensor)
    return view if view.requires_grad else view.detach().requires_grad_()


def _differentiable(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def gradient_of(function: Callable[..., Tensor], primal: Tensor, cotangent: Tensor) -> Tensor:
    """The gradient of a function of one tensor, which can be differentiated again."""
    with torch.enable_grad(), leaves_at_level():
        inner = _entered(primal)
        output = function(inner)
        (gradient,) = torch.autograd.grad(output, inner, cotangent, create_graph=True)
    return gradient
