"""Running a graph in generated code: an expression, without a call in between."""

from __future__ import annotations

from collections.abc import Sequence

from funcaot.aot.calls.call import SegmentFunction
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.graph.source import Source, listed
from funcaot.aot.lowering.contract import settled


def run_expression(
    source: Source, function: SegmentFunction, operands: Sequence[str], *, trusting: bool = True
) -> str:
    """The expression that runs a segment's executable on operands, grad mode being off.

    With open sizes that is the executable made last, whose assumptions somebody else checks.
    """
    given = [operands[position] for position in function.form.positions]
    return run_program(source, function.program, given, trusting=trusting)


def run_program(
    source: Source, program: GraphProgram, operands: Sequence[str], *, trusting: bool = True
) -> str:
    """The same for a graph and its own operands."""
    lowered = program.lowered
    run = source.constant(settled(lowered.trusting if trusting else lowered.run), "run")
    given = [operands[index] for index in program.used]
    if program.sizes is not None:
        given += [shown.source(operands[shown.index]) for shown in program.sizes.sources]
    return f"{run}([{listed(given)}])"
