"""Second derivatives of attention: memory and time beside torch's MATH kernel.

One measurement is forward, gradient and the gradient of its square, of one attention on one
thread. Memory is the most that it adds to a process of its own; times are of the processor, the
best of some rounds in turns. The
bytes that a first-order step keeps are read off autograd's graph, with funcaot's rules and
without.

    python benchmarks/attention.py [--quick]
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import (
    Clock,
    Target,
    environment_of,
    parser_of,
    print_table,
    print_targets,
    progress,
    write_json,
)
from residuals import kept_by_eager, kept_by_node
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import funcaot

HEADS, FEATURES = 4, 64
LENGTHS = (1024, 2048, 4096)
TIMED = 2048  # longer ones take minutes with MATH
WAYS = ("MATH kernel", "funcaot.install()", "funcaot.compile")
ROUNDS = 3


def operands_of(length: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, length, FEATURES)
    return [torch.randn(shape, generator=generator).requires_grad_() for _ in range(3)]


def plain(*operands: torch.Tensor) -> torch.Tensor:
    return scaled_dot_product_attention(*operands)


def surroundings(way: str) -> contextlib.AbstractContextManager[object]:
    if way == WAYS[0]:
        return sdpa_kernel(SDPBackend.MATH)
    return funcaot.install() if way == WAYS[1] else contextlib.nullcontext()


def step_of(way: str, length: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    """Forward, gradients, and the gradients of their squares."""
    operands = operands_of(length)
    function = funcaot.compile(plain) if way == WAYS[2] else plain

    def run() -> tuple[torch.Tensor, ...]:
        value = function(*operands).sin().sum()
        grads = torch.autograd.grad(value, operands, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in grads), operands)

    return run


def resident(name: str) -> int:
    """This process's memory in kilobytes: of now (``VmRSS``), or the most there was (``VmHWM``)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


def print_memory(way: str, length: int) -> None:
    """Print the megabytes that a run adds at most, after a small one that loads what is needed."""
    with surroundings(way):
        step_of(way, 64)()
        run = step_of(way, length)
        if way == WAYS[2]:
            run()  # compiles; what that allocates isn't counted
        gc.collect()
        before = resident("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")  # forgets the most there was
        run()
    print((resident("VmHWM") - before) / 1024)


def memory_of(way: str, length: int) -> float:
    command = [sys.executable, __file__, "--memory", way, str(length)]
    # Memory that is free goes back to the system at once, so that what is there is what is used.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    found = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout
    return float(found.splitlines()[-1])


def seconds_of(length: int, rounds: int) -> dict[str, float]:
    """CPU seconds of each way, the best of rounds in turns; their results are compared first."""
    steps = {way: step_of(way, length) for way in WAYS}
    found: dict[str, tuple[torch.Tensor, ...]] = {}
    for way, run in steps.items():
        with surroundings(way):
            found[way] = run()
    for way in WAYS[1:]:
        for one, other in zip(found[way], found[WAYS[0]], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    best = dict.fromkeys(WAYS, float("inf"))
    for _, (way, run) in itertools.product(range(rounds), steps.items()):
        with surroundings(way):
            start = time.process_time()
            run()
            best[way] = min(best[way], time.process_time() - start)
    return best


def kept_bytes(length: int) -> dict[str, int]:
    """What a first-order forward keeps for its backward, operands left out."""
    operands = operands_of(length)

    def run() -> torch.Tensor:
        return plain(*operands)

    kept = {"eager": kept_by_eager(run, operands)}
    with funcaot.install():
        kept["funcaot.install()"] = kept_by_eager(run, operands)
    compiled = funcaot.compile(plain)
    kept["funcaot.compile"] = kept_by_node(lambda: compiled(*operands), operands)
    return kept


def targets_of(
    seconds: dict[int, dict[str, float]],
    megabytes: dict[int, dict[str, float]],
    kept: dict[str, int],
) -> list[Target]:
    math, *ours = WAYS
    found = [
        Target(f"{length} tokens, seconds, {way}", math, times[way] / times[math], limit)
        for length, times in seconds.items()
        for way in ours
        if (limit := 1.2 if length == 1024 else 1.0 if length >= 2048 else None)
    ]
    for way in ours:
        if 4096 in megabytes:
            ratio = megabytes[4096][way] / megabytes[4096][math]
            found.append(Target(f"4096 tokens, memory, {way}", math, ratio, 0.25))
        found.append(
            Target(f"bytes of a first-order step, {way}", "eager", kept[way] / kept["eager"], 1.0)
        )
    return found


def rows_of(by_length: dict[int, dict[str, float]], digits: int) -> list[list[str]]:
    math, *ours = WAYS
    return [
        [
            str(length),
            *(f"{made[way]:.{digits}f}" for way in WAYS),
            *(f"{made[way] / made[math]:.2f}" for way in ours),
        ]
        for length, made in by_length.items()
    ]


def measure(lengths: Sequence[int], rounds: int, clock: Clock) -> dict[str, Any]:
    seconds: dict[int, dict[str, float]] = {}
    megabytes: dict[int, dict[str, float]] = {}
    for length in lengths:
        if clock.is_over(f"{length} tokens"):
            break
        progress(f"{length} tokens")
        megabytes[length] = {way: memory_of(way, length) for way in WAYS}
        if length <= TIMED:
            seconds[length] = seconds_of(length, rounds)
    head = ["tokens", *WAYS, *(f"{way} / MATH" for way in WAYS[1:])]
    print_table("MB that a second order adds at most", head, rows_of(megabytes, 0))
    print_table("CPU seconds of a second order", head, rows_of(seconds, 3))
    kept = kept_bytes(1024)
    print_table("Bytes kept by a first order, 1024 tokens", ["", "bytes"],
                [[way, str(size)] for way, size in kept.items()])  # fmt: skip
    targets = print_targets(targets_of(seconds, megabytes, kept))
    return {"seconds": seconds, "megabytes": megabytes, "kept": kept, "targets": targets}


def main() -> None:
    if sys.argv[1:2] == ["--memory"]:
        torch.set_num_threads(1)
        print_memory(sys.argv[2], int(sys.argv[3]))
        return
    options = parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    lengths, rounds = (LENGTHS[:1], 1) if options.quick else (LENGTHS, ROUNDS)
    content = measure(lengths, rounds, Clock(options.minutes))
    write_json("attention", {"environment": environment_of(), **content, "failures": {}})


if __name__ == "__main__":
    main()
