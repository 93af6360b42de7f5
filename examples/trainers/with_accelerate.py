"""Force matching with Accelerate, which wraps a compiled module by DDP, or has it compiled.

torchrun --nproc-per-node 2 examples/trainers/with_accelerate.py --by-name
"""

import argparse

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import funcaot
from funcaot.dynamo import add_to_accelerate


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
    parser.add_argument("--by-name", action="store_true", help="let Accelerate call torch.compile")
    args = parser.parse_args()
    add_to_accelerate()
    accelerator = Accelerator(cpu=True, dynamo_backend="funcaot" if args.by_name else None)
    torch.manual_seed(0)
    x = torch.randn(16 * args.steps, 3)
    data = DataLoader(TensorDataset(x, -2 * x), batch_size=8)
    module = Energy()
    model = module if args.plain or args.by_name else funcaot.compile(module, backend=args.backend)
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for step, (positions, forces) in zip(range(args.steps), data, strict=False):
        loss = model(positions, forces)
        optimizer.zero_grad()
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        mean = accelerator.reduce(loss.detach(), "mean").item()
        accelerator.print(f"step {step}: loss {mean:.6f}")
    del loss, model, optimizer
    accelerator.free_memory()  # DDP's reducer may wait for ever if it is freed after its group.
    accelerator.end_training()


if __name__ == "__main__":
    main()
