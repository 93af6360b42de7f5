"""How much of a slow reduction DDP hides behind a backward: compiled against eager, on two ranks.

    python benchmarks/ranks/reduction_overlap.py
    python benchmarks/ranks/reduction_overlap.py --seconds 0  # what a step costs besides

The ranks have a network that moves one bucket after another, each in 50 ms. So a step (forward,
backward and reduction) takes at least that times the buckets, and what comes before the first
bucket is ready is paid besides. The ways take turns; of a busy machine the best round says most.
"""

import queue
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import funcaot

sys.path.append(str(Path(__file__).parents[1]))
from common import parser_of, progress
from two_ranks import in_a_group, results_of


class Wire:
    """Reduces one bucket after another, in a thread, each in some seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.buckets = seconds, 0
        self._waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._move, daemon=True).start()

    def hook(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """A hook of communication; what is reduced is right."""
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self.buckets += 1
        mean = bucket.buffer().div_(dist.get_world_size())
        self._waiting.put((future, mean, dist.all_reduce(mean, async_op=True)))
        return future

    def _move(self) -> None:
        while True:
            future, mean, work = self._waiting.get()
            time.sleep(self.seconds)
            work.wait()
            future.set_result(mean)


def make_model(width: int, depth: int) -> nn.Module:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 1))


class Inside(nn.Module):
    """A network whose forward computes the loss."""

    def __init__(self, module: nn.Module, order: int) -> None:
        super().__init__()
        self.module, self.order = module, order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return loss_of(self.module, x, self.order)


def loss_of(energy: Any, x: torch.Tensor, order: int) -> torch.Tensor:
    if order == 1:
        return energy(x).square().mean()
    x = x.detach().requires_grad_()
    found = energy(x)
    (gradient,) = torch.autograd.grad(found.sum(), x, create_graph=True)
    return gradient.square().mean() + found.square().mean()


WAYS = {
    "eager": lambda module, given: DistributedDataParallel(module, **given),
    "compile(DDP)": lambda module, given: funcaot.compile(DistributedDataParallel(module, **given)),
    "DDP(compile)": lambda module, given: DistributedDataParallel(funcaot.compile(module), **given),
}


def measure(given: Any, order: int, inside: bool) -> dict[str, Any]:
    """Seconds of a step for each way: median, best, and best without a reduction; and buckets."""
    models, wires = {}, {}
    for name, wrap in WAYS.items():
        module = make_model(given.width, given.depth)
        module = Inside(module, order) if inside else module
        model = wrap(module, {"bucket_cap_mb": given.bucket_mb})
        wires[name] = Wire(given.seconds)
        model.register_comm_hook(None, wires[name].hook)
        models[name] = model
    x = torch.randn(
        given.batch, given.width, generator=torch.Generator().manual_seed(dist.get_rank())
    )
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    for round_ in range(given.rounds + 3):
        for name, model in models.items():
            model.zero_grad()
            wires[name].buckets = 0
            dist.barrier()
            start = time.perf_counter()
            (model(x) if inside else loss_of(model, x, order)).backward()
            if round_ >= 3:
                found[name].append(time.perf_counter() - start)
    hidden = {name: [] for name in models}
    for _ in range(given.rounds):
        for name, model in models.items():
            with model.no_sync():
                start = time.perf_counter()
                (model(x) if inside else loss_of(model, x, order)).backward()
                hidden[name].append(time.perf_counter() - start)
    return {
        name: (
            *(statistics.median(found[name]), min(found[name]), min(hidden[name])),
            wires[name].buckets,
        )
        for name in WAYS
    }


def work(rank: int, store: str, given: Any, results: Any) -> None:
    with in_a_group(rank, store):
        for order, inside in rows_of(given):
            made = measure(given, order, inside)
            if rank == 0:
                results.put((order, inside, made))


def rows_of(given: Any) -> list[tuple[int, bool]]:
    """Orders, and whether the loss is computed inside: at first order that is the same."""
    return [(order, inside) for order in given.orders for inside in (False, True)[:order]]


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--seconds", type=float, default=0.05, help="for each bucket")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--bucket-mb", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--orders", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.orders = 3, [1]
    progress(f"two ranks, {given.seconds} s a bucket")
    for order, inside, made in results_of(work, given, len(rows_of(given))):
        show(f"order {order}, loss {'inside' if inside else 'outside'}", made)


def show(row: str, made: dict[str, Any]) -> None:
    median, best, *_ = made["eager"]
    for name, (each, least, alone, buckets) in made.items():
        print(
            f"{row}, {name}: median {1e3 * each:5.0f} ms, {each / median:.2f} of eager; "
            f"best {1e3 * least:5.0f} ms, {least / best:.2f}; {buckets} buckets; "
            f"without a reduction {1e3 * alone:5.0f} ms",
            flush=True,
        )


if __name__ == "__main__":
    main()
