"""Force matching on several ranks: by DDP, or with parameters that each rank keeps a part of.

    torchrun --nproc-per-node 2 examples/distributed_forces.py sharded

The ranks share one batch, so a run on 1, 2 or 4 of them prints the same losses.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import nn

import funcaot
from funcaot.distributed import shard


def make_energy(width: int) -> nn.Module:
    """An energy per atom, of its position."""
    torch.manual_seed(0)
    layers = (nn.Linear(3, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
    return nn.Sequential(*layers, nn.Linear(width, 1)).double()


def batch(step: int, rank: int, ranks: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's share of the positions of a step, and their forces in a harmonic well."""
    made = torch.Generator().manual_seed(step)
    x = torch.randn(size, 3, generator=made, dtype=torch.float64)[rank::ranks]
    return x, -2 * x


def train(layout: str, backend: str, steps: int, size: int, width: int) -> list[float]:
    """Match forces; prints losses, throughput and the bytes that this rank keeps.

    Returns:
        The loss at each step, over all ranks.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model = make_energy(width)
    if layout == "ddp":
        parallel = nn.parallel.DistributedDataParallel(model)
        energy = funcaot.compile(parallel, backend=backend)
    else:
        energy = model = shard(model)

    def loss_of(x: torch.Tensor, forces: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        total = energy(x).sum()
        (gradient,) = torch.autograd.grad(total, x, create_graph=True)
        # The last bias moves no force; DDP waits for a gradient of each parameter.
        return ((-gradient - forces) ** 2).mean() + 0 * total

    compute = loss_of if layout == "ddp" else funcaot.compile(loss_of, backend=backend)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    losses, start = [], time.perf_counter()
    for step in range(steps):
        if step == 3:  # What comes before compiles.
            start = time.perf_counter()
        loss = compute(*batch(step, rank, ranks, size))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach() / ranks
        dist.all_reduce(mean)
        losses.append(mean.item())
    seconds = time.perf_counter() - start
    if rank == 0:
        kept = bytes_kept(model, optimizer)
        rate = max(steps - 3, 1) * size / seconds
        print(f"{layout} on {ranks} rank(s): loss {losses[0]:.6f} to {losses[-1]:.6f}, "
              f"{rate:.0f} atoms/s, {kept} bytes a rank")  # fmt: skip
    return losses


def bytes_kept(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Bytes of parameters, gradients and the optimizer's state on this rank."""
    parameters = list(model.parameters())
    tensors = [*parameters, *(p.grad for p in parameters)]
    tensors += [value for state in optimizer.state.values() for value in state.values()]
    local = [t.to_local() if hasattr(t, "to_local") else t for t in tensors if t is not None]
    return sum(tensor.numel() * tensor.element_size() for tensor in local)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layout", choices=["ddp", "sharded"])
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--width", type=int, default=32)
    given = parser.parse_args()
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    try:
        losses = train(given.layout, given.backend, given.steps, given.size, given.width)
        if dist.get_rank() == 0 and os.environ.get("PRINT_LOSSES"):
            print(*losses)
        dist.barrier()  # No rank leaves while another still talks to it.
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
