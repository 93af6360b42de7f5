"""The stages of ``pipeline.compile_graph``: inline, decompose, check, hand over to the compiler."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from funcaot import config
from funcaot._torch.tensors.seeding import drawing_nothing
from funcaot._torch.tracing.graph_code import forget_source_with
from funcaot._torch.tracing.seen_classes import classes_shown
from funcaot.aot.graph import graph_checks, graphs
from funcaot.aot.graph.functional_graph import FunctionalGraph
from funcaot.aot.graph.graph_checks import NO_ROLES
from funcaot.aot.graph.layout import Layout, checking, layouts_of
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.lowering import kept_layouts
from funcaot.aot.lowering.contract import Contract, Executable, Run, contract_of
from funcaot.aot.lowering.joined_slices import joined_slices
from funcaot.aot.lowering.opaque_parts import between_opaque
from funcaot.aot.lowering.plain_ops import PlainOps, Recorded
from funcaot.aot.lowering.premises_first import premises_first
from funcaot.aot.lowering.strided_windows import by_elements
from funcaot.aot.tape.tape import Tape
from funcaot.backends import eager
from funcaot.backends.compiler import Compiler
from funcaot.classes import premise
from funcaot.errors import StageError


@dataclass(frozen=True)
class Lowered:
    """An executable graph.

    Attributes:
        run: Callable on a list of tensors; returns a sequence of tensors.
        trusting: The same, for operands that are known to have the layouts it was compiled for.
        module: The graph that went to the compiler.
        compiler: Name of the compiler that really made it.
        shared: Whether it was made for another graph.
        layouts: Those of the operands that it was compiled for, if they matter and are known.
        timings: Seconds per stage.
        made_under: Settings of the process that it was compiled under; None if nobody noted them.
    """

    run: Callable[[list[Any]], Sequence[Any]]
    trusting: Callable[[list[Any]], Sequence[Any]]
    module: fx.GraphModule
    compiler: str
    shared: bool = False
    layouts: tuple[Layout, ...] | None = None
    timings: dict[str, float] = field(default_factory=dict)
    made_under: dict[str, str] | None = None


@dataclass(frozen=True)
class Writes:
    """New values that a graph writes into its inputs when all else is done.

    Attributes:
        pairs: Position of an input, and of the output that is written into it and not returned.
        kept: Positions of the outputs that are returned.
        decomposed: The graph that the compiler gets, but for the writes, which are proved for it.
    """

    pairs: tuple[tuple[int, int], ...]
    kept: tuple[int, ...]
    decomposed: fx.GraphModule


@dataclass(frozen=True, eq=False)
class Request:
    """A graph that is to be made executable.

    Attributes:
        graph: The graph, as extracted from a tape.
        compiler: The backend.
        name: The user's function, for messages.
        writes: What the executable writes into inputs, if it does; the graph has no opaque node.
    """

    graph: FunctionalGraph
    compiler: Compiler
    name: str
    writes: Writes | None = None

    @property
    def what(self) -> str:
        """How messages name it."""
        return f"{self.graph.kind} graph of {self.name}"


def promised(request: Request) -> Contract:
    """What the executable has to keep to: strides, dtypes and memory of the captured graph."""
    graph, writes = request.graph, request.writes
    if writes is None:
        return contract_of(graph.module, request.what, graph.roles)
    written = frozenset(position for position, _ in writes.pairs)
    return contract_of(graph.module, request.what, graph.roles, written, writes.kept)


def as_compiler_wants(request: Request) -> fx.GraphModule:
    """The graph with Functions inlined and ops decomposed; proved writes have it already."""
    if request.writes is not None:
        return request.writes.decomposed
    return decomposed(request.graph.module, request.compiler)


def check(module: fx.GraphModule, request: Request) -> None:
    """Refuse a graph that isn't functional, or whose results share memory.

    Raises:
        GraphError: It shows the graph.
    """
    graph_checks.check_functional(module, request.what)
    if config.get().check_aliases:
        graph_checks.check_results_apart(module, request.graph.roles, request.what)


def compile_checked(module: fx.GraphModule, request: Request, contract: Contract) -> Lowered:
    """Hand the graph to the compiler, in parts if nodes in it run alone.

    Raises:
        StageError: If the compiler fails; ``__cause__`` is its own exception.
    """
    compiler, writes = request.compiler, request.writes
    kind, name = request.graph.kind, request.name
    premises_first(module)
    if compiler.inline and any(map(graphs.runs_alone, module.graph.nodes)):
        run = between_opaque(module, lambda part: _compile_part(part, compiler, kind, name))
        kept = Executable(run, contract, settles=False)
        return Lowered(kept, kept, module, compiler.name)
    if writes is not None:
        module = _with_writes(module, writes.pairs, writes.kept)
        graph_checks.check_writes_last(module, request.what)
    return _compile(module, compiler, kind, name, contract)


def decomposed(module: fx.GraphModule, compiler: Compiler) -> fx.GraphModule:
    """The graph with Functions inlined and ops decomposed, as a compiler wants it."""
    # Decompositions mean strided tensors; a graph with others runs as it is.
    decompositions = compiler.decompositions if _has_layouts_for(module, compiler) else None
    if compiler.inline and (decompositions or _has_function_nodes(module)):
        table = decompositions() if decompositions else {}
        module = _retrace(joined_slices(module), table)
        while _has_function_nodes(module, traceable=True):
            # Their forward called another Function.
            module = _retrace(module, table)
    return module


def _compile_part(module: fx.GraphModule, compiler: Compiler, kind: str, name: str) -> Run:
    """Compile what lies between opaque nodes; they may see all that it makes."""
    contract = contract_of(module, f"part of the {kind} graph of {name}", NO_ROLES)
    return _compile(module, compiler, kind, name, contract).run


def _compile(
    module: fx.GraphModule, compiler: Compiler, kind: str, name: str, contract: Contract
) -> Lowered:
    examples = [graphs.value_of(node) for node in module.graph.nodes if node.op == "placeholder"]
    tensors = [graphs.value_of(node) for node in graphs.inputs(module)]
    computes = any(node.op == "call_function" for node in module.graph.nodes)
    if compiler.runs_eager_ops:
        contract = contract.without_strides()
    if not (computes and compiler.handles(tensors) and _has_layouts_for(module, compiler)):
        run = eager.COMPILER.compile(module, examples, kind)
        kept = Executable(run, contract, settles=_settles(module))
        return Lowered(kept, kept, module, "eager")
    settles = compiler.settles and _settles(module)
    try:
        with drawing_nothing():  # Inductor times products of random matrices on GPUs.
            made = compiler.compile(module, examples, kind)
    except Exception as error:
        if "InvalidCxxCompiler" in f"{type(error).__name__} {error}":
            raise _no_cxx_compiler(name) from None  # nothing of Inductor's own frames helps
        raise StageError(
            f"The compiler {compiler.name!r} failed on the {kind} graph of {name}: "
            f"{type(error).__name__}: {error}",
            remedy='compile with backend="eager" to run the captured graph as it is.',
        ) from error
    run = Executable(made, contract, settles=settles)
    layouts = None if compiler.checks_layouts else layouts_of(examples)
    checked = run if layouts is None else checking(run, layouts, f"the {kind} graph of {name}")
    return Lowered(checked, run, module, compiler.name, layouts=layouts)


def _with_writes(
    module: fx.GraphModule, pairs: Sequence[tuple[int, int]], kept: Sequence[int]
) -> fx.GraphModule:
    """The graph with copies into inputs at its end, returning what is left of its outputs.

    Args:
        module: The graph, functional until now.
        pairs: Position of an input, and of the output that is copied into it.
        kept: Positions of the outputs that are returned.
    """
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op != "output":
            copies[node] = graph.node_copy(node, lambda argument: copies[argument])
            continue
        values = node.args[0]
        placeholders = [node for node in copies.values() if node.op == "placeholder"]
        for position, output in pairs:
            target = placeholders[position]
            value = copies[values[output]]
            copy = graph.call_function(torch.ops.aten.copy_.default, (target, value))
            copy.meta = dict(target.meta)
        graph.output(tuple(copies[values[position]] for position in kept))
    return forget_source_with(fx.GraphModule(module, graph))


def _no_cxx_compiler(name: str) -> StageError:
    return StageError(
        f"No working C++ compiler was found, and Inductor needs one to compile {name}.",
        expected="g++ or clang++ on the PATH, or one named by the environment variable CXX",
        got=f"CXX={os.environ.get('CXX', '')!r}",
        remedy='install one (`apt install g++`), or compile with backend="eager".',
    )


def _has_layouts_for(module: fx.GraphModule, compiler: Compiler) -> bool:
    """Whether the compiler takes all that isn't strided: inputs, and what is computed."""
    values = [node.meta.get("val") for node in module.graph.nodes]
    return all(
        compiler.accepts(value)
        for value in values
        if isinstance(value, torch.Tensor) and value.layout is not torch.strided
    )


