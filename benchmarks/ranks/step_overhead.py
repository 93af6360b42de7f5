"""What a step on two ranks costs: compiled against eager DDP, and against one rank alone.

    python benchmarks/ranks/step_overhead.py
    python benchmarks/ranks/step_overhead.py --width 1024 --batch 64  # where arithmetic is all
    python benchmarks/ranks/step_overhead.py --processor  # processor time, which no neighbour takes

Each rank has half of a batch. Alone is the same compiled module on half of a batch without DDP, in
the same processes at the same time, so what differs is what many ranks cost.

A step takes milliseconds, and two ranks that share a machine wait for one another and for whoever
else it serves. So the ways take turns of a few steps, and a way is compared with eager DDP round by
round: what a neighbour slows, it slows in both. Printed are the median of these ratios and their
quartiles, of all rounds of some pairs of processes, and what the median was in each pair: threads
and memory lie elsewhere in another pair, which no number of rounds evens out.
"""

import gc
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from reduction_overlap import WAYS, Inside, loss_of, make_model
from two_ranks import in_a_group, results_of

import funcaot

WARM = 5  # rounds; the reducer arranges its buckets after the first


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


def measure(given: Any, order: int, inside: bool) -> dict[str, list[float]]:
    """Seconds of a step in each round, way by way; all ranks start each turn together."""
    steps = steps_of(given, order, inside)
    clock = time.process_time if given.processor else time.perf_counter
    for _ in range(WARM):
        for step in steps.values():
            step()
    found: dict[str, list[float]] = {name: [] for name in steps}
    turns = list(steps.items())
    gc.collect()
    for _ in range(given.rounds):
        turns.append(turns.pop(0))  # nobody always goes first
        for name, step in turns:
            dist.barrier()
            step()  # its data are then where it wants them, whatever ran before
            start = clock()
            for _ in range(given.steps):
                step()
            found[name].append((clock() - start) / given.steps)
    return found


def work(rank: int, store: str, given: Any, results: Any) -> None:
    torch.manual_seed(rank)
    with in_a_group(rank, store):
        for order in given.orders:
            for inside in (False, True):
                times = measure(given, order, inside)
                if rank == 0:
                    results.put((order, inside, times))


def ratios(pair: dict[str, list[float]], name: str, other: str) -> list[float]:
    """One way's time by another's, round by round."""
    return [each / beside for each, beside in zip(pair[name], pair[other], strict=True)]


def show(order: int, inside: bool, pairs: list[dict[str, list[float]]]) -> None:
    """A line for each way; ``pairs`` has what each pair of processes measured."""
    where = f"order {order}, loss {'inside' if inside else 'outside'}"
    for name in pairs[0]:
        times = [time for pair in pairs for time in pair[name]]
        of_eager = [each for pair in pairs for each in ratios(pair, name, "eager")]
        of_alone = [each for pair in pairs for each in ratios(pair, name, "alone, compiled")]
        low, middle, high = statistics.quantiles(of_eager, n=4)
        medians = [statistics.median(ratios(pair, name, "eager")) for pair in pairs]
        print(
            f"{where}, {name}: {1e3 * statistics.median(times):.2f} ms, "
            f"{middle:.2f} of eager DDP (quartiles {low:.2f} to {high:.2f}; by pairs "
            f"{', '.join(f'{each:.2f}' for each in medians)}), "
            f"{statistics.median(of_alone):.2f} of one rank alone",
            flush=True,
        )


def main() -> None:
    from common import parser_of, progress

    parser = parser_of(__doc__)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--depth", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32, help="of each rank")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--steps", type=int, default=4, help="in each turn of a way")
    parser.add_argument("--pairs", type=int, default=3, help="of processes, one after another")
    parser.add_argument("--processor", action="store_true", help="count processor time")
    parser.add_argument("--orders", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.orders, given.pairs = 2, [1], 1
    found: dict[tuple[int, bool], list[dict[str, list[float]]]] = {}
    for pair in range(given.pairs):
        progress(f"two ranks, pair {pair + 1} of {given.pairs}")
        for order, inside, times in results_of(work, given, 2 * len(given.orders)):
            found.setdefault((order, inside), []).append(times)
    for (order, inside), pairs in found.items():
        show(order, inside, pairs)


if __name__ == "__main__":
    main()
