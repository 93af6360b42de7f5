"""One function for each collective of torch, as eager has it: `WRITING` and `DIFFERENTIABLE`.

Each takes two tensors of an even number of rows and a group, and returns a tensor or several.
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch.distributed.distributed_c10d import _coalescing_manager

Work = Any


def _rank(group) -> int:
    return dist.get_rank(group)


def _halves(x) -> list[torch.Tensor]:
    return [half.contiguous() for half in x.chunk(2)]


def _wait(handle: Work, later: bool) -> None:
    if later:
        handle.wait()


# What writes to tensors. `later` asks for a handle and waits for it.


def all_reduce(x, w, group, later=False):
    y = x * w
    handle = dist.all_reduce(y, group=group, async_op=later)
    z = x.cos()
    _wait(handle, later)
    return y + z


def all_reduce_argument(x, w, group, later=False):
    _wait(dist.all_reduce(x, dist.ReduceOp.MAX, group=group, async_op=later), later)
    return x + w


def all_reduce_view(x, w, group, later=False):
    y = x * w
    _wait(dist.all_reduce(y[1:], dist.ReduceOp.PRODUCT, group=group, async_op=later), later)
    return y


def all_reduce_of_columns(x, w, group, later=False):
    """Eager refuses what isn't contiguous, or writes to it."""
    y = (x * w).t()
    _wait(dist.all_reduce(y, group=group, async_op=later), later)
    return y


def all_gather_into_tensor(x, w, group, later=False):
    y = x * w
    out = x.new_empty(2 * len(x), 3)
    _wait(dist.all_gather_into_tensor(out, y, group=group, async_op=later), later)
    return out.sin()


def all_gather(x, w, group, later=False):
    y = x * w
    out = [torch.empty_like(y) for _ in range(2)]
    _wait(dist.all_gather(out, y, group=group, async_op=later), later)
    return out


def all_gather_into_views(x, w, group, later=False):
    y = x * w
    out = torch.zeros(3, *y.shape)
    _wait(dist.all_gather([out[0], out[2]], y, group=group, async_op=later), later)
    return out


