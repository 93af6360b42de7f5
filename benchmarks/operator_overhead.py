"""What the operator costs: ``funcaot.Function.apply`` against ``torch.autograd.Function.apply``.

Run ``python benchmarks/operator.py``. Each row is one way to call the same small Function
through both; the two are measured in turns, and the ratio of the best times is printed. Below one,
funcaot is faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from common import Failures, environment_of, parser_of, print_table, write_json
from torch.func import grad, jvp, vmap

import funcaot


def define(base: type) -> type:
    """The same Function on either base class."""

    class Scale(base):
        generate_vmap_rule = True

        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.save_for_forward(*inputs)

        @staticmethod
        def backward(ctx, cotangent):
            x, y = ctx.saved_tensors
            return cotangent * y, cotangent * x

        @staticmethod
        def jvp(ctx, x_tangent, y_tangent):
            x, y = ctx.saved_tensors
            return x_tangent * y + x * y_tangent

    return Scale


X, Y = torch.rand(8), torch.rand(8)
XS, YS = torch.rand(4, 8), torch.rand(4, 8)


def forward_only(function: type) -> Callable[[], Any]:
    """No gradient is needed."""
    return lambda: function.apply(X, Y)


def forward_recorded(function: type) -> Callable[[], Any]:
    """A node is recorded, not run."""
    leaf = X.clone().requires_grad_()
    return lambda: function.apply(leaf, Y)


def forward_backward(function: type) -> Callable[[], Any]:
    """A node is recorded and run."""
    leaf = X.clone().requires_grad_()
    return lambda: torch.autograd.grad(function.apply(leaf, Y), leaf, Y)


def under_grad(function: type) -> Callable[[], Any]:
    """torch.func.grad."""
    transformed = grad(lambda x: function.apply(x, Y).sum())
    return lambda: transformed(X)


def under_grad_of_grad(function: type) -> Callable[[], Any]:
    """Two levels of torch.func.grad."""
    inner = grad(lambda x: function.apply(x, x).sum())
    transformed = grad(lambda x: inner(x).sum())
    return lambda: transformed(X)


def under_vmap(function: type) -> Callable[[], Any]:
    """torch.func.vmap with the generated rule."""
    transformed = vmap(function.apply)
    return lambda: transformed(XS, YS)


def under_vmap_of_grad(function: type) -> Callable[[], Any]:
    """Per-sample gradients."""
    transformed = vmap(grad(lambda x, y: function.apply(x, y).sum()))
    return lambda: transformed(XS, YS)


def under_jvp(function: type) -> Callable[[], Any]:
    """torch.func.jvp."""
    return lambda: jvp(function.apply, (X, Y), (Y, X))


CASES = (
    forward_only,
    forward_recorded,
    forward_backward,
    under_grad,
    under_grad_of_grad,
    under_vmap,
    under_vmap_of_grad,
    under_jvp,
)


def microseconds(call: Callable[[], Any], repeats: int) -> float:
    """Time of one call."""
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats * 1e6


def compare(case: Callable[[type], Callable[[], Any]], rounds: int) -> tuple[float, float]:
    """Times per call of torch and of funcaot: the best of rounds, since noise only adds."""
    calls = [case(define(torch.autograd.Function)), case(define(funcaot.Function))]
    for call in calls:
        microseconds(call, 20)
    repeats = max(10, int(5000 / microseconds(calls[0], 20)))
    times: list[list[float]] = [[], []]
    for _ in range(rounds):
        for kept, call in zip(times, calls, strict=True):
            kept.append(microseconds(call, repeats))
    return min(times[0]), min(times[1])


def main() -> None:
    """Print one line per case."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=100, help="measurements per case")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, dict[str, float]] = {}
    failures = Failures()
    for case in CASES:
        name = case.__name__.replace("_", " ")
        found = failures.attempt(name, compare, case, 2 if options.quick else options.rounds)
        if found is not None:
            results[name] = dict(zip(("torch", "funcaot"), found, strict=True))
    rows = [
        [name, f"{times['torch']:.2f}", f"{times['funcaot']:.2f}", f"{ratio_of(times):.2f}"]
        for name, times in results.items()
    ]
    head = ["call", "torch.autograd.Function", "funcaot.Function", "ratio"]
    print_table("Microseconds per call of a Function", head, rows)
    content = {
        "environment": environment_of(),
        "microseconds": results,
        "failures": failures.messages,
    }
    write_json("operator", content)


def ratio_of(times: dict[str, float]) -> float:
    """Funcaot's time by torch's."""
    return times["funcaot"] / times["torch"]


if __name__ == "__main__":
    main()
