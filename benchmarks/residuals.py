"""Bytes that a forward keeps for its backward: eager, torch.compile and funcaot's policies.

Counted are distinct storages that autograd holds and that aren't an input, a parameter, a buffer
or the output; what each forward holds is read off its autograd graph, not estimated.

    python benchmarks/residuals.py [--backend eager|inductor]
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
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
from models import models
from torch import nn

import funcaot

POLICIES = ("balanced", "memory", "save_all")
COLUMNS = ("eager", "torch.compile", *POLICIES)
# All three models have pointwise chains, where a quarter less was aimed at.
AIMS = (("balanced", 1.0), ("memory", 0.75))


def distinct_bytes(tensors: Iterable[torch.Tensor], there_anyway: Sequence[torch.Tensor]) -> int:
    """Bytes of the storages behind tensors, but for those behind ``there_anyway``."""
    known = {tensor.untyped_storage().data_ptr() for tensor in there_anyway}
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(size for pointer, size in sizes.items() if pointer not in known)


def kept_by_eager(run: Callable[[], torch.Tensor], there: Sequence[torch.Tensor]) -> int:
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
    return distinct_bytes(saved, [*there, loss])


def kept_by_node(run: Callable[[], torch.Tensor], there: Sequence[torch.Tensor]) -> int:
    """Bytes held by the one autograd node that a compiled function makes."""
    loss = run()
    node: Any = loss.grad_fn
    return distinct_bytes(node.saved_tensors, [*there, loss])


def gradient_error(
    model: nn.Module, compiled: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> float:
    """Largest difference of the parameters' gradients from eager's, for the same seed."""
    found = []
    for run in (model, compiled):
        torch.manual_seed(1)
        found.append(torch.autograd.grad(run(*inputs), list(model.parameters())))
    return max((a - b).abs().max().item() for a, b in zip(*found, strict=True))


def kept_by_theirs(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> int:
    theirs = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(theirs)
    return kept_by_node(
        lambda: compiled(*inputs), [*theirs.parameters(), *theirs.buffers(), *inputs]
    )


def measure(
    model: nn.Module, inputs: tuple[torch.Tensor, ...], backend: str, failures: Failures
) -> dict[str, Any]:
    """Bytes that each contestant keeps; those that fail are left out."""
    there = [*model.parameters(), *model.buffers(), *inputs]
    row: dict[str, Any] = {"eager": kept_by_eager(lambda: model(*inputs), there)}
    row["torch.compile"] = failures.attempt("torch.compile", kept_by_theirs, model, inputs)
    for policy in POLICIES:
        ours = funcaot.compile(model, backend=backend, policy=policy)
        row[policy] = failures.attempt(policy, kept_by_node, lambda f=ours: f(*inputs), there)
        if row[policy] is not None and backend == "eager":
            row[f"{policy}: gradient error"] = gradient_error(model, ours, inputs)
    return {name: value for name, value in row.items() if value is not None}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--backend", default="eager", choices=("eager", "inductor"))
    options = parser.parse_args()
    chosen = models()
    if options.quick:
        chosen = {name: case for name, case in chosen.items() if name.startswith("MLP")}
    made, failures = [], Failures()
    for name, case in chosen.items():
        progress(name)
        made.append({"model": name, **measure(*case, options.backend, failures)})
    rows = [[row["model"], *(kilobytes(row, column) for column in COLUMNS)] for row in made]
    print_table("kB kept for the backward", ["model", *COLUMNS], rows)
    targets = [
        Target(f"{row['model']}, {policy}", "torch.compile", row[policy] / theirs, limit)
        for row in made
        for policy, limit in AIMS
        if policy in row and (theirs := row.get("torch.compile"))
    ]
    content = {
        "environment": environment_of(),
        "rows": made,
        "failures": failures.messages,
        "targets": print_targets(targets),
    }
    write_json("residuals", content)


def kilobytes(row: dict[str, Any], column: str) -> str:
    return f"{row[column] / 1e3:.1f}" if column in row else ""


if __name__ == "__main__":
    main()
