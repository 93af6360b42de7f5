"""A graph that can be called: compiled when first run, and anew for each way of batching it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import fx

from funcaot import config
from funcaot._torch.autograd import autograd
from funcaot._torch.levels.situation import situation
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors import guards
from funcaot._torch.tensors.random.seeded import OF_TORCH
from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot.aot.calls.batchable import batchable
from funcaot.aot.calls.batched_draws import with_draws_in_place
from funcaot.aot.calls.levels import BatchInfo, call_at_level, run_batched
from funcaot.aot.graph import graphs
from funcaot.aot.graph.functional_graph import FunctionalGraph
from funcaot.aot.graph.layout import Layout, layouts_of
from funcaot.aot.graph.lru import Derived
from funcaot.aot.graph.settings import Settings
from funcaot.aot.graph.tensor_spec import LayoutKey, layout_key, spec_of
from funcaot.aot.lowering import kept_layouts
from funcaot.aot.lowering.executable_cache import Executables
from funcaot.aot.lowering.lower import Lowered
from funcaot.aot.lowering.open_sizes import OpenSizes
from funcaot.aot.pipeline import compile_graph
from funcaot.aot.signature.sizes import Conditions
from funcaot.aot.subclasses.refusals import refuse_behind_levels, refuse_under_mode
from funcaot.aot.tape.tape import Tape
from funcaot.derivatives.kernels import with_derivatives
from funcaot.errors import StageError

_logger = logging.getLogger(__name__)

_Dims: TypeAlias = tuple[int | None, ...]
_BatchKey: TypeAlias = tuple[_Dims, BatchInfo, tuple[LayoutKey, ...]]


class GraphProgram:
    """A functional graph with its executable and the programs derived by vmap.

    A captured graph is for executing and for vmapping, never for differentiating: it has lost
    ``no_grad`` regions and custom rules. Derivatives come from the tape (see ``segment.py``).

    Attributes:
        graph: The graph and what becomes of its outputs.
        module: The graph itself.
        name: Shown by the report.
        children: Programs derived from this one, by how they were batched.
        draws: Whether it draws random numbers, so that vmap matters to it on any operands.
        timings: Seconds per stage.
        kept: Positions of operands that an earlier graph computed for this one, in any layout.
        sizes: Its open sizes, if it has any; then there is an executable for each answer to what
            was asked about them when it was compiled.
    """

    def __init__(
        self, graph: FunctionalGraph, settings: Settings, executables: Executables | None = None
    ) -> None:
        """Wrap a graph; nothing is compiled yet.

        Args:
            graph: The graph.
            settings: Shared by everything derived from one compiled function.
            executables: Where an executable of an equal graph may be found.
        """
        self.graph = graph
        self.module = module = graph.module
        self.name = graph.name
        self.settings = settings
        self.kept = graph.kept
        self._executables = executables
        self.timings: dict[str, float] = {}
        self.children: Derived[_BatchKey, tuple[GraphProgram, _Dims]] = Derived()
        self._lowered: Lowered | None = None
        self._layouts: dict[int, Layout] = {}
        self._variants: list[tuple[Conditions, Lowered]] = []
        self._closes = False  # whether the compiler failed on it with open sizes
        placeholders = graphs.inputs(module)
        # A compiler isn't given operands that the graph doesn't use.
        self._used = [index for index, node in enumerate(placeholders) if node.users]
        self.arity = len(placeholders)
        self.draws = any(
            graphs.is_random(node) or node.target in OF_TORCH for node in module.graph.nodes
        )
        self.sizes = OpenSizes.of(module)

    @property
    def lowered(self) -> Lowered:
        """The executable, compiled at first use; with open sizes, the one made last."""
        if self._lowered is None:
            with self.settings.lock, StateKept():
                if self._lowered is None:
                    self._lowered = self._lower()
        return self._lowered

    def _lowered_for(self, sizes: tuple[int, ...]) -> Lowered:
        """The executable for open sizes of which what it assumes is true."""
        found = self._variant(sizes)
        if found is not None:
            return found
        with self.settings.lock, StateKept():
            found = self._variant(sizes)
            if found is not None:
                return found
            if self.sizes is None:
                raise RuntimeError("a graph without open sizes")
            conditions = self.sizes.conditions()
            by_symbol = dict(zip(self.sizes.symbols, sizes, strict=True))
            with self.sizes.environment.answering(by_symbol, conditions.answers):
                self._lowered = self._lower_open(self.sizes, sizes)
                if self._closes:
                    at_present = self.sizes.environment.at_present
                    conditions.answers.update({each: at_present(each) for each in by_symbol})
            kept = self._variants[-config.get().backward_layouts :]
            self._variants = [*kept, (conditions, self._lowered)]
            return self._lowered

    def _lower_open(self, open_sizes: OpenSizes, sizes: tuple[int, ...]) -> Lowered:
        """The graph with its sizes open, or for these alone if the compiler fails on that one.

        A forward that fails isn't rescued here: its call is captured again without open sizes.
        """
        if not self._closes:
            try:
                return self._lower()
            except StageError as error:
                if self.graph.kind != "backward":
                    raise
                _logger.info("%s is compiled for each size: %s", self.name, error)
        pruned = self._pruned()
        closed = replace(pruned, module=open_sizes.closed(pruned.module, sizes))
        lowered = open_sizes.taking_sizes(self._counted(closed))
        self._closes = True
        return lowered

    def _variant(self, sizes: tuple[int, ...]) -> Lowered | None:
        """An executable that exists and may be used for these sizes."""
        for conditions, lowered in self._variants:
            if conditions.hold(sizes):
                return lowered
        return None

    @property
    def assumed(self) -> Conditions | None:
        """What ``lowered`` assumes about open sizes, if there are any."""
        return self._variants[-1][0] if self._variants else None

    @property
    def variants(self) -> list[tuple[Conditions | None, Lowered]]:
        """The executables that exist, each with what it assumes about open sizes."""
        if self.sizes is not None:
            return [*self._variants]
        return [] if self._lowered is None else [(None, self._lowered)]

    @property
    def is_compiled(self) -> bool:
        """Whether the graph has been handed to the compiler."""
        return self._lowered is not None

    @property
    def used(self) -> tuple[int, ...]:
        """Positions of the operands that the executable takes; the others aren't read."""
        return tuple(self._used)

    def _lower(self) -> Lowered:
        return self._counted(None)

    def _counted(self, closed: FunctionalGraph | None) -> Lowered:
        """The executable of the graph, or of it for some sizes alone."""
        with guards.autocast_as(()):  # a compiler traces, too
            if closed is None:
                lowered = self._executable()
            else:
                lowered = compile_graph(closed, self.settings, self._executables)
        self.timings |= lowered.timings
        statistics = self.settings.statistics
        if lowered.shared:
            statistics.graphs_shared += 1
        else:
            statistics.graphs_compiled += 1
        return lowered

    def _executable(self) -> Lowered:
        return compile_graph(self._pruned(), self.settings, self._executables)

    def _pruned(self) -> FunctionalGraph:
        """The graph with the inputs of ``used`` only, laid out as they came."""
        module = with_inputs(self.module, self._used)
        if not self._layouts:
            return replace(self.graph, module=module)
        if module is self.module:
            module = with_inputs(module, self._used, anew=True)
        places = {position: place for place, position in enumerate(self._used)}
        layouts = {places[position]: layout for position, layout in self._layouts.items()}
        return replace(self.graph, module=kept_layouts.relaid(module, layouts))

    def _first_lowered(self, operands: Sequence[torch.Tensor]) -> Lowered:
        """The executable, compiled for the layouts of what was kept for it."""
        with self.settings.lock, StateKept():
            if self._lowered is None:
                given = {place: operands[place] for place in self.kept if place in self._used}
                self._layouts = kept_layouts.chosen(self.module, given)
            return self.lowered

    def traced_layouts(self, positions: Sequence[int]) -> dict[int, Layout | None]:
        """The layouts that some of the graph's inputs were traced with."""
        return kept_layouts.traced_layouts(self.module, positions)

    def fits(self, operands: Mapping[int, torch.Tensor]) -> bool:
        """Whether operands, by position, have the layouts that the executable relies on."""
        if self.kept and self._lowered is None:
            return False
        layouts = self.lowered.layouts
        if layouts is None:
            placeholders = graphs.inputs(self.module)
            layouts = layouts_of([graphs.value_of(placeholders[index]) for index in self._used])
        return layouts is not None and all(
            tuple(operands[index].shape) == layout.shape and layout.fits(operands[index])
            for index, layout in zip(self._used, layouts, strict=True)
            if index in operands
        )

    def __call__(self, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the graph at whatever level the operands are.

        Below every transform the executable runs; at a vmap level the batched graph is derived
        and called one level below; a capture in progress records the graph's ops instead.
        """
        around = situation()
        if self.kept and (around.transforms or around.modes):
            operands = tuple(kept_layouts.as_traced(self.traced_layouts(self.kept), operands))
        if around.transforms:
            refuse_behind_levels(operands, self.settings.name)
            return call_at_level(self, operands)
        if around.modes:
            refuse_under_mode(self.module.graph.nodes, self.settings.name)
            sizes = () if self.sizes is None else self.sizes.read(operands)
            return tuple(self.module.forward(*operands, *sizes))  # Hooks see no module.
        return self.execute(operands)

    def execute(
        self, operands: Sequence[torch.Tensor], *, trusting: bool = False
    ) -> tuple[torch.Tensor, ...]:
        """Run the executable on plain tensors.

        Args:
            operands: The tensors.
            trusting: Whether they are known to have the layouts that the graph was made for.
        """
        if any(map(autograd.is_zero_tensor, operands)):
            # Autograd's formulas return zeros without memory, which a kernel would read.
            operands = [t.clone() if autograd.is_zero_tensor(t) else t for t in operands]
        lowered, used, sizes = self._lowered, self._used, self.sizes
        numbers: tuple[Any, ...] = ()
        if sizes is not None:
            numbers = sizes.read(operands)
            lowered = self._lowered_for(numbers)
        elif lowered is None:
            lowered = self._first_lowered(operands) if self.kept else self.lowered
        if self.kept and lowered.layouts is None:
            operands = kept_layouts.as_traced(self.traced_layouts(self.kept), operands)
        run = lowered.trusting if trusting else lowered.run
        if len(used) != self.arity or numbers:
            operands = [*[operands[index] for index in used], *numbers]
        if guards.any_autocast_enabled():
            # What autocasts was recorded as casts; casting again would undo a region of the
            # function that switched it off.
            with torch.no_grad(), guards.autocast_as(()):
                return tuple(run(list(operands)))
        with torch.no_grad():
            return tuple(run(list(operands)))

    def batched(
        self,
        operands: Sequence[torch.Tensor],
        in_dims: tuple[int | None, ...],
        batch: BatchInfo,
    ) -> tuple[GraphProgram, tuple[int | None, ...]]:
        """The program that runs this one on a batch, and the outputs' batch dimensions.

        Args:
            operands: Operands with their batch dimension explicit.
            in_dims: Where it is, None for operands that have none.
            batch: Batch size and randomness.
        """
        key = (in_dims, batch, tuple([layout_key(operand) for operand in operands]))
        found = self.children.get(key)
        if found is None:
            with self.settings.lock, StateKept():
                found = self.children.get(key) or self._derive_batched(operands, in_dims, batch)
                self.children[key] = found
        return found

    def _derive_batched(
        self,
        operands: Sequence[torch.Tensor],
        in_dims: tuple[int | None, ...],
        batch: BatchInfo,
    ) -> tuple[GraphProgram, tuple[int | None, ...]]:
        start = time.perf_counter()
        tape = Tape()
        inputs = [
            tape.placeholder(f"operand_{i}", spec_of(operand).without_grad(), operand)
            for i, operand in enumerate(operands)
        ]
        available = [tape.node_of(tensor) for tensor in inputs]
        module = self.module
        if self.sizes is not None:
            module = self.sizes.closed(module, self.sizes.read(operands, in_dims))
        rewritten = batchable(module)
        if self.draws:
            rewritten = with_draws_in_place(rewritten)
        with tape.recording(grad_mode=False), with_derivatives():
            outputs, out_dims = run_batched(rewritten, in_dims, batch, inputs)
            wanted = [tape.node_of(tensor) for tensor in outputs]
        module = tape.extract(available, wanted)
        graph = replace(self.graph, module=module, name=f"vmap({self.name})", kept=())
        program = GraphProgram(graph, self.settings)
        program.timings["trace"] = time.perf_counter() - start
        return program, out_dims


def with_inputs(
    module: fx.GraphModule, positions: Sequence[int], *, anew: bool = False
) -> fx.GraphModule:
    """The graph with some of its tensor inputs, which are all that it uses; and its sizes."""
    placeholders = graphs.inputs(module)
    if len(positions) == len(placeholders) and not anew:
        return module
    kept = {placeholders[position] for position in positions}
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op != "placeholder" or node in kept or graphs.is_size_input(node):
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
    return forget_source_with(fx.GraphModule(module, graph))
