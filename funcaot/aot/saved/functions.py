"""Functions of segments that were saved: they run what is in the file, and capture what isn't.

``forwards`` makes the first one of a program. Each knows how to get the captured one that it stands
for, which is made when something is asked that only a tape can answer: a backward for gradients
that weren't saved, a further order, a transform. That is slower the first time, and never another
answer: the captured graph has to be the one that was saved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

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
from funcaot.aot.saved.errors import NotLoadedError
from funcaot.aot.saved.executables import Contents, executable_from
from funcaot.aot.saved.graphs import graph_digest
from funcaot.aot.saved.segments import LoadedSegment, LoadedTape, Token, same_residuals
from funcaot.aot.segment.backward import Backward, BackwardKey
from funcaot.errors import UnsupportedError


class Loaded:
    """What the functions of one saved program share.

    Attributes:
        contents: The file.
        settings: Those of the compiled function.
        tape: What stands for the tape.
        roots: What stands for the nodes of tensors whose versions are checked, by name.
    """

    def __init__(self, contents: Contents, settings: Settings) -> None:
        """Nothing is made yet."""
        self.contents = contents
        self.settings = settings
        self.tape = LoadedTape()
        self.roots: dict[str, Any] = {}

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
        self.sizes = None
        self._used = list(data["used"])
        self._executables = None
        self._lowered: Lowered | None = None
        self._layouts: dict[int, Layout] = {}
        self._variants = []
        self._data: Data | None = data["executable"]
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
        if self._lowered is None and self._data is not None:
            what = f"the graph {self.name} of {self.settings.name}"
            self._lowered = executable_from(self._data, self._loaded.contents, what)

    def _lower(self) -> Lowered:
        with guards.autocast_as(()):
            try:
                self.load()
            except NotLoadedError:
                self._data = None
        return self._real().lowered if self._lowered is None else self._lowered

    def _first_lowered(self, operands: Sequence[torch.Tensor]) -> Lowered:
        with self.settings.lock, StateKept():
            found = self.lowered if self._data is not None else None
            if found is None or self._data is None:
                found = self._real()._first_lowered(operands)
            self._lowered = found
            return found

    def fits(self, operands: Mapping[int, torch.Tensor]) -> bool:
        """Whether operands, by position, have the layouts that the executable relies on."""
        layouts = self.lowered.layouts
        if layouts is None:
            return super().fits(operands)
        return all(
            tuple(operands[index].shape) == layout.shape and layout.fits(operands[index])
            for index, layout in zip(self._used, layouts, strict=True)
            if index in operands
        )


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
        super().__init__(segment, keeping=keeping)

    def _make_program(self) -> GraphProgram:
        name = self.segment.name
        return LoadedProgram(
            self._data["program"], self._loaded, name, lambda: self.captured().program
        )

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
        super().__init__(function.segment, function.form, SegmentFunctions)
        self._function, self._loaded = function, loaded
        for data in saved:
            key = key_from(data["key"])
            self.backwards[key] = self._backward_from(key, data)

    def _backward_from(self, key: BackwardKey, data: Data) -> tuple[Backward, SegmentFunctions]:
        functions: SegmentFunctions = SegmentFunctions(None)
        if data["segment"] is not None:

            def captured() -> SegmentFunctions:
                return self._derive(key, [None] * len(key.tangents), ())[1]

            functions = LoadedFunctions(data["segment"], self._loaded, captured)
        backward = Backward(key, functions.segment, tuple(data["targets"]))
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
        found = self.backwards[key] = self._derive(key, tangents, values, tried)
        return found

    def _derive(
        self,
        key: BackwardKey,
        tangents: Sequence[torch.Tensor | None],
        values: Sequence[torch.Tensor],
        tried: Sequence[Backward] = (),
    ) -> tuple[Backward, SegmentFunctions]:
        """The backward of the captured program for a key."""
        real = self._function.captured().derivatives
        real_key, found = real._known(key, (), tried)
        if found is None:
            found = real._traced(real_key, (), tangents, values)
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


def key_from(data: Data) -> BackwardKey:
    """What a backward is specialized on, as ``forwards`` writes it."""
    needs, tangents, create_graph, edges, autocast, asked_by, variant = data
    return BackwardKey(
        tuple(needs),
        tuple(None if spec is None else spec_from(spec) for spec in tangents),
        create_graph,
        tuple(edges),
        scalar_from(autocast),
        asked_by,
        variant,
    )
