"""Functional collectives, which a capture records, and what is asked of process groups."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future  # pyright: ignore
from torch.utils._pytree import tree_leaves

from funcaot._torch.tensors.ops import OpOverload
from funcaot.errors import UnsupportedError

__all__ = [
    "COLLECTIVES",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "as_returned",
    "broadcast",
    "broadcast_op",
    "function_that_runs",
    "gathered",
    "group_in",
    "is_average",
    "is_collective",
    "is_in_place_collective",
    "is_running",
    "load_ops",
    "place_in",
    "position_of_group",
    "rank_in",
    "ranks_of",
    "reduce_scatter",
    "runs_on_gloo",
    "summed",
    "summed_part",
    "tensors_in",
    "unseen_by_autograd",
]

# The namespaces of ops that wait for other ranks.
COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "_dtensor")


def is_running() -> bool:
    """Whether this process has a process group."""
    return dist.is_available() and dist.is_initialized()


def function_that_runs() -> str | None:
    """The function of ``torch.distributed`` that user code has called and that runs now, if any."""
    found, frame = None, inspect.currentframe()
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch.distributed.distributed_c10d":
            found = frame.f_code.co_name
        frame = frame.f_back
    return found


def is_collective(op: Any) -> bool:
    """Whether an op waits for other ranks: it runs once, also where nobody uses its result."""
    return isinstance(op, OpOverload) and op.namespace in COLLECTIVES


def is_in_place_collective(op: Any) -> bool:
    """Whether an op is what the functions of ``torch.distributed`` call in C++."""
    return isinstance(op, OpOverload) and op.namespace == "c10d"


@functools.cache
def position_of_group(op: OpOverload) -> int | None:
    """Where among an op's arguments the name of the group stands that it waits for, if it does."""
    if not is_collective(op):
        return None
    names = [argument.name for argument in op._schema.arguments]
    return next((place for place, name in enumerate(names) if name == "group_name"), None)


def group_in(op: Any, args: tuple[Any, ...]) -> str | None:
    """The name of the group that an op in a graph waits for."""
    place = position_of_group(op) if isinstance(op, OpOverload) else None
    if place is None or place >= len(args):
        return None
    return args[place] if isinstance(args[place], str) else None


def place_in(name: str) -> tuple[int, int] | None:
    """How many ranks the group of a name has now, and which of them this is; None if none."""
    from torch._C._distributed_c10d import _resolve_process_group

    try:
        group: Any = _resolve_process_group(name)  # type: ignore[arg-type]
    except RuntimeError:
        return None
    return group.size(), group.rank()


def as_returned(op: Any, args: tuple[Any, ...]) -> Any:
    """What an op of a process group returns: the tensors written to, and a handle that is done."""
    future: Any = torch.futures.Future()
    future.set_result([])
    done = dist.Work.boxed(_create_work_from_future(future))  # type: ignore[attr-defined]
    return done if len(op._schema.returns) == 1 else (args[0], done)


@contextlib.contextmanager
def unseen_by_autograd() -> Iterator[None]:
    """Autograd records nothing inside and counts no writes, as where a backend's C++ runs."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)
    with torch._C._AutoDispatchBelowAutograd(), torch._C._ExcludeDispatchKeyGuard(keys):
        yield


def _group(boxed: Any) -> Any:
    return dist.ProcessGroup.unbox(boxed)  # type: ignore[attr-defined]


def rank_in(boxed: Any) -> int:
    """The number of this rank in a group."""
    return _group(boxed).rank()


def ranks_of(boxed: Any) -> int:
    """How many ranks a group has."""
    return _group(boxed).size()


def broadcast_op() -> Any:
    """The functional broadcast; None where torch was built without collectives."""
    return torch.ops._c10d_functional.broadcast.default if dist.is_available() else None


def tensors_in(args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among an op's arguments, and in their lists."""
    return [value for value in tree_leaves(args) if isinstance(value, torch.Tensor)]


def is_average(boxed: Any) -> bool:
    """Whether a reduction is the mean."""
    return boxed.op() == int(dist.ReduceOp.AVG)  # type: ignore[call-overload]


def runs_on_gloo(boxed: Any, tensor: torch.Tensor) -> bool:
    """Whether a group sends a tensor by gloo."""
    return _group(boxed)._get_backend(tensor.device).name() == "gloo"


def name_of(boxed: Any) -> str:
    """The name by which ops find a group."""
    return _group(boxed).group_name