def _settles(module: fx.GraphModule) -> bool:
    """Whether ops alone decide which memory results lie in: a Function runs user code."""
    return not any(map(graphs.is_function_node, module.graph.nodes))


def _has_function_nodes(module: fx.GraphModule, *, traceable: bool = False) -> bool:
    return any(
        graphs.is_function_node(node) and not (traceable and graphs.is_opaque(node))
        for node in module.graph.nodes
    )


def _retrace(module: fx.GraphModule, table: dict[Any, Callable[..., Any]]) -> fx.GraphModule:
    """Run the graph once more below autograd, with Functions inlined and ops decomposed."""
    sizes = [
        graphs.value_of(node)
        for node in module.graph.nodes
        if node.op == "placeholder" and graphs.is_size(node)
    ]
    tape = Tape(sizes=sizes[0].node.shape_env if sizes else None)
    inputs: list[Any] = [
        tape.placeholder(node.name, spec_of(value).without_grad(), value)
        for node in graphs.inputs(module)
        for value in [graphs.value_of(node)]
    ]
    available = [tape.node_of(tensor) for tensor in inputs] + list(map(tape.size_node, sizes))
    inputs += sizes
    # The values here are made up: a decomposition that asks for them is an error.
    with tape.recording(grad_mode=False), tape.decomposing(table), premise.refused():
        outputs = _Inliner(module, PlainOps(module, tape, table)).run(*inputs)
        outputs = kept_layouts.with_traced_layouts(module, outputs)
        wanted = [tape.node_of(tensor) for tensor in outputs]
    retraced = tape.extract(available, wanted)
    kept_layouts.pass_on(module, retraced)
    return retraced


