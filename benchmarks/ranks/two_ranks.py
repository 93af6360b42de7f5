"""Processes that are the ranks of a group; the benchmarks beside this file run in them."""

import contextlib
import multiprocessing
import os
import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

LIMIT = 600  # seconds for everything


@contextlib.contextmanager
def in_a_group(rank: int, store: str, ranks: int = 2) -> Iterator[None]:
    """Make this process one of the ranks; they leave together."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    made, wait = f"file://{store}", timedelta(seconds=LIMIT)
    dist.init_process_group("gloo", init_method=made, rank=rank, world_size=ranks, timeout=wait)
    yield
    dist.barrier()
    dist.destroy_process_group()


def results_of(work: Callable[..., None], given: Any, count: int, ranks: int = 2) -> Iterator[Any]:
    """What the ranks put into their queue.

    Args:
        work: Run in each, with the rank, the path of the store, ``given`` and the queue.
        given: The arguments of the benchmark.
        count: How many results there are.
        ranks: How many processes.
    """
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as directory:
        processes = [
            context.Process(target=work, args=(rank, f"{directory}/s", given, results), daemon=True)
            for rank in range(ranks)
        ]
        for process in processes:
            process.start()
        try:
            for _ in range(count):
                yield _next_of(results, processes)
            for process in processes:
                process.join(timeout=30)
        finally:
            for process in processes:
                process.kill()


def _next_of(results: Any, ranks: list[Any]) -> Any:
    """The next result; an error if a rank has ended before, or time is up."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        try:
            return results.get(timeout=1)
        except queue.Empty:
            if any(rank.exitcode for rank in ranks):
                break
    raise SystemExit("a rank failed, or time is up")
