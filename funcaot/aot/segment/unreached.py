"""Inputs with a history that no result depends on; entries pass them on without it.

A state that a function only resets is such an input. An edge to it would make the engine go through
its history, which may be freed by then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.autograd.nodes import leaves_behind


def unreached(outputs: Sequence[torch.Tensor], slots: Sequence[Any]) -> frozenset[int]:
    """Positions of inputs that require grad, aren't leaves, and get no gradient.

    Args:
        outputs: What the graph computes, on the tape.
        slots: The inputs.
    """
    asked = {
        index: slot.leaf
        for index, slot in enumerate(slots)
        if slot.spec.requires_grad and not slot.spec.is_leaf and slot.kind == "plain"
    }
    if not asked:
        return frozenset()
    reached = set(map(id, leaves_behind(outputs)))
    return frozenset(index for index, leaf in asked.items() if id(leaf) not in reached)
