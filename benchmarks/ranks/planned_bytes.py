"""Bytes that each rank sends in a step: planned for many ranks, and what a few really send.

    python benchmarks/ranks/planned_bytes.py
    python benchmarks/ranks/planned_bytes.py --width 1024 --planned 16 256 --quick

A layout is planned by the graphs that two ranks captured (`funcaot.report(step).communication`);
what DDP's reducer and the hooks of fully_shard send is no part of a graph, and comes on top by
arithmetic. Two and four ranks then run the step, and the kernel says what each has written into its
sockets. Gloo scatters by reducing the whole, so beside the plan stands what gloo makes of it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from reduction_overlap import make_model
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from two_ranks import in_a_group, results_of

import funcaot
from funcaot.distributed import shard

ORDERS = ("first", "forces", "penalty")


@dataclass(frozen=True)
class Step:
    """A step of a layout.

    Attributes:
        run: Takes the step.
        compiled: What has a report.
        gathers: How many times hooks gather all parameters.
        scatters: How many times hooks scatter all gradients.
        reduces: How many times a reducer reduces all gradients.
    """

    run: Callable[[], Any]
    compiled: Any
    gathers: int = 0
    scatters: int = 0
    reduces: int = 0


class Inside(nn.Module):
    """A network whose forward computes the loss."""

    def __init__(self, module: nn.Module, order: str) -> None:
        super().__init__()
        self.module, self.order = module, order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return loss_of(self.module, x, self.order)


def loss_of(energy: Any, x: torch.Tensor, order: str) -> torch.Tensor:
    if order == "first":
        return energy(x).square().mean()
    x = x.detach().requires_grad_()
    found = energy(x)
    (gradient,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    if order == "forces":
        return (gradient + x).square().mean() + found.square().mean()
    return (gradient.norm(dim=1) - 1).square().mean() + found.square().mean()


def by_ddp(module: nn.Module, x: torch.Tensor, order: str, compiled: Any) -> Step:
    model = compiled(nn.parallel.DistributedDataParallel(module))
    return Step(lambda: loss_of(model, x, order).backward(), model, reduces=1)


def by_shard(module: nn.Module, x: torch.Tensor, order: str, compiled: Any) -> Step:
    model = shard(module)
    loss = compiled(lambda x: loss_of(model, x, order))
    return Step(lambda: loss(x).backward(), loss)


def by_fully_shard(module: nn.Module, x: torch.Tensor, order: str, compiled: Any) -> Step:
    model = compiled(fully_shard(Inside(module, order), reshard_after_forward=True))
    return Step(lambda: model(x).backward(), model, gathers=2, scatters=1)


def by_tensors(module: nn.Module, x: torch.Tensor, order: str, compiled: Any) -> Step:
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    model = parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    loss = compiled(lambda x: loss_of(model, x, order))
    return Step(lambda: loss(x).backward(), loss)


LAYOUTS = {
    "DDP": by_ddp,
    "shard": by_shard,
    "fully_shard, loss inside": by_fully_shard,
    "parallelize_module": by_tensors,
}


def written() -> int:
    """Bytes that this process has written so far, to sockets too."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def hooked(step: Step, whole: int, ranks: int, gloo: bool = False) -> int:
    """Bytes that hooks and reducers send."""
    passes = step.gathers + (1 + gloo) * step.scatters + 2 * step.reduces
    return passes * whole * (ranks - 1) // ranks


def in_graphs(compiled: Any, ranks: int, gloo: bool = False) -> int:
    """Bytes that the graphs send."""
    report = funcaot.report(compiled)
    found = [each for graph in report.communication for each in graph.collectives]
    return sum(each.sent(ranks) * (2 if gloo and "scatter" in each.op else 1) for each in found)


def measure(given: Any, layout: str, order: str) -> dict[str, Any]:
    ranks = dist.get_world_size()
    module = make_model(given.width, given.depth)
    whole = sum(4 * math.prod(parameter.shape) for parameter in module.parameters())
    made = torch.Generator().manual_seed(dist.get_rank())
    x = torch.randn(given.batch, given.width, generator=made)
    compiled = lambda function: funcaot.compile(function, backend=given.backend)  # noqa: E731
    step = LAYOUTS[layout](module, x, order, compiled)
    for _ in range(3):  # DDP arranges its buckets after the first.
        step.run()
    dist.barrier()
    before = written()
    for _ in range(given.steps):
        step.run()
    sent = (written() - before) / given.steps
    planned = {
        n: in_graphs(step.compiled, n) + hooked(step, whole, n) for n in (2, 4, *given.planned)
    }
    gloo = {
        n: in_graphs(step.compiled, n, gloo=True) + hooked(step, whole, n, gloo=True)
        for n in (2, 4)
    }
    collectives = sum(
        len(graph.collectives) for graph in funcaot.report(step.compiled).communication
    )
    return {
        "ranks": ranks, "whole": whole, "sent": sent, "planned": planned, "gloo": gloo,
        "collectives": collectives,
    }  # fmt: skip


def work(rank: int, store: str, given: Any, results: Any) -> None:
    with in_a_group(rank, store, given.ranks):
        for layout in LAYOUTS:
            for order in given.orders:
                found = measure(given, layout, order)
                if rank == 0:
                    results.put((layout, order, found))


def show(layout: str, order: str, two: dict[str, Any], four: dict[str, Any]) -> None:
    """A row: the plan of two ranks, in units of all parameters, and what was sent."""
    unit = two["whole"]
    plans = " | ".join(f"{each / unit:.2f}" for each in two["planned"].values())
    gloo = " | ".join(f"{two['gloo'][n] / unit:.2f}" for n in (2, 4))
    sent = " | ".join(f"{each['sent'] / unit:.2f}" for each in (two, four))
    row = f"| {layout} | {order} | {two['collectives']} | {plans} | {gloo} | {sent} |"
    print(row, flush=True)


def main() -> None:
    from common import parser_of, progress

    parser = parser_of(__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--backend", default="eager", help="graphs are the same for each")
    parser.add_argument("--orders", nargs="+", default=list(ORDERS))
    parser.add_argument("--planned", type=int, nargs="+", default=[8, 64, 1024])
    given = parser.parse_args()
    if given.quick:
        given.orders, given.steps = ["forces"], 1
    found = {}
    for given.ranks in (2, 4):
        progress(f"{given.ranks} ranks")
        count = len(LAYOUTS) * len(given.orders)
        for layout, order, each in results_of(work, given, count, given.ranks):
            found[layout, order, given.ranks] = each
    head = [f"{n} ranks" for n in (2, 4, *given.planned)] + ["gloo, 2", "gloo, 4", "sent by 2"]
    print("| layout | order | collectives in graphs |", " | ".join(head), "| sent by 4 |")
    for layout in LAYOUTS:
        for order in given.orders:
            show(layout, order, found[layout, order, 2], found[layout, order, 4])


if __name__ == "__main__":
    main()