def reduce_scatter_tensor(x, w, group, later=False):
    y = x * w
    out = x.new_empty(len(x) // 2, 3)
    _wait(dist.reduce_scatter_tensor(out, y, group=group, async_op=later), later)
    return out.sin()


def reduce_scatter(x, w, group, later=False):
    parts = _halves(x * w)
    out = torch.empty_like(parts[0])
    _wait(dist.reduce_scatter(out, parts, group=group, async_op=later), later)
    return out


def broadcast(x, w, group, later=False):
    y = x * w
    _wait(dist.broadcast(y, 1, group=group, async_op=later), later)
    return y


def reduce(x, w, group, later=False):
    y = x * w
    _wait(dist.reduce(y, 1, group=group, async_op=later), later)
    return y if _rank(group) == 1 else x * 2


def gather(x, w, group, later=False):
    y = x * w
    out = [torch.empty_like(y) for _ in range(2)] if _rank(group) == 1 else None
    _wait(dist.gather(y, out, dst=1, group=group, async_op=later), later)
    return out or [x * 2]


def scatter(x, w, group, later=False):
    parts = _halves(x * w)
    out = torch.empty_like(parts[0])
    given = parts if _rank(group) == 1 else None
    _wait(dist.scatter(out, given, src=1, group=group, async_op=later), later)
    return out


def all_to_all(x, w, group, later=False):
    parts = _halves(x * w)
    out = [torch.empty_like(part) for part in parts]
    _wait(dist.all_to_all(out, parts, group=group, async_op=later), later)
    return out


def all_to_all_single(x, w, group, later=False):
    y = x * w
    out = torch.empty_like(y)
    _wait(dist.all_to_all_single(out, y, group=group, async_op=later), later)
    return out


def all_to_all_uneven(x, w, group, later=False):
    """Each rank keeps one row and sends the others."""
    y, rows, rank = x * w, len(x), _rank(group)
    sent = [1, rows - 1] if rank == 0 else [rows - 1, 1]
    out = torch.empty_like(y)
    _wait(dist.all_to_all_single(out, y, sent, sent, group=group, async_op=later), later)
    return out


def all_reduce_in_coalescing(x, w, group, later=False):
    y, z = x * w, x + w
    with _coalescing_manager(group, async_ops=later) as manager:
        dist.all_reduce(y, group=group)
        dist.all_reduce(z, group=group)
    _wait(manager, later)
    return y, z


def all_gather_in_coalescing(x, w, group, later=False):
    y, z = x.new_empty(2 * len(x), 3), x.new_empty(2 * len(x), 3)
    with _coalescing_manager(group, async_ops=later) as manager:
        dist.all_gather_into_tensor(y, x * w, group=group)
        dist.all_gather_into_tensor(z, x + w, group=group)
    _wait(manager, later)
    return y, z


def reduce_scatter_in_coalescing(x, w, group, later=False):
    y, z = x.new_empty(len(x) // 2, 3), x.new_empty(len(x) // 2, 3)
    with _coalescing_manager(group, async_ops=later) as manager:
        dist.reduce_scatter_tensor(y, x * w, group=group)
        dist.reduce_scatter_tensor(z, x + w, group=group)
    _wait(manager, later)
    return y, z


def all_reduce_coalesced(x, w, group, later=False):
    y = [x * w, x + w]
    _wait(dist.all_reduce_coalesced(y, group=group, async_op=later), later)
    return y


def all_gather_coalesced(x, w, group, later=False):
    out = [[torch.empty_like(x) for _ in range(2)] for _ in range(2)]
    _wait(dist.all_gather_coalesced(out, [x * w, x + w], group=group, async_op=later), later)
    return out[0] + out[1]


def all_reduce_average(x, w, group, later=False):
    """Gloo has no such reduction, in some versions."""
    y = x * w
    _wait(dist.all_reduce(y, dist.ReduceOp.AVG, group=group, async_op=later), later)
    return y


def all_reduce_of_numbers(x, w, group, later=False):
    y = (x * 3).long()
    _wait(dist.all_reduce(y, dist.ReduceOp.BXOR, group=group, async_op=later), later)
    return y


def all_reduce_of_halves(x, w, group, later=False):
    y = (x * w).to(torch.bfloat16)
    _wait(dist.all_reduce(y, group=group, async_op=later), later)
    return y


def all_reduce_of_truths(x, w, group, later=False):
    y = x > 0
    _wait(dist.all_reduce(y, dist.ReduceOp.MAX, group=group, async_op=later), later)
    return y


def send_and_receive(x, w, group, later=False):
    y, other = (x * w).contiguous(), 1 - _rank(group)
    out = torch.empty_like(y)
    if _rank(group):
        dist.recv(out, other, group=group)
        dist.send(y, other, group=group)
    else:
        dist.send(y, other, group=group)
        dist.recv(out, other, group=group)
    return out


def batch_isend_irecv(x, w, group, later=False):
    y, other = (x * w).contiguous(), 1 - _rank(group)
    out = torch.empty_like(y)
    made = [dist.P2POp(dist.isend, y, other, group), dist.P2POp(dist.irecv, out, other, group)]
    for handle in dist.batch_isend_irecv(made):
        handle.wait()
    return out


def barrier(x, w, group, later=False):
    _wait(dist.barrier(group=group, async_op=later), later)
    return x * w


def all_gather_object(x, w, group, later=False):
    out = [None, None]
    dist.all_gather_object(out, _rank(group), group=group)
    return x * w + sum(out)


def broadcast_object_list(x, w, group, later=False):
    out = [_rank(group)]
    dist.broadcast_object_list(out, 1, group=group)
    return x * w + out[0]


def monitored_barrier(x, w, group, later=False):
    dist.monitored_barrier(group)
    return x * w


# What gloo's threads do is recorded by autograd.
RECORDED_BY_GLOO = {
    all_gather_into_tensor: "all_gather_into_tensor on a tensor that requires grad",
    reduce_scatter_tensor: "reduce_scatter_tensor on a tensor that requires grad",
    reduce_scatter: "reduce_scatter on a tensor that requires grad",
    reduce_scatter_in_coalescing: "_coalescing_manager on a tensor that requires grad",
    all_reduce_average: "all_reduce with AVG on a tensor that requires grad",
}
REFUSED = {
    send_and_receive: ("send", "recv"),
    batch_isend_irecv: ("batch_isend_irecv",),
    barrier: ("barrier",),
    monitored_barrier: ("monitored_barrier",),
    all_gather_object: ("all_gather_object, which sends objects",),
    broadcast_object_list: (
        "broadcast_object_list, which sends objects",
        "other ranks contribute",
    ),
}
WRITING = (
    all_reduce,
    all_reduce_argument,
    all_reduce_view,
    all_reduce_of_columns,
    all_gather_into_tensor,
    all_gather,
    all_gather_into_views,
    reduce_scatter_tensor,
    reduce_scatter,
    broadcast,
    reduce,
    gather,
    scatter,
    all_to_all,
    all_to_all_single,
    all_to_all_uneven,
    all_reduce_in_coalescing,
    all_gather_in_coalescing,
    reduce_scatter_in_coalescing,
    all_reduce_coalesced,
    all_gather_coalesced,
    all_reduce_average,
    all_reduce_of_numbers,
    all_reduce_of_halves,
    all_reduce_of_truths,
)


# Functional collectives.


def functional_all_reduce(x, w, group):
    return functional.all_reduce(x * w, "sum", group)


def functional_all_reduce_maximum(x, w, group):
    return functional.all_reduce(x * w, "max", group)


def functional_all_reduce_average(x, w, group):
    return functional.all_reduce(x * w, "avg", group)


def functional_broadcast(x, w, group):
    return functional.broadcast(x * w, 1, group)


def functional_all_gather(x, w, group):
    return functional.all_gather_single(x * w, 0, group)


def functional_all_gather_of_columns(x, w, group):
    return functional.all_gather_single_autograd(x * w, 1, group)


def functional_reduce_scatter(x, w, group):
    return functional.reduce_scatter_single(x * w, "sum", 0, group)


def functional_reduce_scatter_average(x, w, group):
    return functional.reduce_scatter_single_autograd(x * w, "avg", 0, group)


def functional_reduce_scatter_of_columns(x, w, group):
    wide = torch.cat([x * w, x + w], 1)
    return functional.reduce_scatter_single_autograd(wide, "sum", 1, group)


def functional_all_to_all(x, w, group):
    return functional.all_to_all_single(x * w, None, None, group)


def functional_all_to_all_uneven(x, w, group):
    rows, rank = len(x), _rank(group)
    sent = [1, rows - 1] if rank == 0 else [rows - 1, 1]
    return functional.all_to_all_single_autograd(x * w, sent, sent, group)


def functional_all_reduce_coalesced(x, w, group):
    return functional.all_reduce_coalesced([x * w, x + w], "sum", group)


def functional_all_gather_coalesced(x, w, group):
    return functional.all_gather_single_coalesced([x * w, x + w], group)


def functional_reduce_scatter_coalesced(x, w, group):
    return functional.reduce_scatter_single_coalesced([x * w, x + w], "sum", [0, 0], group)


def functional_permute(x, w, group):
    return functional.permute_tensor((x * w).reshape(-1), [1, 0], group)


def functional_wait(x, w, group):
    return functional.wait_tensor(functional.all_reduce(x * w, "sum", group)) + 1


# Those with derivatives of ``torch.distributed.nn``.


def nn_broadcast(x, w, group):
    return differentiable.broadcast(x * w, 1, group)


def nn_gather(x, w, group):
    return differentiable.gather(x * w, 1, group)


def nn_scatter(x, w, group):
    return differentiable.scatter(_halves(x * w), 1, group)


def nn_reduce(x, w, group):
    """Gloo leaves parts of the sum on the other ranks."""
    y = differentiable.reduce(x * w, 1, group=group)
    return y if _rank(group) == 1 else y * 0


def nn_reduce_scatter(x, w, group):
    parts = _halves(x * w)
    return differentiable.reduce_scatter(torch.empty_like(parts[0]), parts, group=group)


def nn_all_gather(x, w, group):
    return differentiable.all_gather(x * w, group)


def nn_all_gather_base(x, w, group):
    return differentiable._all_gather_base(x.new_empty(2 * len(x), 3), x * w, group)


def nn_all_to_all(x, w, group):
    parts = _halves(x * w)
    return differentiable.all_to_all([torch.empty_like(part) for part in parts], parts, group)


def nn_all_to_all_single(x, w, group):
    return differentiable.all_to_all_single(torch.empty_like(x), x * w, group=group)


def nn_all_to_all_uneven(x, w, group):
    rows, rank = len(x), _rank(group)
    sent = [1, rows - 1] if rank == 0 else [rows - 1, 1]
    return differentiable.all_to_all_single(torch.empty_like(x), x * w, sent, sent, group)


def nn_all_reduce(x, w, group):
    return differentiable.all_reduce(x * w, group=group)


def nn_all_reduce_product(x, w, group):
    return differentiable.all_reduce(x * w, dist.ReduceOp.PRODUCT, group)


def nn_all_reduce_maximum(x, w, group):
    return differentiable.all_reduce(x * w, dist.ReduceOp.MAX, group)


def nn_twice(x, w, group):
    """Two that don't depend on each other, whose backwards meet."""
    return differentiable.all_reduce(x * w, group=group) * differentiable.broadcast(x, 1, group)


DIFFERENTIABLE = (
    functional_all_reduce,
    functional_all_reduce_maximum,
    functional_all_reduce_average,
    functional_broadcast,
    functional_all_gather,
    functional_all_gather_of_columns,
    functional_reduce_scatter,
    functional_reduce_scatter_average,
    functional_reduce_scatter_of_columns,
    functional_all_to_all,
    functional_all_to_all_uneven,
    functional_all_reduce_coalesced,
    functional_all_gather_coalesced,
    functional_reduce_scatter_coalesced,
    functional_permute,
    functional_wait,
    nn_broadcast,
    nn_gather,
    nn_scatter,
    nn_reduce,
    nn_reduce_scatter,
    nn_all_gather,
    nn_all_gather_base,
    nn_all_to_all,
    nn_all_to_all_single,
    nn_all_to_all_uneven,
    nn_all_reduce,
    nn_all_reduce_product,
    nn_all_reduce_maximum,
    nn_twice,
)

# Eager fails now and then in the first, always in the others.
EAGER_FAILS_BACKWARD = (
    all_to_all,
    functional_all_gather_coalesced,
    functional_reduce_scatter_coalesced,
)
