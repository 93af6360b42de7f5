"""What functions of ``torch.distributed`` do in a recording: functional collectives, and writes.

In eager they call an op that writes to tensors which it is given, where autograd doesn't look. A
tape gets the functional op, the wait for it, and a write, which the effects replay. `record` is
called by the tape's mode for each such op, of the function and of the backwards of Functions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.distributed import collectives
from funcaot.errors import UnsupportedError

__all__ = ["record", "refuse_value_of_ranks"]

Tensor = torch.Tensor
Tensors = Sequence[Tensor]


def record(op: Any, args: tuple[Any, ...]) -> Any:
    """Record what an op of a process group does; what comes back has been waited for.

    Raises:
        UnsupportedError: There is no functional form of it.
    """
    name = op._schema.name.removeprefix("c10d::")
    function = _RECORDED.get(name)
    if function is None:
        who = collectives.function_that_runs() or name.strip("_")
        raise UnsupportedError(
            f"A compiled function calls torch.distributed's {who}.",
            remedy="call it outside; all_reduce, broadcast, all_gather, reduce_scatter, all_to_all "
            "and what is made of these can be inside.",
        )
    if name in _RECORDED_BY_GLOO:
        _refuse_recorded(name, args)
    with collectives.unseen_by_autograd():
        function(*args)
    return collectives.as_returned(op, args)


def refuse_value_of_ranks() -> UnsupportedError:
    """What a capture says that would have to wait for other ranks, which may not capture now."""
    return UnsupportedError(
        "A value that other ranks contribute to is read while a function is captured.",
        remedy="return the value and read it outside; torch.where chooses by one inside.",
    )


# Gloo's own threads divide and copy there, and autograd records that: with the gradient of
# what stood there before, divided, or of the part that a rank has of its own input; or it forbids
# the copy, as it does for what is gathered into one tensor, depending on the thread.
_RECORDED_BY_GLOO = {
    "_allgather_base_",
    "_reduce_scatter_base_",
    "allreduce_",
    "reduce_scatter_",
    "reduce_scatter_tensor_coalesced_",
}


def _refuse_recorded(name: str, args: tuple[Any, ...]) -> None:
    """Refuse what has a derivative on gloo only, which isn't one of what is computed."""
    reduces = name == "allreduce_"
    if reduces and not collectives.is_average(args[2]):
        return
    group = args[1] if reduces else args[2]
    used = collectives.tensors_in(args)
    if not torch.is_grad_enabled() or not any(value.requires_grad for value in used):
        return
    if any(collectives.runs_on_gloo(group, value) for value in used):
        raise UnsupportedError(
            "A compiled function calls torch.distributed's "
            f"{collectives.function_that_runs() or name.strip('_')}"
            f"{' with AVG' if reduces else ''} on a tensor that requires grad, of which gloo "
            "records something else than what is computed.",
            remedy="detach() the tensor; torch.distributed._functional_collectives and "
            "torch.distributed.nn.functional have functions with derivatives.",
        )


def _write(target: Tensor, value: Tensor) -> None:
    """Copy a result into what was given for it, which may have another shape."""
    if target.dtype != value.dtype or target.numel() != value.numel():
        raise ValueError(
            f"The output {list(target.shape)} of {target.dtype} of a collective doesn't fit what "
            f"is received, {list(value.shape)} of {value.dtype}."
        )
    target.copy_(value.reshape(target.shape))


def _all_reduce(tensors: Tensors, group: Any, reduction: Any, *rest: Any) -> None:
    if rest and rest[0] is not None:
        raise UnsupportedError(
            "A compiled function calls all_reduce on a sparse tensor.",
            remedy="call it outside, or on a dense one.",
        )
    _all_reduce_each(tensors, group, reduction)


def _all_reduce_each(tensors: Tensors, group: Any, reduction: Any, *rest: Any) -> None:
    for tensor in tensors:
        _write(tensor, collectives.all_reduce(tensor, reduction, group))


def _broadcast(tensors: Tensors, group: Any, root: int, *rest: Any) -> None:
    for tensor in tensors:
        _write(tensor, collectives.broadcast(tensor, root, group))


def _reduce(tensors: Tensors, group: Any, reduction: Any, root: int, *rest: Any) -> None:
    for tensor in tensors:
        reduced = collectives.all_reduce(tensor, reduction, group)
        if collectives.rank_in(group) == root:
            _write(tensor, reduced)