class _Inliner(fx.Interpreter):
    """Runs a graph node by node; a user's Function runs its forward instead of the operator."""

    def __init__(self, module: fx.GraphModule, plain: PlainOps) -> None:
        """Keep every value: places in memory are those in what a view was made of."""
        super().__init__(module, garbage_collect_values=False)
        self._plain = plain

    def run_node(self, n: fx.Node) -> Any:
        """A decomposition's result has the op's dtype: that of a sum of int8 is int64."""
        recorded = self._plain.record(n, self.env)
        if recorded is not None:
            return recorded
        for source in n.all_input_nodes:
            self._value(source)
        made = by_elements(n, self._value)
        if made is None:
            made = super().run_node(n)
        traced = n.meta.get("val")
        if isinstance(made, torch.Tensor) and isinstance(traced, torch.Tensor):
            made = made if made.dtype == traced.dtype else made.to(traced.dtype)
        if any(map(kept_layouts.reads_strides, n.users)):
            # A decomposition may choose other ones.
            return kept_layouts.as_traced_value(made, graphs.value_of(n))
        return made

    def _value(self, node: fx.Node) -> Any:
        """What was made of a node, as a tensor that the tape records."""
        value = self.env[node]
        if isinstance(value, Recorded):
            value = self.env[node] = value.wrapped()
        return value

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if hasattr(target, "inline") and target.opaque is None:
            with classes_shown():
                return target.inline(*args, **kwargs)
        return super().call_function(kept_layouts.target_for(target), args, kwargs)
