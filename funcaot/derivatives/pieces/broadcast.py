"""The gradient of the functional broadcast, as the process's own kernel in C++ has it.

That kernel clones its input, which autograd records, and writes what a rank sent to the clone,
which autograd doesn't see. So each rank's gradient is what arrives on that rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from funcaot._torch.distributed.collectives import broadcast_op
from funcaot.derivatives.table import Derivative, register


def _same(arriving: Sequence[Tensor | None], *args: Any) -> Tensor | None:
    return arriving[0]


def _vjp(arriving: Sequence[Tensor | None], *args: Any) -> tuple[Tensor | None, None, None]:
    return _same(arriving), None, None


_OP = broadcast_op()
if _OP is not None:
    register(Derivative(_OP, vjp=_vjp, jvp=_same))
