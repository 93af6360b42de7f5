"""Forward mode on a tape: the pushforward is the transpose of the (linear) backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from funcaot.aot.segment import Form, Operand, Segment
from funcaot.aot.spec import TensorSpec, spec_of


@dataclass(eq=False)
class Pushforward:
    """A traced pushforward.

    Attributes:
        segment: From residuals, operands and tangents to the outputs' tangents; None if no
            output depends on an operand that has a tangent.
        sources: For each of the segment's operands before the tangents, whether it is a
            residual (True) or an operand of the forward (False), and which.
        produced: Positions of the forward's graph outputs that have a tangent.
    """

    segment: Segment | None
    sources: tuple[tuple[bool, int], ...]
    produced: tuple[int, ...]

    def gather(
        self, values: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The segment's operands before the tangents."""
        return [
            values[index] if is_residual else operands[index] for is_residual, index in self.sources
        ]


def trace_pushforward(
    segment: Segment, form: Form, tangents: Sequence[TensorSpec | None]
) -> Pushforward:
    """Continue the tape by ``tangents -> J tangents``.

    With ``u`` a symbolic cotangent, ``J^T u`` is linear in ``u`` and its own vjp with respect to
    ``u``, applied to the tangents, is ``J tangents``. Both vjps run on the tape, so custom
    backwards are respected; a Function that has only a jvp gets its backward generated first.
    (The trick is due to J. Townsend, "A new trick for calculating Jacobian vector products".)

    Args:
        segment: The forward.
        form: How it ran, so which values there are.
        tangents: Specs of the operands' tangents, None where an operand has none.
    """
    tape = segment.tape
    moving = [
        index
        for index, spec in enumerate(tangents)
        if spec is not None and segment.operands[index].leaf is not None
    ]
    outputs = [
        (index, tensor)
        for index, tensor in enumerate(segment.graph_outputs)
        if tensor.requires_grad
    ]
    nothing = Pushforward(None, (), ())
    if not moving or not outputs:
        return nothing
    with tape.recording(grad_mode=False):
        specs = [spec_of(tensor).with_grad() for _, tensor in outputs]
    cotangents = [tape.placeholder(f"cotangent_{i}", spec) for i, spec in enumerate(specs)]
    leaves = [segment.operands[index].leaf for index in moving]
    pulled = tape.gradients(
        [tensor for _, tensor in outputs],
        leaves,  # type: ignore[arg-type]
        cotangents,
        create_graph=True,
    )
    given = [
        tape.placeholder(f"tangent_{index}", spec.with_grad())
        for index in moving
        if (spec := tangents[index]) is not None
    ]
    pairs = [
        (gradient, tangent)
        for gradient, tangent in zip(pulled, given, strict=True)
        if gradient is not None and gradient.requires_grad
    ]
    if not pairs:
        return nothing
    pushed = tape.gradients(
        [gradient for gradient, _ in pairs],
        cotangents,
        [tangent for _, tangent in pairs],
        create_graph=True,
    )
    results = {
        index: tensor
        for (index, _), tensor in zip(outputs, pushed, strict=True)
        if tensor is not None
    }
    if not results:
        return nothing
    return _assemble(segment, form, tangents, dict(zip(moving, given, strict=True)), results)


def _assemble(
    segment: Segment,
    form: Form,
    tangents: Sequence[TensorSpec | None],
    given: dict[int, torch.Tensor],
    results: dict[int, torch.Tensor],
) -> Pushforward:
    operands: list[Operand] = []
    sources: list[tuple[bool, int]] = []
    for position, residual in enumerate(form.residuals):
        if residual.operand is None:
            operands.append(Operand(residual.node))
            sources.append((True, position))
    for index, operand in enumerate(segment.operands):
        operands.append(Operand(operand.node, operand.leaf, by_value=operand.by_value))
        sources.append((False, index))
    for index, spec in enumerate(tangents):
        if spec is None:
            continue
        tangent = given.get(index)
        if tangent is None:
            tangent = segment.tape.placeholder(f"unused_tangent_{index}", spec)
        operands.append(
            Operand(segment.node_of(tangent), tangent if tangent.requires_grad else None)
        )
    following = Segment(
        segment.tape,
        tuple(operands),
        tuple(results.values()),
        segment.settings,
        f"{segment.name}_jvp",
        order=segment.order + 1,
        kind="forward",
    )
    return Pushforward(following, tuple(sources), tuple(results))
