"""Effects: what a captured function does besides computing fresh tensors, as one frozen record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import fx

from funcaot.aot.closure.look import written
from funcaot.aot.effects.actions.action import Action
from funcaot.aot.effects.actions.attach import Attach
from funcaot.aot.effects.actions.overwrite import Overwrite
from funcaot.aot.effects.actions.set_storage import SetStorage
from funcaot.aot.effects.origin import Origin
from funcaot.aot.tape.memory import views
from funcaot.errors import GraphError


@dataclass(frozen=True)
class Mutation:
    """What happens to one input.

    Attributes:
        index: The input.
        actions: What happens, in this order.
        versions: In-place changes that its version counts, all together; None if it counts none.
    """

    index: int
    actions: tuple[Action, ...] = ()
    versions: int | None = None

    @property
    def writes(self) -> bool:
        """Whether memory of the input is overwritten."""
        return any(action.writes for action in self.actions)

    @property
    def reassigns(self) -> bool:
        """Whether the input's ``.data`` is assigned to, which no version tells."""
        return any(isinstance(action, SetStorage) and action.assigned for action in self.actions)

    @property
    def results(self) -> tuple[int, ...]:
        """Positions of the results that its actions name."""
        return tuple(position for action in self.actions for position in action.results)

    @property
    def reshapes(self) -> bool:
        """Whether the input gets another shape in place."""
        return any(action.reshapes for action in self.actions)

    @property
    def copied(self) -> Overwrite | None:
        """The new data, if the input gets that after the graph has run, and nothing else."""
        left = [action for action in self.actions if not action.before_graph]
        if len(left) == 1 and isinstance(left[0], Overwrite) and left[0].by != "detached":
            return left[0]
        return None

    def __str__(self) -> str:
        """One line of the plan."""
        parts = [str(action) for action in self.actions if not action.is_last]
        if self.versions is not None:
            parts.append(f"version +{self.versions}")
        return ", ".join([*parts, *(str(action) for action in self.actions if action.is_last)])


@dataclass(frozen=True, eq=False)
class Watched:
    """A tensor of the caller that must not be written to before a backward reads what it holds.

    Attributes:
        input: The input that it is, or None.
        result: The result that it is, or None.
        root: The tape's node of its memory.
    """

    input: int | None
    result: int | None
    root: fx.Node


@dataclass(frozen=True)
class Output:
    """Where one flat output of the function comes from.

    Attributes:
        value: A non-tensor, returned as it is.
        result: Position among the graph's results.
        source: Position of the input that it is or is a view of.
        view: The chain of views from the input or the result; None for the thing itself.
        origin: For anything else, how it is made; then the others are None.
        of_class: The user's class of tensors that it is of, if it isn't a plain one.
        parameter: Whether it is marked as a ``torch.nn.Parameter`` of that class.
    """

    value: Any = None
    result: int | None = None
    source: int | None = None
    view: views.View | None = None
    origin: Origin | None = None
    of_class: type | None = None
    parameter: bool = False

    @property
    def is_result(self) -> bool:
        """Whether it is what the graph computes, and nothing is made of that."""
        return self.result is not None and self.view is None and self.origin is None

    @property
    def is_input(self) -> bool:
        """Whether it is an input as it is."""
        return self.source is not None and self.view is None and self.origin is None

    @property
    def is_another_look(self) -> bool:
        """Whether it is a chain of views of an input or result, or that in a class of tensors."""
        return self.origin.only_views if self.origin else bool(self.view or self.of_class)

    def __str__(self) -> str:
        """``result 0``, ``input 1`` or ``input 1.t()`` style."""
        if self.of_class is not None:
            return f"{replace(self, of_class=None)} as {self.of_class.__name__}"
        if self.origin is not None:
            return str(self.origin)
        if self.result is None and self.source is None:
            return written(self.value)
        return str(Origin(self.source, self.result, view=self.view))


@dataclass(frozen=True)
class Effects:
    """A function's outputs and mutations in terms of its functional graph.

    Inputs are counted as ``Capture.slots`` counts them: the call's own, then what regions add.

    Attributes:
        results: The tape's tensors that the functional graph computes.
        mutations: Inputs that are changed.
        outputs: One entry per flat output.
        flats: For each region with new data: the slot of its memory and the result that holds it.
        regions: Memory that inputs share, one line each; empty in the usual case.
        attached: Attributes that fresh outputs get, by output.
    """

    results: tuple[torch.Tensor, ...]
    mutations: tuple[Mutation, ...]
    outputs: tuple[Output, ...]
    flats: tuple[tuple[int, int], ...] = ()
    regions: tuple[str, ...] = ()
    attached: tuple[tuple[int, Attach], ...] = ()

    @cached_property
    def written(self) -> frozenset[int]:
        """Inputs that are changed."""
        return frozenset(mutation.index for mutation in self.mutations)

    def verify(self) -> None:
        """Refuse effects that name a result that there isn't, or one input twice."""
        named = [*self.shown, *(position for _, position in self.flats)]
        named += [position for mutation in self.mutations for position in mutation.results]
        if any(not 0 <= position < len(self.results) for position in named):
            raise GraphError(f"Effects with {len(self.results)} results name {named}.")
        if len(self.written) < len(self.mutations):
            raise GraphError(f"Effects change an input twice:\n{self}")

    @cached_property
    def shown(self) -> frozenset[int]:
        """Results that the caller gets; the others are only copied from."""
        found = {output.result for output in self.outputs}
        origins = [output.origin for output in self.outputs]
        actions = [action for mutation in self.mutations for action in mutation.actions]
        origins += [origin for action in actions for origin in action.origins]
        while origins:
            origin = origins.pop()
            if origin is not None:
                found.add(origin.result)
                origins += [origin.parent, *origin.beside]
        return frozenset(position for position in found if position is not None)

    def __str__(self) -> str:
        """The epilogue's plan, a line each."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from self.regions
        for slot, value in self.flats:
            yield f"shared memory {slot}: = result {value}"
        for mutation in self.mutations:
            yield f"input {mutation.index}: {mutation}"
        for index, output in enumerate(self.outputs):
            yield f"output {index}: {output}"
        for index, attach in self.attached:
            yield f"output {index}: {attach}"
