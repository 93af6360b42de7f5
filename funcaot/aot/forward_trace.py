"""Forward mode by running a graph forward: for what a double transpose can't push.

Transposing twice needs a backward for every op, whose own derivative doesn't depend on the
cotangent. Where an op or a Function has a forward rule only, or its backward isn't visibly linear,
the graph is run again on the tape below a ``jvp`` level, so that every rule of forward mode holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from funcaot.aot import graphs
from funcaot.errors import UnsupportedError
from funcaot.operator import custom_function_call
from funcaot.traits import display_name, has_jvp

if TYPE_CHECKING:
    from funcaot.aot.segment import Segment


def push_forward(
    segment: Segment, given: dict[int, torch.Tensor], outputs: Sequence[int]
) -> list[torch.Tensor]:
    """The tangents of a segment's graph outputs, by forward mode on its tape.

    Args:
        segment: The segment.
        given: The tape's tangent of each operand that has one.
        outputs: Positions of the graph outputs that are asked for.

    Raises:
        UnsupportedError: If the graph can't run a second time, or a Function in it would have its
            forward rule made from a backward of which nobody knows that it is linear.
    """
    name = segment.settings.name
    read = [index for index, operand in enumerate(segment.operands) if operand.by_value]
    nodes = [segment.operands[index].node for index in read]
    wanted = [segment.output_nodes[index] for index in outputs]
    again = graphs.closure(wanted, nodes)
    if not given.keys() <= set(read) or any(graphs.is_random(node) for node in again):
        raise UnsupportedError(
            f"Forward mode through {name} would draw its random numbers a second time.",
            remedy="compile the function that calls torch.func.jvp instead.",
        )
    for node in sorted(again):
        if graphs.is_function_node(node):
            _check_linear(segment, nodes, node)
    module = graphs.extract(segment.tape.root, nodes, wanted)
    moving = [read.index(index) for index in given]
    with segment.tape.recording():
        primals = [
            operand.leaf if operand.leaf is not None else segment.tape.tensor_of(operand.node)
            for operand in (segment.operands[index] for index in read)
        ]

        def run(*active: torch.Tensor) -> tuple[torch.Tensor, ...]:
            filled = list(primals)
            for position, value in zip(moving, active, strict=True):
                filled[position] = value
            return tuple(module(*filled))

        active = tuple(primals[position] for position in moving)
        _, pushed = torch.func.jvp(run, active, tuple(given.values()))
    return list(pushed)


def _check_linear(segment: Segment, known: Sequence[fx.Node], node: fx.Node) -> None:
    """Let a generated rule be checked as it is in eager: on the values of this call."""
    function = node.target.function  # type: ignore[union-attr]
    if has_jvp(function) or getattr(function, "allow_nonlinear_rule", False):
        return
    values = segment.tape.values_of(node.all_input_nodes)
    if values is None:
        raise UnsupportedError(
            f"The forward rule of {display_name(function)} would be made from its backward, which "
            "isn't visibly linear in the cotangents.",
            remedy="define `jvp(ctx, *tangents)`.",
        )
    by_node = dict(zip(node.all_input_nodes, values, strict=True))
    operands = [by_node[argument] for argument in node.args]  # type: ignore[index]

    def call(*tensors: torch.Tensor) -> object:
        return custom_function_call(function, *node.target.operands(*tensors))  # type: ignore

    segment.tape.outside(lambda: _jvp_along_zero(call, operands))


def _jvp_along_zero(call: object, operands: Sequence[torch.Tensor]) -> None:
    moving = [i for i, value in enumerate(operands) if value.is_floating_point()]

    def run(*active: torch.Tensor) -> object:
        filled = list(operands)
        for position, value in zip(moving, active, strict=True):
            filled[position] = value
        return call(*filled)  # type: ignore[operator]

    primals = tuple(operands[position] for position in moving)
    torch.func.jvp(run, primals, tuple(torch.zeros_like(primal) for primal in primals))
