"""``cosine_similarity``, whose formula a trace for every order has to take another way."""

from __future__ import annotations

from typing import Any

import torch

from funcaot.aot.capture.handlers.call import Call, InProgress

__all__ = ["cosine_similarity"]


def cosine_similarity(call: Call, capture: InProgress) -> Any:
    """The same without torch's writes in ``no_grad``, which no gradient of a tangent survives."""
    given: dict[str, Any] = dict(zip(("x1", "x2", "dim", "eps"), call.args, strict=False))
    given |= call.kwargs
    x1, x2, dim, eps = given.get("x1"), given.get("x2"), given.get("dim", 1), given.get("eps", 1e-8)
    if not (isinstance(x1, torch.Tensor) and isinstance(x2, torch.Tensor) and type(eps) is float):
        return NotImplemented
    if not eps >= 0:
        raise RuntimeError(f"eps must be non-negative, got: {eps}")
    if not (x1.is_floating_point() and x2.is_floating_point() and x1.dim() and x2.dim()):
        return NotImplemented
    dtype = torch.promote_types(x1.dtype, x2.dtype)
    x1, x2 = torch.broadcast_tensors(x1.to(dtype), x2.to(dtype))
    first, second = (
        _at_least(torch.linalg.vector_norm(x, 2, dim, keepdim=True), eps) for x in (x1, x2)
    )
    return ((x1 / first) * (x2 / second)).sum(dim)


def _at_least(norm: torch.Tensor, least: float) -> torch.Tensor:
    """The greater of both, with the norm's gradient also where that is the smaller one."""
    return torch.where(norm > least, norm, norm - norm.detach() + least)
