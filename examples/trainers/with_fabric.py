"""Force matching with Lightning Fabric, whose strategies wrap a compiled module.

torchrun --nproc-per-node 2 examples/trainers/with_fabric.py
"""

import argparse
import os

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies import DDPStrategy
from torch import nn

import funcaot


class Energy(nn.Module):
    """The loss of a batch is inside, since DDP wants to see what a loss is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.SiLU(), nn.Linear(16, 1, bias=False))

    def forward(self, x: torch.Tensor, forces: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(self.layers(x).sum(), x, create_graph=True)
        return ((-gradient - forces) ** 2).mean()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", default="inductor", help="eager compiles nothing")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--plain", action="store_true", help="don't compile, to compare")
    args = parser.parse_args()
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    strategy = DDPStrategy() if ranks > 1 else "auto"
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    torch.manual_seed(0)
    module = Energy()
    model = module if args.plain else funcaot.compile(module, backend=args.backend)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model, optimizer = fabric.setup(model, optimizer)
    for step in range(args.steps):
        made = torch.Generator().manual_seed(10 * step + fabric.global_rank)
        x = torch.randn(8, 3, generator=made)
        loss = model(x, -2 * x)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
        fabric.print(f"step {step}: loss {fabric.all_reduce(loss.detach()).item():.6f}")
    del loss, model, optimizer  # DDP's reducer may wait for ever if it is freed after its group.
    fabric.barrier()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()  # Its threads would abort the process.


if __name__ == "__main__":
    main()