@functools.cache
def _ops() -> Any:
    # Registers what the ops do for fake tensors, and their derivatives.
    import torch.distributed._functional_collectives

    return torch.ops._c10d_functional


def load_ops() -> None:
    """Let torch know all collectives that a graph out of a file may call."""
    if dist.is_available():
        _ops()


def _reduction(boxed: Any, who: str) -> str:
    from torch.distributed._functional_collectives import REDUCE_OP_TO_STR

    number = boxed.op()
    for known, name in REDUCE_OP_TO_STR.items():
        if int(known) == number:  # pyright: ignore[reportArgumentType]
            return name
    raise UnsupportedError(
        f"A compiled function calls {who} with a reduction that ops don't have.",
        remedy="use SUM, AVG, PRODUCT, MIN, MAX or a bitwise one.",
    )


def _real(function: Callable[..., torch.Tensor], tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
    """Call an op on a complex tensor by its real and imaginary parts, as eager does."""
    if not tensor.is_complex():
        return function(tensor, *rest)
    parts = torch.view_as_real(tensor.contiguous())
    return torch.view_as_complex(function(parts, *rest))


def all_reduce(tensor: torch.Tensor, reduction: Any, group: Any) -> torch.Tensor:
    """The reduced value, as a new tensor."""
    name = _reduction(reduction, "all_reduce")

    def run(value: torch.Tensor) -> torch.Tensor:
        return _ops().wait_tensor(_ops().all_reduce(value.contiguous(), name, name_of(group)))

    return _real(run, tensor)


def broadcast(tensor: torch.Tensor, source: int, group: Any) -> torch.Tensor:
    """The tensor of a rank of the group (by its number there), as a new tensor."""

    def run(value: torch.Tensor) -> torch.Tensor:
        return _ops().wait_tensor(_ops().broadcast(value.contiguous(), source, name_of(group)))

    return _real(run, tensor)


def all_gather(tensor: torch.Tensor, group: Any) -> torch.Tensor:
    """The tensors of all ranks, one after the other along the first dimension."""
    ranks = ranks_of(group)

    def run(value: torch.Tensor) -> torch.Tensor:
        made = _ops().all_gather_into_tensor(value.contiguous(), ranks, name_of(group))
        return _ops().wait_tensor(made)

    return _real(run, tensor)


def reduce_scatter(tensor: torch.Tensor, reduction: Any, group: Any) -> torch.Tensor:
    """This rank's part of the reduced value, cut along the first dimension."""
    name, ranks = _reduction(reduction, "reduce_scatter"), ranks_of(group)

    def run(value: torch.Tensor) -> torch.Tensor:
        made = _ops().reduce_scatter_tensor(value.contiguous(), name, ranks, name_of(group))
        return _ops().wait_tensor(made)

    return _real(run, tensor)


def all_to_all(
    tensor: torch.Tensor,
    received: Sequence[int] | None,
    sent: Sequence[int] | None,
    group: Any,
) -> torch.Tensor:
    """What each rank sent to this one, one after the other along the first dimension."""
    ranks = ranks_of(group)
    if not received or not sent:
        if tensor.shape[0] % ranks:
            raise ValueError("all_to_all_single: the first dimension isn't divisible by the ranks")
        part = tensor.shape[0] // ranks
        received, sent = received or [part] * ranks, sent or [part] * ranks

    def run(value: torch.Tensor) -> torch.Tensor:
        made = _ops().all_to_all_single(
            value.contiguous(), list(received), list(sent), name_of(group)
        )
        return _ops().wait_tensor(made)

    return _real(run, tensor)


def gathered(part: torch.Tensor, ranks: int, name: str) -> torch.Tensor:
    """The parts of all ranks of a group, by its name, one after the other; all are as large."""
    return _ops().wait_tensor(_ops().all_gather_into_tensor(part.contiguous(), ranks, name))


def summed_part(whole: torch.Tensor, ranks: int, name: str) -> torch.Tensor:
    """This rank's part of the sum over a group, by its name."""
    made = _ops().reduce_scatter_tensor(whole.contiguous(), "sum", ranks, name)
    return _ops().wait_tensor(made)


def summed(value: torch.Tensor, name: str) -> torch.Tensor:
    """The sum over a group, by its name."""
    return _ops().wait_tensor(_ops().all_reduce(value.contiguous(), "sum", name))
