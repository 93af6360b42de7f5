"""Whether a backward on a tape hides from autograd how gradients depend on cotangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs

if TYPE_CHECKING:
    from funcaot.aot.tape.tape import Tape


def severs(tape: Tape, result: torch.Tensor, cotangents: Sequence[torch.Tensor]) -> bool:
    """Whether a gradient was computed from cotangents where autograd doesn't see it.

    That is so if it has no derivative at all, or something between was computed without grad mode
    or from a cotangent that the rule detached.
    """
    with tracing.temporarily_clear_interpreter_stack():
        found = tape.node_of(functorch.fully_unwrapped(result))
        given = [tape.node_of(functorch.fully_unwrapped(tensor)) for tensor in cotangents]
    start = {node for node in given if node is not None}
    if found is None:
        return False
    between = graphs.nodes_from(found, start)
    if not result.requires_grad:
        return bool(between) or found in start
    return any(
        not node.meta.get("grad_mode", True)
        or (node.meta.get("detached") and node.args[0] in start)
        for node in between
    )
