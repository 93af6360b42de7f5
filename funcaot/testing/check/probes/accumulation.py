"""A row about gradients that add up: in ``.grad``, over several backwards, and of several uses."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from funcaot.testing.check.probes.probe import Finding, Probe
from funcaot.testing.check.probes.properties import pullback, standard_cotangents
from funcaot.testing.compare import compare
from funcaot.testing.derivatives import FiniteDifferences
from funcaot.testing.generator import seed
from funcaot.testing.program import Program, program_of
from funcaot.testing.records import FunctionInfo, Sample, copied_tensor

PHASES = (0.2, 1.7)
REMEDY = (
    "return a new tensor from backward: autograd may keep it as .grad and add to it, so a buffer "
    "that is used again, or a view of one, must be cloned."
)


def accumulates(info: FunctionInfo, sample: Sample) -> Finding | None:
    """Gradients of several backwards add up, and those that were returned stay as they were."""
    program = program_of(info, sample, FiniteDifferences())
    grads = [gradients_of(program, phase) for phase in PHASES]
    total = [first + second for first, second in zip(*grads, strict=True)]
    trials = (
        ("two backwards into one .grad", in_two_backwards),
        ("two uses in one graph", in_one_graph),
    )
    for name, trial in trials:
        difference = compare(trial(program), total)
        if difference.message is not None:
            detail = f"{name} don't add up: {difference.message}"
            return Finding(detail, REMEDY, difference.largest)
    _, first = pullback(program, cotangents_of(program, PHASES[0]))
    pullback(program, cotangents_of(program, PHASES[1]))
    difference = compare(first, grads[0])
    if difference.message is None:
        return None
    detail = f"a second backward changes the gradient of the first: {difference.message}"
    return Finding(detail, REMEDY, difference.largest)


def gradients_of(program: Program, phase: float) -> list[Tensor]:
    """The gradients for the cotangents of a phase, each a copy."""
    _, grads = pullback(program, cotangents_of(program, phase))
    return [grad.detach().clone() for grad in grads]


def cotangents_of(program: Program, phase: float) -> list[Tensor]:
    """Cotangents for the outputs that carry a gradient."""
    return standard_cotangents(reached(program, leaves_of(program)), phase)


def leaves_of(program: Program) -> list[Tensor]:
    """Copies of the primals, leaves of a new graph."""
    leaves = [copied_tensor(primal) for primal in program.primals]
    for index in program.argnums:
        leaves[index].requires_grad_()
    return leaves


def reached(program: Program, leaves: Sequence[Tensor]) -> list[Tensor]:
    """The outputs that carry a gradient of a call on these leaves."""
    seed()
    try:
        outputs = program.run(*leaves)
    except RuntimeError as error:
        # A Function that writes to its input can't have a leaf there.
        if "in-place" not in str(error):
            raise
        outputs = program.run(*[leaf.clone() for leaf in leaves])
    return [output for output in outputs if output.requires_grad]


def in_two_backwards(program: Program) -> list[Tensor]:
    """What ``.grad`` holds after two calls and two backwards."""
    leaves = leaves_of(program)
    for phase in PHASES:
        outputs = reached(program, leaves)
        if outputs:
            torch.autograd.backward(outputs, standard_cotangents(outputs, phase))
    return _held(program, leaves)


def in_one_graph(program: Program) -> list[Tensor]:
    """What ``.grad`` holds after two calls and one backward."""
    leaves = leaves_of(program)
    outputs: list[Tensor] = []
    cotangents: list[Tensor] = []
    for phase in PHASES:
        found = reached(program, leaves)
        outputs += found
        cotangents += standard_cotangents(found, phase)
    if outputs:
        torch.autograd.backward(outputs, cotangents)
    return _held(program, leaves)


def _held(program: Program, leaves: Sequence[Tensor]) -> list[Tensor]:
    held = []
    for index in program.argnums:
        grad = leaves[index].grad
        held.append(torch.zeros_like(leaves[index]) if grad is None else grad)
    return held


ACCUMULATION = (Probe("accumulation", accumulates),)
