"""Open numbers beside tensors of half precision, or of two precisions: what eager computes then.

It computes in single precision, or in the wider one, and rounds the result once. A number that is
added, and the factor of a tensor that is added, is rounded before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.sizes.open_numbers import OpenFloat

__all__ = ["HALF", "Call", "factored_sum", "interpolated", "is_in_place", "is_real", "multiplied"]

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]
HALF = (torch.bfloat16, torch.float16)
_IN_PLACE = {
    "__iadd__": "add",
    "__isub__": "sub",
    "__imul__": "mul",
    "__itruediv__": "div",
    "__idiv__": "div",
}


def is_in_place(name: str) -> bool:
    """Whether an op by its name writes to its first argument."""
    return name in _IN_PLACE if name.startswith("__") else name.endswith("_")


def is_real(tensor: Any) -> bool:
    """Whether it is a tensor of real numbers."""
    return isinstance(tensor, torch.Tensor) and tensor.is_floating_point()


def multiplied(func: Any, tensor: torch.Tensor, number: torch.Tensor) -> Call | None:
    """A tensor times or by a number, or the other way round.

    Args:
        func: The op.
        tensor: Of half precision.
        number: Of single precision.
    """
    return _rounded(func, (tensor,), number)


def factored_sum(func: Any, tensors: Sequence[torch.Tensor], factor: OpenFloat) -> Call | None:
    """``add`` and ``sub`` of two tensors with a factor, ``addcmul`` and ``addcdiv`` of three.

    The factor is that of the second tensor.
    """
    if not all(map(is_real, tensors)):
        return None
    if len(tensors) > 2 and len({tensor.dtype for tensor in tensors}) > 1:
        return None
    dtype = _common(tensors)
    # Only what is added as it is has a factor of its own precision.
    held = factor.within(dtype if len(tensors) == 2 else _wide(dtype))
    if held is None:
        return None
    held = held.to(_wide(dtype))

    def by_factor(op: Any, first: torch.Tensor, second: torch.Tensor, *rest: torch.Tensor) -> Any:
        return op(first, second * held, *rest)

    return _rounded(func, tensors, compute=by_factor)


def interpolated(func: Any, tensors: Sequence[torch.Tensor], weight: OpenFloat) -> Call | None:
    """``lerp`` of two tensors by a weight."""
    if tensors[0].dtype not in HALF or tensors[1].dtype is not tensors[0].dtype:
        return None
    return _rounded(func, tensors, weight.tensor().to(torch.float32))


def _rounded(
    func: Any,
    tensors: Sequence[torch.Tensor],
    *numbers: torch.Tensor,
    compute: Callable[..., Any] | None = None,
) -> Call | None:
    """An op in the wider precision; None where autograd would have to record that it writes."""
    name: str = func.__name__
    dtype = _common(tensors)
    copied = is_in_place(name) and (dtype in HALF or tensors[0].dtype is not dtype)
    if copied and torch.is_grad_enabled() and any(each.requires_grad for each in tensors):
        return None
    op = getattr(torch.Tensor, _IN_PLACE.get(name, name.removesuffix("_"))) if copied else func

    def run(*tensors: torch.Tensor) -> torch.Tensor:
        wide = [tensor.to(_wide(dtype)) for tensor in tensors]
        result = op(*wide, *numbers) if compute is None else compute(op, *wide)
        return tensors[0].copy_(result.to(dtype)) if copied else result.to(dtype)

    return run, tuple(tensors), {}


def _common(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The dtype of a result of one tensor, of two, or of three that have one dtype."""
    return torch.result_type(tensors[0], tensors[-1])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype
