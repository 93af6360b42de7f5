"""A tensor leaves autograd: by ``detach``, by ``.data``, or in place."""

from __future__ import annotations

from typing import Any

from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.handlers.memory.reshaping import refuse_fixed
from funcaot.aot.graph import graphs
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.errors import UnsupportedError

__all__ = ["detach", "read_data", "refuse_new_data", "start_or_stop_requiring_grad"]


def start_or_stop_requiring_grad(call: Call, capture: InProgress) -> Any:
    """``detach_`` and ``requires_grad_``.

    Raises:
        UnsupportedError: On what other inputs are views of; in forward mode for ``detach_`` of what
            carries a tangent, which no node of the tape says.
        RuntimeError: For ``detach_`` of an input that is a view, as eager torch says.
    """
    refuse_fixed(call, capture)
    if call.name == "detach_":
        seen = call.args[0]
        if capture.facts.know(seen) and capture.facts.read(seen, "_is_view"):
            raise RuntimeError("Can't detach views in-place. Use detach() instead.")
        if capture.forward_mode and call.args[0].requires_grad:
            raise UnsupportedError(
                f"{capture.name} calls detach_ in forward mode.",
                remedy="use x.detach() instead of x.detach_().",
            )
        capture.events.detached.add(id(call.args[0]))
    return NotImplemented


def detach(call: Call, capture: InProgress) -> Any:
    """``detach``: writes through its result are seen by the tensor that it came from."""
    result = call.run()
    capture.tape.detached_writes.detach(result, None)
    return result


def read_data(call: Call, capture: InProgress) -> Any:
    """``x.data``, which loses tangents too."""
    result, source = call.run(), call.args[0]
    capture.tape.detached_writes.detach(result, source if capture.forward_mode else None)
    capture.events.reads_data |= source.requires_grad
    return result


def refuse_new_data(call: Call, capture: InProgress) -> Any:
    """``x.data = value``.

    Raises:
        FirstStepError: After a branch on a value, as where a layer takes its scale from the first
            batch; the call is made as it is.
        UnsupportedError: Otherwise.
    """
    if any(map(graphs.is_premise, capture.tape.graph.nodes)):
        raise FirstStepError("assigns to the .data of a tensor, after a branch on a value")
    raise UnsupportedError(
        f"{capture.name} assigns to the .data of a tensor.",
        remedy="write x.copy_(value) under torch.no_grad(), or x.set_(value).",
    )