def _all_gather_single(output: Tensor, given: Tensor, group: Any, *rest: Any) -> None:
    _write(output, collectives.all_gather(given.reshape(-1), group))


def _all_gather_singles(outputs: Tensors, given: Tensors, group: Any, *rest: Any) -> None:
    for output, tensor in zip(outputs, given, strict=True):
        _all_gather_single(output, tensor, group)


def _all_gather(outputs: Sequence[Tensors], given: Tensors, group: Any, *rest: Any) -> None:
    for pieces, tensor in zip(outputs, given, strict=True):
        if any(piece.numel() != tensor.numel() for piece in pieces):
            raise UnsupportedError(
                "A compiled function calls all_gather on tensors that have other sizes on other "
                "ranks.",
                remedy="pad them to one size, or use all_to_all_single with sizes.",
            )
        found = collectives.all_gather(tensor.reshape(1, -1), group).unbind(0)
        for piece, value in zip(pieces, found, strict=True):
            _write(piece, value)


def _all_gather_coalesced(outputs: Sequence[Tensors], given: Tensors, *rest: Any) -> None:
    """Here a rank's tensors stand together, and not what the ranks have of one."""
    _all_gather(list(zip(*outputs, strict=True)), given, *rest)


def _gather(outputs: Sequence[Tensors], given: Tensors, group: Any, root: int, *rest: Any) -> None:
    found = collectives.all_gather(given[0].reshape(1, -1), group).unbind(0)
    if collectives.rank_in(group) == root:
        for piece, value in zip(outputs[0], found, strict=True):
            _write(piece, value)


def _scatter(outputs: Tensors, given: Sequence[Tensors], group: Any, root: int, *rest: Any) -> None:
    rank = collectives.rank_in(group)
    if rank == root:
        parts = torch.stack(list(given[0]))
    else:
        parts = outputs[0].new_zeros(collectives.ranks_of(group), *outputs[0].shape)
    _write(outputs[0], collectives.broadcast(parts, root, group)[rank])


def _reduce_scatter_single(
    output: Tensor, given: Tensor, group: Any, reduction: Any, *rest: Any
) -> None:
    ranks = collectives.ranks_of(group)
    _write(output, collectives.reduce_scatter(given.reshape(ranks, -1), reduction, group))


def _reduce_scatter_singles(
    outputs: Tensors, given: Tensors, group: Any, reduction: Any, *rest: Any
) -> None:
    for output, tensor in zip(outputs, given, strict=True):
        _reduce_scatter_single(output, tensor, group, reduction)


def _reduce_scatter(
    outputs: Tensors, given: Sequence[Tensors], group: Any, reduction: Any, *rest: Any
) -> None:
    for output, parts in zip(outputs, given, strict=True):
        _reduce_scatter_single(output, torch.stack(list(parts)), group, reduction)


def _all_to_all_single(
    output: Tensor,
    given: Tensor,
    group: Any,
    received: Sequence[int],
    sent: Sequence[int],
    *rest: Any,
) -> None:
    _write(output, collectives.all_to_all(given, received, sent, group))


def _all_to_all(outputs: Tensors, given: Tensors, group: Any, *rest: Any) -> None:
    received = [output.numel() for output in outputs]
    flat = torch.cat([tensor.reshape(-1) for tensor in given])
    found = collectives.all_to_all(flat, received, [tensor.numel() for tensor in given], group)
    for output, value in zip(outputs, found.split(received), strict=True):
        _write(output, value)


_RECORDED: dict[str, Callable[..., None]] = {
    "_allgather_base_": _all_gather_single,
    "_reduce_scatter_base_": _reduce_scatter_single,
    "allgather_": _all_gather,
    "allgather_coalesced_": _all_gather_coalesced,
    "allgather_into_tensor_coalesced_": _all_gather_singles,
    "allreduce_": _all_reduce,
    "allreduce_coalesced_": _all_reduce_each,
    "alltoall_": _all_to_all,
    "alltoall_base_": _all_to_all_single,
    "broadcast_": _broadcast,
    "gather_": _gather,
    "reduce_": _reduce,
    "reduce_scatter_": _reduce_scatter,
    "reduce_scatter_tensor_coalesced_": _reduce_scatter_singles,
    "scatter_": _scatter,
}
