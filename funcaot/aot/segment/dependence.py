"""Which results of a segment depend on operands whose gradient nobody wants at a level; for calls.

On the tape every operand that some level differentiates is a leaf. Each level wants the gradients
of some of them only, and what depends on the others alone is a constant there, as in eager.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from funcaot._torch.autograd.nodes import leaves_behind
from funcaot.aot.segment.segment import Operand

__all__ = ["dependent_on"]


def dependent_on(operands: Sequence[Operand], output: torch.Tensor) -> frozenset[int]:
    """Positions of the operands with a gradient on which a result depends.

    What can't be told is taken for dependent.
    """
    leaves = {i: operand.leaf for i, operand in enumerate(operands) if operand.leaf is not None}
    if not output.requires_grad:
        return frozenset()
    if output.grad_fn is None:
        return frozenset(leaves)
    reached = set(map(id, leaves_behind([output])))
    found = frozenset(
        index for index, leaf in leaves.items() if not leaf.is_leaf or id(leaf) in reached
    )
    # A view that is made in no_grad requires grad as its base does, and leads nowhere.
    return found or frozenset(leaves)
