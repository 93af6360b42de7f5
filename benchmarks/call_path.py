"""What a call costs beside its arithmetic, on tensors so small that nothing else counts.

CPU time, one thread, everything in one process, the contestants in turns so that whatever else the
machine does hits all of them. Run ``python benchmarks/call_path.py``.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import (
    Failures,
    Target,
    environment_of,
    parser_of,
    print_table,
    print_targets,
    progress,
    write_json,
)
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

import funcaot

KINDS = ("no grad", "forward", "forward + backward")
WHOS = ("eager", "torch.compile", "funcaot", "jax.jit")
# Case, call, and how much of whose time was aimed at.
AIMS = (
    ("1 tensor", "no grad", "torch.compile", 1 / 5),
    ("1 tensor", "no grad", "jax.jit", 1.0),
    ("1 tensor", "forward + backward", "torch.compile", 1 / 2.5),
    *(("100 tensors", kind, "torch.compile", 0.8) for kind in KINDS),
    *((case, kind, "torch.compile", 1.5) for case in ("1 DTensor", "1 jagged") for kind in KINDS),
)


def product(x, *factors):
    """One multiplication per further tensor."""
    for factor in factors:
        x = x * factor
    return x


def wave(x):
    return x.sin().cos()


class Layers(nn.Module):
    """Fifty small layers: what a call of a module has to look at."""

    def __init__(self, count: int = 50, width: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(count))

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


def cases() -> dict[str, tuple[Any, tuple[torch.Tensor, ...], list[torch.Tensor]]]:
    """Name to function, arguments, and what to differentiate."""
    torch.manual_seed(0)
    x = torch.randn(8, requires_grad=True)
    many = tuple(torch.randn(4, requires_grad=True) for _ in range(100))
    module = Layers()
    if not dist.is_initialized():
        dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    placed = distribute_tensor(torch.randn(8), init_device_mesh("cpu", (1,)), [Replicate()])
    placed.requires_grad_()
    rows = [torch.randn(3), torch.randn(5)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    return {
        "1 tensor": (wave, (x,), [x]),
        "100 tensors": (product, many, list(many)),
        "50 layers": (module, (torch.randn(4, 4),), list(module.parameters())),
        "1 DTensor": (wave, (placed,), [placed]),
        "1 jagged": (wave, (jagged,), [jagged]),
    }


COMPILERS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda function: function,
    "torch.compile": torch.compile,
    "funcaot": funcaot.compile,
}


def calls_of(
    function: Any, arguments: tuple[torch.Tensor, ...], wanted: list[torch.Tensor]
) -> dict[str, Callable[[], Any]]:
    def plain() -> Any:
        """The result, or a jagged one's values: torch takes gradients of these only."""
        result = function(*arguments)
        return result.values() if result.is_nested else result

    result = plain()
    tangent = torch.ones_like(result).detach()

    def without_grad() -> Any:
        return function(*arguments)

    def forward_and_backward() -> Any:
        return torch.autograd.grad(plain(), wanted, tangent)

    return dict(zip(KINDS, (without_grad, without_grad, forward_and_backward), strict=True))


def jax_calls(name: str) -> dict[str, Callable[[], Any]]:
    """The same under ``jax.jit``; nothing if JAX isn't installed or has no such tensors."""
    if name.startswith(("1 DTensor", "1 jagged")):
        return {}
    try:
        import jax
        import jax.numpy as jnp
    except ImportError:
        return {}
    if name == "50 layers":
        weights = [(jnp.ones((4, 4)) / 4, jnp.zeros(4)) for _ in range(50)]

        def network(weights, x):
            for weight, bias in weights:
                x = jax.nn.relu(x @ weight + bias)
            return x

        arguments: tuple[Any, ...] = (weights, jnp.ones((4, 4)))
        function: Any = network
        argnums: Any = 0
    elif name == "1 tensor":
        arguments, argnums = (jnp.ones(8),), 0

        def function(x):
            return jnp.cos(jnp.sin(x))
    else:
        arguments, argnums = tuple(jnp.ones(4) for _ in range(100)), tuple(range(100))
        function = product
    call = jax.jit(function)
    pull = jax.jit(jax.value_and_grad(lambda *a: function(*a).sum(), argnums))
    return {
        "no grad": lambda: jax.block_until_ready(call(*arguments)),
        "forward + backward": lambda: jax.block_until_ready(pull(*arguments)),
    }


def measure(calls: dict[str, Callable[[], Any]], rounds: int, seconds: float) -> dict[str, float]:
    """Median microseconds of CPU time per call, in turns."""
    counts: dict[str, int] = {}
    for name, call in calls.items():
        for _ in range(20):
            call()
        start = time.process_time()
        for _ in range(10):
            call()
        each = max((time.process_time() - start) / 10, 1e-7)
        counts[name] = max(5, int(seconds / rounds / each))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = counts[name]
            start = time.process_time()
            for _ in range(count):
                call()
            samples[name].append((time.process_time() - start) / count * 1e6)
    return {name: statistics.median(values) for name, values in samples.items()}


def run(rounds: int, seconds: float, only: int | None, failures: Failures) -> dict[str, Any]:
    """Case to call to contestant to microseconds."""
    results: dict[str, Any] = {}
    for name, (function, arguments, wanted) in list(cases().items())[:only]:
        progress(name)
        calls = {
            who: failures.attempt(f"{who}, {name}", ready, wrap, function, arguments, wanted) or {}
            for who, wrap in COMPILERS.items()
        }
        calls["jax.jit"] = failures.attempt(f"jax.jit, {name}", jax_calls, name) or {}
        results[name] = {}
        for kind in KINDS:
            turns = {who: by_kind[kind] for who, by_kind in calls.items() if kind in by_kind}
            with torch.set_grad_enabled(kind != "no grad"):
                results[name][kind] = measure(turns, rounds, seconds)
    return results


def ready(
    wrap: Callable[[Any], Any],
    function: Any,
    arguments: tuple[torch.Tensor, ...],
    wanted: list[torch.Tensor],
) -> dict[str, Callable[[], Any]]:
    """The calls, after everything has been compiled."""
    calls = calls_of(wrap(function), arguments, wanted)
    for kind, call in calls.items():
        with torch.set_grad_enabled(kind != "no grad"):
            call()
    return calls


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.6, help="per contestant and case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])  # one thread for JAX too
    if options.quick:
        options.rounds, options.seconds = 2, 0.05
    failures = Failures()
    results = run(options.rounds, options.seconds, 1 if options.quick else None, failures)
    rows = [
        [name, kind, *(f"{times[who]:.1f}" if who in times else "" for who in WHOS)]
        + [f"{times[who] / times['funcaot']:.1f}" if who in times else "" for who in WHOS[1::2]]
        for name, kinds in results.items()
        for kind, times in kinds.items()
        if "funcaot" in times
    ]
    head = ["case", "call", *WHOS, *(f"{who} / funcaot" for who in WHOS[1::2])]
    print_table("CPU microseconds per call", head, rows)
    targets = [
        Target(f"{case}, {kind}", other, times["funcaot"] / times[other], limit)
        for case, kind, other, limit in AIMS
        if {other, "funcaot"} <= set(times := results.get(case, {}).get(kind, {}))
    ]
    content = {
        "environment": environment_of(),
        "microseconds": results,
        "failures": failures.messages,
        "targets": print_targets(targets),
    }
    write_json("call_path", content)


if __name__ == "__main__":
    main()
