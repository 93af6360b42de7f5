"""Functions of ``DTensor``s that a rank compiles for others, and what each of them depends on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor as distributed

# Registers groups that send nothing.
import torch.testing._internal.distributed.fake_pg
from torch.distributed.tensor import _redistribute
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.experimental import local_map


class _Meshes:
    """Meshes that functions of this module name."""

    whole: Any = None


meshes = _Meshes()


@contextlib.contextmanager
def place(rank: int, ranks: int, shape: tuple[int, ...] = ()) -> Iterator[None]:
    """This process is one of some ranks inside, which send nothing."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=ranks)
    meshes.whole = dist.init_device_mesh("cpu", shape or (ranks,))
    _clear_sharding_prop_cache()  # Plans of another rank, which is another process.
    _redistribute._gen_transform_infos.cache_clear()
    try:
        yield
    finally:
        dist.destroy_process_group()


def shared(rows: int, columns: int, *placements: Any, dtype: Any = torch.float64) -> DTensor:
    """A tensor of this size of which this rank has its part, with numbers of its own."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    shape = (rows, columns)
    part, _ = compute_local_shape_and_global_offset(shape, meshes.whole, placements)
    rank = 0 if all(each == Replicate() for each in placements) else dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    local = torch.randn(part, generator=generator, dtype=dtype)
    return DTensor.from_local(
        local, meshes.whole, placements, run_check=False, shape=shape, stride=(columns, 1)
    ).requires_grad_()


def _to(*placements):
    return lambda x: x.sin().redistribute(placements=placements).cos()


def _made_inside(x):
    return x.sin() + distributed.ones(*x.shape, device_mesh=x.device_mesh, placements=x.placements)


def _zeros_of_another_size(x):
    return x.new_zeros(5, 3) + 1


def _looked_up(x):
    return torch.nn.functional.embedding(torch.tensor([0, 3, 1, 2, 3]), x).sin()


def _of_numbers(x):
    numbers = DTensor.from_local(torch.tensor([0, 3, 1]), x.device_mesh, [Replicate()])
    return torch.nn.functional.embedding(numbers, x).sin().redistribute(placements=[Replicate()])


def _by_coordinate(x):
    return x * (1 + x.device_mesh.get_coordinate()[0])


def _by_local_rank(x):
    return x * (1 + x.device_mesh.get_local_rank())


def _by_rank(x):
    return x.sin() if dist.get_rank() == 0 else x.cos()


def _by_offset(x):
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, (offset, *_) = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return x * (1 + offset)


def _by_coordinate_through_torch(x):
    (found,) = torch.utils._pytree.tree_map(type(x.device_mesh).get_coordinate, [x.device_mesh])
    return x * (1 + found[0])


def _local(x):
    return x.sin().to_local().cos() * 2


def _wrapped_again(x):
    made = DTensor.from_local(x.to_local().sin(), x.device_mesh, x.placements, run_check=False)
    return made.cos()


class _Turned(torch.autograd.Function):
    """Whose backward asks for the rank."""

    @staticmethod
    def forward(x):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mesh = inputs[0].device_mesh

    @staticmethod
    def backward(ctx, gradient):
        return gradient * (1 + ctx.mesh.get_local_rank())


def _mapped(x):
    function = local_map(lambda part: part.sin() * 2, x.placements, (x.placements,), device_mesh=x.device_mesh)
    return function(x)


FUNCTIONS = {
    "pointwise": lambda x: x.sin() * 2 + x,
    "product": lambda x: x @ x.t(),
    "sum of rows": lambda x: x.sin().sum(0),
    "sum": lambda x: x.sin().sum(),
    "norm": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x: x.softmax(-1),
    "flat": lambda x: x.reshape(-1).sin(),
    "view": lambda x: x.view(x.shape[0], 1, x.shape[1]).sin(),
    "expanded": lambda x: x.unsqueeze(1).expand(-1, 2, -1).sin(),
    "transposed": lambda x: x.t().sin(),
    "cut": lambda x: x.sin()[:, :2],
    "whole": lambda x: x.sin().full_tensor().cos(),
    "replicated": _to(Replicate()),
    "rows": _to(Shard(0)),
    "columns": _to(Shard(1)),
    "made inside": _made_inside,
    "zeros of another size": _zeros_of_another_size,
    "looked up": _of_numbers,
    "local": _local,
    "wrapped again": _wrapped_again,
    "mapped": _mapped,
    "written": lambda x: x.sin().add_(1).mul_(x),
    "two": lambda x: (x.sin(), x.cos().to_local()),
    "itself": lambda x: (x, x.sin()),
    "viewed": lambda x: (x.t(), x.sin()),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.5),
    "drawn": lambda x: x * torch.rand_like(x),
    "by coordinate": _by_coordinate,
    "by coordinate, through torch": _by_coordinate_through_torch,
    "by local rank": _by_local_rank,
    "by rank": _by_rank,
    "by offset": _by_offset,
    "rule by local rank": lambda x: _Turned.apply(x.sin()),
}

PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "whole": Replicate(), "parts": Partial()}


def _plain(value):
    return value.to_local() if isinstance(value, DTensor) else value


def derivatives(function: Any, x: DTensor, order: int) -> list[Any]:
    """The values and what the orders up to this one give."""
    x = x.detach().requires_grad_(order > 0)
    torch.manual_seed(7)
    found = function(x)
    found = list(found) if isinstance(found, tuple) else [found]
    if order == 0 or not any(each.requires_grad for each in found):
        return found
    loss = sum(_plain(each).square().sum() for each in found if each.requires_grad)
    if order == 1:
        return [*found, *torch.autograd.grad(loss, x, allow_unused=True)]
    (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
    return [*found, gradient, *torch.autograd.grad(_plain(gradient).square().sum(), x)]


def looks(values: list[Any]) -> list[Any]:
    """What can be seen of tensors beside their numbers."""
    return [
        (type(each), each.shape, each.stride(), each.dtype, each.requires_grad)
        + ((each.placements, each.device_mesh, each._spec.shard_order) if isinstance(each, DTensor) else ())
        for each in values
    ]
