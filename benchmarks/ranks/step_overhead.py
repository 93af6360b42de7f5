"""What a step on two ranks costs: compiled against eager DDP, and against one rank alone.

    python benchmarks/ranks/step_overhead.py
    python benchmarks/ranks/step_overhead.py --width 1024 --batch 64  # where arithmetic is all
    python benchmarks/ranks/step_overhead.py --processor  # processor time, which no neighbour takes

Each rank has half of a batch. Alone is the same compiled module on half of a batch without DDP, in
the same processes at the same time, so what differs is what many ranks cost. The ways take turns.
"""

import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from reduction_overlap import WAYS, Inside, loss_of, make_model
from two_ranks import in_a_group, results_of

import funcaot


def steps_of(given: Any, order: int, inside: bool) -> dict[str, Any]:
    """Name to a function that takes one step."""
    wrap = {name: lambda module, way=way: way(module, {}) for name, way in WAYS.items()}
    wrap["alone, eager"], wrap["alone, compiled"] = (lambda module: module), funcaot.compile
    x = torch.randn(given.batch, given.width)
    steps = {}
    for name, made in wrap.items():
        model = make_model(given.width, given.depth)
        model = made(Inside(model, order) if inside else model)
        optimizer = torch.optim.SGD(model.parameters(), 1e-4)

        def step(model: Any = model, optimizer: Any = optimizer) -> None:
            (model(x) if inside else loss_of(model, x, order)).backward()
            optimizer.step()
            optimizer.zero_grad()

        steps[name] = step
    return steps


def measure(given: Any, order: int, inside: bool) -> dict[str, float]:
    """Median seconds of a step; all ranks start each round together."""
    steps = steps_of(given, order, inside)
    clock = time.process_time if given.processor else time.perf_counter
    found: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(given.rounds + 2):
        for name, step in steps.items():
            if round_ < 2:
                step()
                continue
            dist.barrier()
            start = clock()
            for _ in range(given.steps):
                step()
            found[name].append((clock() - start) / given.steps)
    return {name: statistics.median(times) for name, times in found.items()}


def work(rank: int, store: str, given: Any, results: Any) -> None:
    torch.manual_seed(rank)
    with in_a_group(rank, store):
        for order in given.orders:
            for inside in (False, True):
                times = measure(given, order, inside)
                if rank == 0:
                    results.put((order, inside, times))


def show(order: int, inside: bool, times: dict[str, float]) -> None:
    eager, alone = times["eager"], times["alone, compiled"]
    where = f"order {order}, loss {'inside' if inside else 'outside'}"
    for name, each in times.items():
        print(
            f"{where}, {name}: {1e3 * each:.2f} ms, {each / eager:.2f} of eager DDP, "
            f"{each / alone:.2f} of one rank alone",
            flush=True,
        )


def main() -> None:
    from common import parser_of, progress

    parser = parser_of(__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=10, help="in each round")
    parser.add_argument("--processor", action="store_true", help="count processor time")
    parser.add_argument("--orders", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.orders = 2, [1]
    progress("two ranks")
    for order, inside, times in results_of(work, given, 2 * len(given.orders)):
        show(order, inside, times)


if __name__ == "__main__":
    main()
