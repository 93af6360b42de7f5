"""Running a graph that writes into inputs by itself, by the plan of ``segment.in_place``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.levels import functorch
from funcaot._torch.levels.situation import Situation
from funcaot.aot.calls.program import GraphProgram, with_inputs
from funcaot.aot.graph.functional_graph import FunctionalGraph
from funcaot.aot.graph.settings import Settings
from funcaot.aot.lowering.lower import Lowered, Writes
from funcaot.aot.pipeline import compile_graph
from funcaot.aot.segment.in_place import InPlacePlan


class WritingProgram(GraphProgram):
    """A graph that returns some of its outputs and writes the others into inputs."""

    def __init__(self, graph: FunctionalGraph, settings: Settings, writes: Writes) -> None:
        """Take the graph of a program whose caller would write.

        Args:
            graph: That program's graph.
            settings: Those of the compiled function.
            writes: What goes where, by positions among its inputs and outputs.
        """
        super().__init__(graph, settings)
        self.writes = writes
        self._used = sorted({*self._used, *(position for position, _ in writes.pairs)})

    def _executable(self) -> Lowered:
        where = {position: index for index, position in enumerate(self._used)}
        pairs = tuple((where[position], output) for position, output in self.writes.pairs)
        module = with_inputs(self.writes.decomposed, self._used)
        writes = replace(self.writes, pairs=pairs, decomposed=module)
        return compile_graph(self._pruned(), self.settings, writes=writes)


class InPlace:
    """A plain form that writes into inputs by itself.

    Attributes:
        plan: What is written where.
        program: The graph.
        written: Inputs that it writes to.
        others: The inputs that share no memory with those.
        effects: What is left to the epilogue.
    """

    def __init__(
        self, plan: InPlacePlan, settings: Settings, program: GraphProgram | None = None
    ) -> None:
        """Make what runs by a plan; nothing is compiled yet.

        Args:
            plan: What is written where.
            settings: Those of the compiled function.
            program: The graph, if it was compiled in another process.
        """
        self.plan = plan
        self.program = program or WritingProgram(plan.form.graph, settings, plan.writes)
        self.written = plan.written
        self.others = plan.others
        self.effects = plan.effects

    def serves(self, tensors: Sequence[torch.Tensor], around: Situation) -> bool:
        """Whether the graph may write to a call's inputs."""
        if around.derives or around.modes or functorch.has_legacy_batched(tensors):
            return False
        written = [tensors[index] for index in self.written]
        if any(tensor.is_inference() for tensor in written):
            return False
        return are_apart(written, [tensors[index] for index in self.others])

    def run(self, tensors: Sequence[torch.Tensor]) -> list[Any]:
        """Run the graph; the outputs that were written and nothing else are None."""
        written = [tensors[index] for index in self.written]
        versions = [tensor._version for tensor in written]
        made = self.program.execute([tensors[index] for index in self.plan.form.positions])
        counts = zip(versions, self.plan.versions, strict=True)
        autograd.set_versions(written, [before + count for before, count in counts])
        results: list[Any] = [None] * self.plan.count
        for position, value in zip(self.plan.writes.kept, made, strict=True):
            results[position] = value
        return results


def are_apart(written: Sequence[torch.Tensor], others: Sequence[torch.Tensor]) -> bool:
    """Whether no storage that is written to belongs to two inputs."""
    storages = {tensor.untyped_storage()._cdata for tensor in written}
    return len(storages) == len(written) and storages.isdisjoint(
        [tensor.untyped_storage()._cdata for tensor in others]
    )
