"""Functions of segments that were saved: they run what is in the file, and capture what isn't.

``forwards`` makes the first one of a program. Each knows how to get the captured one that it stands
for, which is made when something is asked that only a tape can answer: a backward for gradients
that weren't saved, a further order, a transform. That is slower the first time, and never another
answer: the captured graph has to be the one that was saved.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from funcaot import config
from funcaot._torch.distributed.described_tensors import Meshes
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors import guards
from funcaot.aot.calls.call import SegmentFunction, SegmentFunctions
from funcaot.aot.calls.derivatives import Derivatives
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.graph.layout import Layout
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.settings import Settings
from funcaot.aot.lowering.lower import Lowered
from funcaot.aot.saved.codec import Data, scalar_from, spec_from
from funcaot.aot.saved.described import rules_from
from funcaot.aot.saved.errors import NotLoadedError
from funcaot.aot.saved.executables import Contents, executable_from, layouts_from
from funcaot.aot.saved.graphs import graph_digest
from funcaot.aot.saved.open_sizes import LoadedBackwardSizes, conditions_from, graph_sizes_from
from funcaot.aot.saved.segments import LoadedSegment, LoadedTape, Token, same_residuals
from funcaot.aot.segment.backward import Backward, BackwardKey
from funcaot.aot.segment.backward_sizes import BackwardSizes
from funcaot.aot.signature.sizes import Sizes
from funcaot.errors import UnsupportedError


class Loaded:
    """What the functions of one saved program share.

    Attributes:
        contents: The file.
        settings: Those of the compiled function.
        sizes: The environment of the open sizes, if there are any.
        tape: What stands for the tape.
        roots: What stands for the nodes of tensors whose versions are checked, by name.
    """

    def __init__(self, contents: Contents, settings: Settings, sizes: Sizes | None = None) -> None:
        """Nothing is made yet."""
        self.contents = contents
        self.settings = settings
        self.sizes = None if sizes is None else sizes.environment
        self.tape = LoadedTape(self.sizes)
        self.roots: dict[str, Any] = {}

    @property
    def captured_sizes(self) -> tuple[int, ...]:
        """The open sizes of the call that is captured where something isn't in the file."""
        sizes = self.sizes
        return () if sizes is None else tuple(int(sizes.at_present(s)) for s in sizes.symbols)

    def root(self, name: str) -> Any:
        """What stands for a node of this name."""
        return self.roots.setdefault(name, Token(name))

    def changed(self) -> UnsupportedError:
        """What is raised where a capture doesn't give the program that was saved."""
        return UnsupportedError(
            f"{self.settings.name} ran a program of an artifact. A derivative is asked for that "
            "isn't in the artifact, and the function is another one by now than when it ran.",
            remedy="change the function, its modules and settings after the backward; or call "
            "what needs this derivative before compiled.save(path).",
        )


