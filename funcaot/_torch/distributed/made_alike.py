"""Make a ``DTensor`` with the spec of one that was made alike; ``subclasses.structure`` asks.

The class's own way describes mesh, placements and sizes anew for each tensor, which takes longer
than all else that a call does with it. In eager, too, the results of one op share such a spec.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

__all__ = ["Maker", "maker_of"]

Maker: TypeAlias = Callable[[Sequence[torch.Tensor]], Any]
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def maker_of(made: Any) -> Maker | None:
    """What makes tensors like one, which requires no grad, of other parts; None for its class.

    It gives None itself for parts that aren't plain tensors, as those of a trace.
    """
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or type(made) is not module.DTensor:
        return None
    if type(made._local_tensor) not in _PLAIN:
        return None
    kind, spec = module.DTensor, made._spec
    make, unflatten = kind.__new__, kind.__tensor_unflatten__

    def again(parts: Sequence[torch.Tensor]) -> Any:
        (part,) = parts
        if type(part) not in _PLAIN or kind.__tensor_unflatten__ is not unflatten:
            return None
        return make(kind, part, spec, requires_grad=False)  # its ``__init__`` does nothing

    return again
