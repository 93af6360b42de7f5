"""Functions of ``DTensor``s that a rank compiles for others, in a process that sends nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor as distributed

# Registers groups that send nothing.
import torch.testing._internal.distributed.fake_pg
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, _redistribute
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.debug import _clear_sharding_prop_cache


class _Meshes:
    """Meshes that tests name."""

    whole: Any = None


meshes = _Meshes()


@contextlib.contextmanager
def place(rank: int, ranks: int, shape: tuple[int, ...] = ()) -> Iterator[None]:
    """This process is one of some ranks inside."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=rank, world_size=ranks)
    meshes.whole = dist.init_device_mesh("cpu", shape or (ranks,))
    # Plans of another rank, which in fact is another process.
    _clear_sharding_prop_cache()
    _redistribute._gen_transform_infos.cache_clear()
    try:
        yield
    finally:
        dist.destroy_process_group()


def shared(shape: tuple[int, ...], placements: tuple[Any, ...], step: int = 0) -> DTensor:
    """A tensor of which this rank has its part, with numbers of its own."""
    part, _ = compute_local_shape_and_global_offset(shape, meshes.whole, placements)
    rank = 0 if all(each == Replicate() for each in placements) else dist.get_rank()
    generator = torch.Generator().manual_seed(10 * step + rank)
    local = torch.randn(part, generator=generator, dtype=torch.float64)
    stride = torch.empty(shape, device="meta").stride()
    options = {"run_check": False, "shape": torch.Size(shape), "stride": stride}
    return DTensor.from_local(local, meshes.whole, placements, **options)


def _to(*placements: Any) -> Callable[[DTensor], DTensor]:
    return lambda x: x.sin().redistribute(placements=placements).cos()


def _made_inside(x):
    return x.sin() + distributed.ones(*x.shape, device_mesh=x.device_mesh, placements=x.placements)


def _looked_up(x):
    numbers = DTensor.from_local(torch.tensor([0, 3, 1]), x.device_mesh, [Replicate()])
    found = torch.nn.functional.embedding(numbers, x)
    return found.redistribute(placements=[Replicate()]).sin()


def _by_coordinate(x):
    return x * (1 + x.device_mesh.get_coordinate()[0])


def _by_coordinate_through_torch(x):
    kind, mesh = type(x.device_mesh), x.device_mesh
    (found,) = torch.utils._pytree.tree_map(kind.get_coordinate, [mesh])
    return x * (1 + found[0])


def _by_local_rank(x):
    return x * (1 + x.device_mesh.get_local_rank())


def _by_rank(x):
    return x.sin() if dist.get_rank() == 0 else x.cos()


def _by_offset(x):
    _, (offset, *_) = compute_local_shape_and_global_offset(x.shape, x.device_mesh, x.placements)
    return x * (1 + offset)


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


# What is computed, and whether another rank takes it for a tensor that is cut evenly into rows:
# all of it, the forward alone, or nothing.
FUNCTIONS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "pointwise": (lambda x: x.sin() * 2 + x, "all"),
    "product": (lambda x: x @ x.t(), "all"),
    "norm": (lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), "all"),
    "softmax": (lambda x: x.softmax(-1), "all"),
    "flat": (lambda x: x.reshape(-1).sin(), "all"),
    "view": (lambda x: x.view(x.shape[0], 1, x.shape[1]).sin(), "all"),
    "expanded": (lambda x: x.unsqueeze(1).expand(-1, 2, -1).sin(), "all"),
    "transposed": (lambda x: x.t().sin(), "all"),
    "cut": (lambda x: x.sin()[:, :2], "all"),
    "made inside": (_made_inside, "all"),
    "new": (lambda x: x.new_zeros(x.shape) + x.sin(), "all"),
    "local": (lambda x: x.sin().to_local().cos() * 2, "all"),
    "wrapped again": (
        lambda x: DTensor.from_local(x.to_local().sin(), x.device_mesh, x.placements).cos(),
        "all",
    ),
    "written": (lambda x: x.sin().add_(1).mul_(x), "all"),
    "two": (lambda x: (x.sin(), x.cos().to_local()), "all"),
    "itself": (lambda x: (x, x.sin()), "all"),
    "dropout": (lambda x: torch.nn.functional.dropout(x, 0.5), "all"),
    # The gradient of what every rank has whole is cut for this rank.
    "sum": (lambda x: x.sin().sum(), "forward"),
    "sum of rows": (lambda x: x.sin().sum(0), "forward"),
    "whole": (lambda x: x.sin().full_tensor().cos(), "forward"),
    "replicated": (_to(Replicate()), "forward"),
    "rule by local rank": (lambda x: _Turned.apply(x.sin()), "forward"),
    "columns": (_to(Shard(1)), "nothing"),
    "looked up": (_looked_up, "nothing"),
    "by coordinate": (_by_coordinate, "nothing"),
    "by coordinate through torch": (_by_coordinate_through_torch, "nothing"),
    "by local rank": (_by_local_rank, "nothing"),
    "by rank": (_by_rank, "nothing"),
    "by offset": (_by_offset, "nothing"),
    "viewed": (lambda x: (x.t(), x.sin()), "nothing"),
}

PLACEMENTS = {
    "rows": (Shard(0),),
    "columns": (Shard(1),),
    "whole": (Replicate(),),
    "parts": (Partial(),),
}


def plain(value: torch.Tensor) -> torch.Tensor:
    """What this rank has of a tensor."""
    return value.to_local() if isinstance(value, DTensor) else value


def derivatives(function: Any, x: DTensor, order: int) -> list[torch.Tensor]:
    """The values and what the orders up to this one give."""
    x = x.detach().requires_grad_(order > 0)
    torch.manual_seed(7)
    found = function(x)
    found = list(found) if isinstance(found, tuple) else [found]
    graded = [each for each in found if each.requires_grad]
    if order == 0 or not graded:
        return found
    loss = torch.stack([plain(each).square().sum() for each in graded]).sum()
    (gradient,) = torch.autograd.grad(loss, x, create_graph=order == 2)
    found.append(gradient)
    if order == 2:
        found += torch.autograd.grad(plain(gradient).square().sum(), x)
    return found


def looks(values: list[torch.Tensor]) -> list[Any]:
    """What can be seen of tensors beside their numbers."""
    found = []
    for each in values:
        spec = each._spec if isinstance(each, DTensor) else None
        shared = () if spec is None else (spec.placements, spec.mesh, spec.shard_order)
        local = plain(each)
        sizes = (each.shape, each.stride(), local.shape, local.stride())
        found.append((type(each), each.dtype, each.requires_grad, *sizes, *shared))
    return found