class LoadedProgram(GraphProgram):
    """A graph whose executable was saved; the graph itself is captured when it is asked for."""

    def __init__(
        self, data: Data, loaded: Loaded, name: str, real: Callable[[], GraphProgram]
    ) -> None:
        """Make what was described; nothing is loaded yet."""
        self.name = name
        self.settings = loaded.settings
        self.kept = tuple(data["kept"])
        self.timings = {}
        self.children = Derived()
        self.arity = data["arity"]
        self.draws = data["draws"]
        self.sizes = graph_sizes_from(data["sizes"], loaded.sizes)
        self._used = list(data["used"])
        self._executables = None
        self._lowered: Lowered | None = None
        self._layouts: dict[int, Layout] = {}
        self._variants = []
        self._data: list[Data] = data["executables"]
        self._traced = None if data["traced"] is None else layouts_from(data["traced"])
        self._loaded = loaded
        self._real = real

    @property
    def graph(self) -> Any:
        """The captured graph and what becomes of its outputs."""
        return self._real().graph

    @property
    def module(self) -> Any:
        """The captured graph."""
        return self._real().module

    def load(self) -> None:
        """Make the executable.

        Raises:
            NotLoadedError: If it can't be.
        """
        if self._lowered is not None or not self._data:
            return
        what, contents = f"the graph {self.name} of {self.settings.name}", self._loaded.contents
        made = [executable_from(each, contents, what) for each in self._data]
        if self.sizes is not None:
            assumed = [
                conditions_from(each["assumed"], self.sizes.environment, self.sizes.symbols)
                for each in self._data
            ]
            self._variants = [*zip(assumed, made, strict=True)]
        self._lowered = made[-1]

    def _try_to_load(self) -> None:
        with guards.autocast_as(()):
            try:
                self.load()
            except NotLoadedError:
                self._data = []

    def _lower(self) -> Lowered:
        self._try_to_load()
        return self._real().lowered if self._lowered is None else self._lowered

    def _lowered_for(self, sizes: tuple[int, ...]) -> Lowered:
        with self.settings.lock, StateKept():
            self._try_to_load()
            found = self._variant(sizes)
            if found is None:
                real = self._real()
                found = real._lowered_for(sizes)
                kept = self._variants[-config.get().backward_layouts :]
                self._variants = [*kept, *(pair for pair in real._variants if pair[1] is found)]
                self._lowered = found
            return found

    def _first_lowered(self, operands: Sequence[torch.Tensor]) -> Lowered:
        with self.settings.lock, StateKept():
            found = self.lowered if self._data else None
            if found is None or not self._data:
                found = self._real()._first_lowered(operands)
            self._lowered = found
            return found

    def fits(self, operands: Mapping[int, torch.Tensor]) -> bool:
        """Whether operands, by position, have the layouts that the executable relies on."""
        layouts: Sequence[Layout | None] | None = self.lowered.layouts
        if layouts is None:
            if self._traced is None:
                return super().fits(operands)
            layouts = [self._traced[index] for index in self._used]
        return all(
            layout is not None
            and tuple(operands[index].shape) == layout.shape
            and layout.fits(operands[index])
            for index, layout in zip(self._used, layouts, strict=True)
            if index in operands
        )

    def traced_layouts(self, positions: Sequence[int]) -> dict[int, Layout | None]:
        """The layouts that some of the graph's inputs were traced with."""
        if self._traced is None:
            return super().traced_layouts(positions)
        return {position: self._traced[position] for position in positions}


class LoadedFunction(SegmentFunction):
    """A saved segment in one form."""

    def __init__(
        self,
        segment: LoadedSegment,
        data: Data,
        loaded: Loaded,
        *,
        keeping: bool,
        owner: LoadedFunctions,
    ) -> None:
        """Make the Function class.

        Args:
            segment: The segment.
            data: Its form.
            loaded: What all functions of the program share.
            keeping: Whether it keeps residuals for a backward.
            owner: The forms of the segment.
        """
        self._data, self._loaded, self._owner = data, loaded, owner
        self._captured: SegmentFunction | None = None
        self.dependence = segment.dependence  # instead of what a tape would say
        super().__init__(segment, keeping=keeping)

    def _make_program(self) -> GraphProgram:
        name = self.segment.name
        return LoadedProgram(
            self._data["program"], self._loaded, name, lambda: self.captured().program
        )

    @property
    def sizes_data(self) -> Data:
        """How its backwards know their open sizes, as it was saved."""
        return self._data["backward sizes"]

    def _make_derivatives(self) -> Derivatives[SegmentFunctions]:
        return _LoadedDerivatives(self, self._data["backwards"], self._loaded)

    def captured(self) -> SegmentFunction:
        """What this stands for, captured when it is first asked for.

        Raises:
            UnsupportedError: If the function isn't the one any more that was saved.
        """
        if self._captured is None:
            with self.segment.settings.lock, StateKept():
                if self._captured is None:
                    made = self._owner.captured()
                    found = made.keeping if self.keeping else made.plain
                    same = graph_digest(found.form.graph.module) == self._data["digest"]
                    if not (same and same_residuals(found.form, self.form.residuals)):
                        self._owner.forget()
                        raise self._loaded.changed()
                    self._captured = found
        return self._captured


class LoadedFunctions(SegmentFunctions):
    """The forms of a saved segment.

    Attributes:
        loaded_segment: The segment.
        forms: What was saved of them.
    """

    def __init__(
        self, data: Data, loaded: Loaded, captured: Callable[[], SegmentFunctions]
    ) -> None:
        """Make none yet.

        Args:
            data: The segment with its forms.
            loaded: What all functions of the program share.
            captured: Captures what this stands for.
        """
        forms = {keeping: form for keeping, form in _forms_of(data).items() if form is not None}
        self.loaded_segment = LoadedSegment(data, forms, loaded.tape, loaded.settings)
        super().__init__(self.loaded_segment)
        self.forms, self._loaded, self._capture = forms, loaded, captured
        self._captured: SegmentFunctions | None = None

    def captured(self) -> SegmentFunctions:
        """What this stands for."""
        if self._captured is None:
            self._captured = self._capture()
        return self._captured

    def forget(self) -> None:
        """Let go of what was captured: it isn't what this stands for."""
        self._captured = None

    def _make(self, keeping: bool) -> SegmentFunction:
        data = self.forms.get(keeping)
        if data is None:
            made = self.captured()
            return made.keeping if keeping else made.plain
        return LoadedFunction(self.loaded_segment, data, self._loaded, keeping=keeping, owner=self)


