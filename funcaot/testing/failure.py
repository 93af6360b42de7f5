"""Explain a failing case: the smallest sample that fails, the graph, how to run it again."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from funcaot._torch.tracing.make_fx import make_fx
from funcaot.testing.generator import Case, build
from funcaot.testing.records import Sample
from funcaot.testing.samples import SEED

MOST_LINES = 40


def explain(case: Case) -> str:
    """A report about a case that failed.

    Args:
        case: The failing case.

    Returns:
        A few paragraphs: what was tested, on which smallest sample it fails, the traced graph
        where it can be traced, and the seed.
    """
    smallest = smallest_failing(case)
    parts = [
        f"{case.info.name} under {case.composition.name}, {case.dtype} on {case.device}",
        f"smallest failing sample: {smallest.find_sample()!r}",
        f"graph:\n{graph_of(smallest)}",
        f"again: pytest -k {case.info.name} --funcaot-transforms={case.composition.name} "
        f"--funcaot-seed={SEED}",
    ]
    return "\n\n".join(parts)


def smallest_failing(case: Case) -> Case:
    """The case on the sample with the fewest elements that still fails."""
    samples = sorted(case.info.sample_inputs(case.device, case.dtype), key=elements)
    for sample in samples:
        trial = replace(case, sample=sample.name)
        if sample.name == case.sample or not passes(trial):
            return trial
    return case


def elements(sample: Sample) -> int:
    """How many numbers the sample's tensors hold."""
    return sum(value.numel() for value in sample.values if isinstance(value, Tensor))


def passes(case: Case) -> bool:
    """Whether the case passes."""
    try:
        case.run()
    except Exception:  # noqa: BLE001  (any failure is a failure of the case)
        return False
    return True


def graph_of(case: Case) -> str:
    """What the program under test does, as traced operations."""
    try:
        program = build(case)
        graph = make_fx(program.run)(*program.primals)
    except Exception as error:  # noqa: BLE001  (a program that can't be traced has no graph)
        return f"(can't be traced: {type(error).__name__}: {error})"
    lines = graph.code.strip().splitlines()
    more = [f"... {len(lines) - MOST_LINES} more lines"] if len(lines) > MOST_LINES else []
    return "\n".join([*lines[:MOST_LINES], *more])
