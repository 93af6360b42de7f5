"""What a call costs beside its arithmetic: tiny tensors, so that the time is all overhead.

python benchmarks/call_overhead.py [--calls 300] [--rounds 7]
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

import funcaot

COMPILERS: dict[str, Callable[[Callable], Callable]] = {
    "eager": lambda function: function,
    "torch.compile": torch.compile,
    "funcaot": funcaot.compile,
}
TENSORS = (1, 100)


def add_all(*tensors: torch.Tensor) -> torch.Tensor:
    """A product with every tensor, one operation each."""
    total = tensors[0] * 2.0
    for tensor in tensors[1:]:
        total = total + tensor * 2.0
    return total


def without_grad(function: Callable, tensors: list[torch.Tensor]) -> None:
    """A call under ``no_grad``."""
    with torch.no_grad():
        function(*tensors)


def forward(function: Callable, tensors: list[torch.Tensor]) -> None:
    """A call that autograd records."""
    function(*tensors)


def forward_and_backward(function: Callable, tensors: list[torch.Tensor]) -> None:
    """A call and its gradient."""
    torch.autograd.grad(function(*tensors).sum(), tensors)


SITUATIONS = {
    "no grad": without_grad,
    "forward": forward,
    "forward and backward": forward_and_backward,
}


def microseconds(run: Callable[[], None], calls: int, rounds: int) -> float:
    """The best of ``rounds`` means over ``calls``: what else runs only ever adds."""
    run()
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(calls):
            run()
        best = min(best, (time.perf_counter() - started) / calls)
    return best * 1e6


def measure(count: int, calls: int, rounds: int) -> Table:
    """One table: situations down, compilers across."""
    table = Table("microseconds a call", *COMPILERS, title=f"{count} tensor(s) of 8 elements")
    tensors = [torch.ones(8, requires_grad=True) for _ in range(count)]
    functions = [compiler(add_all) for compiler in COMPILERS.values()]
    for name, situation in SITUATIONS.items():
        runs = [functools.partial(situation, function, tensors) for function in functions]
        times = [microseconds(run, calls, rounds) for run in runs]
        table.add_row(name, *(f"{value:.1f}" for value in times))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for count in TENSORS:
        Console(highlight=False).print(measure(count, arguments.calls, arguments.rounds))


if __name__ == "__main__":
    main()
