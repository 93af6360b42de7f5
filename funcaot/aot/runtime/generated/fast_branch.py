"""Generated code of a backward whose tangents look like some that came before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import torch

from funcaot.aot.calls.call import SegmentFunction, SegmentFunctions
from funcaot.aot.calls.own_nodes import of_derivative
from funcaot.aot.graph.source import Source, listed, unpacked
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.runtime.generated.fast_run import run_expression
from funcaot.aot.segment.backward import Backward
from funcaot.aot.segment.wanted_gradients import Needs
from funcaot.aot.signature.open_checks import OpenChecks
from funcaot.aot.signature.sizes import Conditions


class Node(Protocol):
    """What a case needs of the generated node of a backward (see ``fast_node.FastNode``)."""

    apply: Callable[..., Any]
    returns_one: bool
    assumed: Conditions | None


@dataclass(frozen=True, eq=False)
class Case:
    """What the tangents of a backward looked like, and what ran for them.

    Attributes:
        pattern: For each output the position of the first one with the same tangent, None where
            there is none.
        needs: Which operands' gradients were wanted; None if all were.
        check: Compares the distinct tangents and then what was saved.
        specs: What these look like if sizes are open; else empty.
        backward: The traced backward.
        functions: Its program.
        following: With ``create_graph=True``, the node of the backward itself, if that runs.
    """

    pattern: tuple[int | None, ...]
    needs: Needs
    check: Callable[..., bool]
    specs: tuple[TensorSpec, ...]
    backward: Backward
    functions: SegmentFunctions
    following: Node | None = None

    @property
    def runs(self) -> bool:
        """Whether there is anything to run: gradients may be what came, or what was kept."""
        segment = self.backward.segment
        return segment is not None and bool(segment.output_nodes or segment.effect_nodes)

    @property
    def assumed(self) -> Conditions | None:
        """What the executable that runs assumes about open sizes."""
        if self.following is not None:
            return self.following.assumed
        return self.functions.plain.program.assumed


class BranchWriter:
    """Writes the cases of one node's backward."""

    def __init__(
        self, source: Source, owner: SegmentFunction, tangents: list[str], edges: tuple[int, ...]
    ) -> None:
        """Write into ``source``, for tangents of these names.

        Args:
            source: The function ``apply(ctx, *tangents)`` under construction.
            owner: Whose backward it is.
            tangents: Names of the parameters.
            edges: Operands that were kept for their autograd edge only.
        """
        self.source = source
        self.owner = owner
        self.tangents = tangents
        self.edges = edges
        self.saved = [source.name("kept") for _ in owner.form.residuals]

    def write_saved(self) -> None:
        """Read what was saved, once: the user's hooks may be called for it."""
        self.source.line(f"saved = {'ctx.saved_tensors' if self.saved else '()'}")
        if self.saved:
            self.source.line(unpacked(self.saved, "saved"))

    def write(self, case: Case, indent: int) -> None:
        """Write ``if <this case>: return <gradients>``."""
        source = self.source
        conditions, distinct, present = self._conditions(case)
        saved = self.saved
        check = source.constant(case.check, "check")
        conditions.append(f"{check}({listed([*distinct, *saved])})")
        source.line(f"if {' and '.join(conditions)}:", indent)
        indent += 1
        if case.specs:
            self._write_open_checks(case, [*distinct, *saved], indent)
            indent += 1
        if case.backward.key.create_graph:
            saved = self._detached(saved)
        operands = [*saved, *present]
        if case.following is not None:
            self._write_following(case, case.following, operands, indent)
        else:
            self._release_edges(indent)
            if case.runs:
                run = run_expression(source, case.functions.plain, operands)
                source.line(f"made = {run}", indent)
        source.line(f"return {_gradients(case.backward, operands)}", indent)

    def _conditions(self, case: Case) -> tuple[list[str], list[str], list[str]]:
        """Conditions, and the names of distinct and of all tangents."""
        conditions = ["needs is None" if case.needs is None else f"needs == {case.needs}"]
        distinct, present = [], []
        for index, (name, first) in enumerate(zip(self.tangents, case.pattern, strict=True)):
            if first is None:
                conditions.append(f"{name} is None")
                continue
            present.append(name)
            if first == index:
                distinct.append(name)
            else:
                conditions.append(f"{name} is {self.tangents[first]}")
        if case.backward.read is not None:
            conditions.append(f"{self.source.constant(case.backward.read, 'read')}()")
        return conditions, distinct, present

    def _write_open_checks(self, case: Case, names: list[str], indent: int) -> None:
        """Compare open sizes and what follows from them."""
        sizes = self.owner.derivatives.sizes
        checks = OpenChecks.of(
            None if sizes is None else sizes.environment,
            list(zip(names, case.specs, strict=True)),
            (case.backward.conditions, case.assumed),
        )
        checks.write(self.source, indent)
        self.source.line(f"if {checks}:", indent)

    def _write_following(self, case: Case, node: Node, operands: list[str], indent: int) -> None:
        """Run a backward that will itself be differentiated."""
        source = self.source
        edges = [source.name("edge") for _ in self.edges]
        if edges:
            source.line(unpacked(edges, "ctx.edges"), indent)
            self._release_edges(indent)
        run = f"{source.constant(node.apply, 'following')}({listed([*operands, *edges])})"
        source.line(f"made = ({run},)" if node.returns_one else f"made = {run}", indent)
        segment = case.functions.segment
        if segment is not None and segment.is_told:
            own = source.constant(partial(of_derivative, case.functions, made=True), "own")
            source.line(f"made = {own}(ctx, made)", indent)

    def _detached(self, saved: list[str]) -> list[str]:
        """Residuals as operands: an output of the node comes back with its history."""
        made = len(self.owner.segment.output_nodes)
        return [
            f"{name}.detach()" if kept.output is not None and kept.output < made else name
            for name, kept in zip(saved, self.owner.form.residuals, strict=True)
        ]

    def _release_edges(self, indent: int) -> None:
        if self.edges and self.owner.form.residuals:
            self.source.line("if not keeps_graph(): ctx.edges = ()", indent)


def _gradients(backward: Backward, operands: list[str]) -> str:
    segment = backward.segment
    if segment is None:
        raise RuntimeError("a branch without a program")
    parts = []
    for target in backward.targets:
        if target is None:
            parts.append("None")
            continue
        place = segment.places[target]
        parts.append(
            f"made[{place.output}]" if place.output is not None else operands[place.operand or 0]
        )
    return f"({''.join(f'{part}, ' for part in parts)})"


def pattern_of(tangents: Sequence[torch.Tensor | None]) -> tuple[int | None, ...]:
    """For each tangent the position of the first that is the same object; None for None."""
    first: dict[int, int] = {}
    return tuple(
        None if tangent is None else first.setdefault(id(tangent), index)
        for index, tangent in enumerate(tangents)
    )
