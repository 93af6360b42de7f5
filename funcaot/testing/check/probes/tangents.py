"""A row about forward mode and memory: tangents are shared where primals are, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import forward_ad

from funcaot.testing.check.probes.probe import Finding, Probe
from funcaot.testing.compare import compare
from funcaot.testing.derivatives import FiniteDifferences
from funcaot.testing.generator import seed
from funcaot.testing.program import is_differentiable, program_of, weights_like
from funcaot.testing.records import FunctionInfo, Sample, copied_tensor

REMEDY = (
    "return a tangent in memory of its own (tangent.clone()) for an output in memory of its own; "
    "the tangent of a view is a view of the tangent."
)


def tangent_memory(info: FunctionInfo, sample: Sample) -> Finding | None:
    """Tangents share memory as the primals do, and jvp leaves what it was given as it was."""
    program = program_of(info, sample, FiniteDifferences())
    seed()
    primals = [copied_tensor(primal) for primal in program.primals]
    tangents = {
        index: weights_like(primals[index], 0.9)
        for index in program.argnums
        if not _overlaps_itself(primals[index])
    }
    if not tangents:
        return None
    before = [tangent.clone() for tangent in tangents.values()]
    with forward_ad.dual_level():
        operands = list(primals)
        for index, tangent in tangents.items():
            operands[index] = forward_ad.make_dual(primals[index], tangent)
        held = {index: forward_ad.unpack_dual(operands[index]) for index in tangents}
        pairs = [forward_ad.unpack_dual(output) for output in program.run(*operands)]
        found = _sharing_problem(
            [(pair.primal, pair.tangent) for pair in pairs if is_differentiable(pair.primal)],
            [(index, held[index].primal, held[index].tangent) for index in tangents],
        )
    if found is not None:
        return Finding(found, REMEDY)
    after = [held[index].tangent for index in tangents]
    difference = compare([tangent for tangent in after if tangent is not None], before)
    if difference.message is None or _wrote_inputs(primals, program.primals):
        return None
    return Finding(
        f"jvp writes into a tangent that it was given ({difference.message})",
        "work on tangent.clone(), or use the out-of-place operation.",
        difference.largest,
    )


def _wrote_inputs(after: Sequence[Tensor], before: Sequence[Tensor]) -> bool:
    """Whether the call overwrote a primal, whose tangent then changes too."""
    return compare([tensor.detach() for tensor in after], before).message is not None


def _sharing_problem(
    outputs: Sequence[tuple[Tensor, Tensor | None]],
    inputs: Sequence[tuple[int, Tensor, Tensor | None]],
) -> str | None:
    """How the memory of tangents differs from that of the primals, in words."""
    for number, (primal, tangent) in enumerate(outputs):
        if tangent is None:
            continue
        for index, given, given_tangent in inputs:
            apart = not _share(primal, given)
            if apart and _share(tangent, given_tangent):
                return _said(number, f"the tangent of argument {index}", index)
            if apart and _share(tangent, given):
                return _said(number, f"argument {index} itself", index)
        for other in range(number):
            if not _share(primal, outputs[other][0]) and _share(tangent, outputs[other][1]):
                return _said(number, f"the tangent of output {other}", None)
        if _share(tangent, primal):
            return _said(number, "that output itself", None)
    return None


def _said(number: int, whose: str, index: int | None) -> str:
    primal = (
        f", while output {number} doesn't share with argument {index}" if index is not None else ""
    )
    return (
        f"the tangent of output {number} shares memory with {whose}{primal}: a write to the output "
        "in place changes both"
    )


def _share(left: Tensor | None, right: Tensor | None) -> bool:
    if left is None or right is None or not left.numel() or not right.numel():
        return False
    if left.layout is not torch.strided or right.layout is not torch.strided:
        return False
    return left.untyped_storage().data_ptr() == right.untyped_storage().data_ptr()


def _overlaps_itself(tensor: Tensor) -> bool:
    """Whether torch can't hold a tangent of it."""
    return any(
        stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


TANGENTS = (Probe("tangent memory", tangent_memory, frozenset({"forward_ad"}), rule="jvp"),)
