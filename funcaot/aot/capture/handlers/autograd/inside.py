"""What autograd keeps with a tensor inside of a wrapper is asked for, or changed: it is refused."""

from __future__ import annotations

from typing import Any

import torch

from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.inner_tensors import refusal

__all__ = ["OF_AUTOGRAD", "refuse"]

_GRAD: Any = torch.Tensor.grad
OF_AUTOGRAD = (
    _GRAD.__get__,
    _GRAD.__set__,
    _GRAD.__delete__,
    torch.Tensor.register_hook,
    torch.Tensor.register_post_accumulate_grad_hook,
    torch.Tensor.retain_grad,
    torch.Tensor.requires_grad_,
    torch.Tensor.detach_,
)


def refuse(call: Call, capture: InProgress) -> Any:
    """Any of these calls, if the tensor is inside of a wrapper and requires grad itself.

    Raises:
        UnsupportedError: If it is.
    """
    if call.args and id(call.args[0]) in capture.tape.wrappers.inner_leaves:
        raise refusal(capture.name, "uses .grad, a hook or requires_grad_() of")
    return NotImplemented