def _forms_of(data: Data) -> dict[bool, Data]:
    return {True: data["keeping"], False: data["plain"]}


class _LoadedDerivatives(Derivatives[SegmentFunctions]):
    """Backwards that were saved; others are derived from the captured program."""

    def __init__(self, function: LoadedFunction, saved: Sequence[Data], loaded: Loaded) -> None:
        self._function, self._loaded = function, loaded
        super().__init__(function.segment, function.form, SegmentFunctions)
        for data in saved:
            with contextlib.suppress(NotLoadedError):  # It is traced when it is asked for.
                key = key_from(data["key"], self._loaded.contents.meshes)
                self.backwards[key] = self._backward_from(key, data)

    def _make_sizes(self) -> BackwardSizes | None:
        environment, data = self._loaded.sizes, self._function.sizes_data
        return None if environment is None else LoadedBackwardSizes(data, environment)

    def _backward_from(self, key: BackwardKey, data: Data) -> tuple[Backward, SegmentFunctions]:
        functions: SegmentFunctions = SegmentFunctions(None)
        if data["segment"] is not None:

            def captured() -> SegmentFunctions:
                return self._derive(key, None, [None] * len(key.tangents), ())[1]

            functions = LoadedFunctions(data["segment"], self._loaded, captured)
        conditions = None
        if self.sizes is not None:
            conditions = conditions_from(data["conditions"], self.sizes.environment)
        targets = tuple(data["targets"])
        asked = tuple((question, answer) for question, answer in data["asked"])
        noted = {"conditions": conditions, "rules": rules_from(data["rules"]), "asked": asked}
        backward = Backward(key, functions.segment, targets, **noted)
        reads = frozenset(map(self._loaded.root, data["reads"]))
        backward.__dict__["reads"] = reads
        return backward, functions

    def _traced(
        self,
        key: BackwardKey,
        sizes: tuple[int, ...],
        tangents: Sequence[torch.Tensor | None],
        values: Sequence[torch.Tensor],
        tried: Sequence[Backward] = (),
    ) -> tuple[Backward, SegmentFunctions]:
        found = self.backwards[key] = self._derive(key, sizes, tangents, values, tried)
        return found

    def _derive(
        self,
        key: BackwardKey,
        sizes: tuple[int, ...] | None,
        tangents: Sequence[torch.Tensor | None],
        values: Sequence[torch.Tensor],
        tried: Sequence[Backward] = (),
    ) -> tuple[Backward, SegmentFunctions]:
        """The backward of the captured program for a key; for sizes that it was captured with."""
        real = self._function.captured().derivatives
        if sizes is None:
            sizes = self._loaded.captured_sizes
        real_key, found = real._known(key, sizes, tried)
        if found is None:
            found = real._traced(real_key, sizes, tangents, values)
        backward = found[0]
        names = {getattr(node, "name", "") for node in backward.reads}
        # What a call notes of versions names roots as the saved program does.
        roots = (root for name, root in self._loaded.roots.items() if name in names)
        backward.__dict__["reads"] = backward.reads.union(roots)
        return found

    def fused_pushforward(self, primals: Any, tangents: Any) -> Any:
        """The program for primal and tangent together, of the captured program."""
        return self._function.captured().derivatives.fused_pushforward(primals, tangents)

    def pushforward(self, tangents: Any) -> Any:
        """The program for tangents alone, of the captured program."""
        return self._function.captured().derivatives.pushforward(tangents)

    def forget(self, derivative: object) -> None:
        """Drop a derivative that was traced for values that a call didn't have."""
        super().forget(derivative)
        if self._function._captured is not None:
            self._function._captured.derivatives.forget(derivative)


def key_from(data: Data, meshes: Meshes) -> BackwardKey:
    """What a backward is specialized on, as ``forwards`` writes it."""
    needs, tangents, create_graph, edges, autocast, asked_by, variant, dispatch, pattern = data
    return BackwardKey(
        tuple(needs),
        tuple(None if spec is None else spec_from(spec, meshes) for spec in tangents),
        create_graph,
        tuple(edges),
        scalar_from(autocast),
        asked_by,
        variant,
        scalar_from(dispatch),
        tuple(pattern),
    )
