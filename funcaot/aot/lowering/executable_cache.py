"""Backwards of one program share executables: equal graphs run one, whatever the tangents' strides.

A backward is traced for the real strides of its tangents, since a user's rule may look at them.
Tracing is cheap; compiling isn't. So a graph that came out equal to an earlier one except for
those strides runs the earlier executable on tangents that are copied to the layout it knows.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from funcaot import config
from funcaot._torch.tensors.ops import OpOverload
from funcaot.aot.graph import graphs
from funcaot.aot.graph.layout import Layout, Restriding
from funcaot.aot.graph.tensor_spec import is_dense, spec_of
from funcaot.aot.lowering.lower import Lowered, Request
from funcaot.backends import eager
from funcaot.backends.compiler import Compiler
from funcaot.errors import RecompileWarning

TANGENT = "tangent"


@dataclass(frozen=True)
class Description:
    """A graph as a value: two graphs with equal descriptions compute the same.

    Attributes:
        key: Ops, arguments and operands, without the strides of tangents.
        tangents: Position and layout of each tangent among the placeholders.
        rigid: Whether some op means another thing for other strides.
        is_open: Whether it has open sizes: what a compiler assumed about them isn't described, so
            that no other graph shares its executable.
    """

    key: tuple[Any, ...]
    tangents: tuple[tuple[int, Layout], ...]
    rigid: bool
    is_open: bool = False


@dataclass(frozen=True)
class Found:
    """What was found for a graph.

    Attributes:
        compiler: The compiler to use.
        lowered: An executable that exists.
        keep: Notes one that was made, for graphs to come.
    """

    compiler: Compiler
    lowered: Lowered | None = None
    keep: Callable[[Lowered], None] = lambda made: None


class Executables:
    """What was compiled for the backwards of one program."""

    def __init__(self, name: str) -> None:
        """Start empty.

        Args:
            name: The user's function, for the warning.
        """
        self._name = name
        self._made: dict[tuple[Any, ...], list[tuple[Description, Lowered]]] = {}
        self._layouts: dict[tuple[Any, ...], set[Any]] = {}
        self._warned = False

    def find(self, request: Request) -> Found:
        """An executable for a graph; or which compiler makes one, and how to keep it.

        The caller holds the function's lock.
        """
        graph, compiler = request.graph, request.compiler
        description = describe(graph.module) if compiler.compiles else None
        if description is None:
            return Found(compiler)
        candidates = self._made.setdefault((description.key, graph.roles), [])
        if description.is_open:
            candidates = []
        for earlier, lowered in candidates:
            adapted = _adapted(earlier, lowered, description)
            if adapted is not None:
                return Found(compiler, adapted)
        if not self._may_compile(graph.module, description):
            return Found(eager.COMPILER)
        return Found(compiler, keep=lambda made: candidates.append((description, made)))

    def _may_compile(self, module: fx.GraphModule, description: Description) -> bool:
        """Whether to compile for one more layout of tangents; if not, say so once."""
        limit = config.get().backward_layouts
        # Tangents are named anew by each trace; which outputs have one is in the positions.
        operands = tuple(
            "tangent" if node.meta.get(TANGENT) else node.name
            for node in module.graph.nodes
            if node.op == "placeholder"
        )
        layouts = self._layouts.setdefault((operands, len(_outputs(module))), set())
        if len(layouts) < limit or description.tangents in layouts:
            layouts.add(description.tangents)
            return True
        if not self._warned:
            self._warned = True
            shown = ", ".join(str(list(layout.stride)) for _, layout in description.tangents)
            warnings.warn(
                f"The backward of {self._name} was compiled for {limit} layouts of grad_outputs. "
                f"For further ones, now with strides {shown}, its traced graph runs as it is. "
                "Make grad_outputs contiguous, or raise funcaot.config's backward_layouts.",
                RecompileWarning,
                stacklevel=2,
            )
        return False


def _adapted(earlier: Description, lowered: Lowered, wanted: Description) -> Lowered | None:
    """The earlier executable for the wanted layouts, None if it can't stand in."""
    changes: list[tuple[int, Layout]] = []
    for (position, known), (_, given) in zip(earlier.tangents, wanted.tangents, strict=True):
        if known == given:
            continue
        if earlier.rigid or wanted.rigid or not is_dense(known.shape, known.stride):
            return None
        changes.append((position, known))
    run, trusting = lowered.run, lowered.trusting
    if changes:
        run, trusting = Restriding(run, changes), Restriding(trusting, changes)
    return dataclasses.replace(lowered, run=run, trusting=trusting, shared=True)


def describe(module: fx.GraphModule) -> Description | None:
    """Read a graph as a value; None if it has a part that can't be compared."""
    numbers: dict[fx.Node, int] = {}
    parts: list[Any] = []
    tangents: list[tuple[int, Layout]] = []
    rigid = is_open = False
    for node in module.graph.nodes:
        numbers[node] = len(numbers)
        if graphs.is_size(node):
            is_open = True
        if node.op == "placeholder" and graphs.is_size(node):
            parts.append(str(graphs.value_of(node)))
            continue
        if node.op == "placeholder":
            value = graphs.value_of(node)
            if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
                return None
            spec = spec_of(value).without_grad()
            if node.meta.get(TANGENT) and not any(spec.flags):
                tangents.append((numbers[node], Layout(spec.shape, spec.stride)))
                parts.append((spec.shape, spec.dtype, spec.device))
            else:
                parts.append(spec)
            continue
        if node.op == "output":
            parts.append(tuple(_output_key(item, numbers) for item in node.args[0]))
            continue
        target = _target_key(node, module)
        if target is None:
            return None
        rigid |= isinstance(node.target, OpOverload) and "as_strided" in node.target.name()
        parts.append((target, _key(node.args, numbers), _key(node.kwargs, numbers)))
    key = tuple(parts)
    try:
        hash(key)
    except TypeError:
        return None
    return Description(key, tuple(tangents), rigid, is_open)


def _outputs(module: fx.GraphModule) -> Sequence[Any]:
    return next(iter(reversed(module.graph.nodes))).args[0]  # type: ignore[return-value]


def _output_key(item: Any, numbers: dict[fx.Node, int]) -> Any:
    if not isinstance(item, fx.Node):
        return _key(item, numbers)
    value = graphs.value_of(item)
    if not isinstance(value, torch.Tensor):
        return (numbers[item], type(value))
    if value.layout is not torch.strided:  # how many elements it has follows from the graph
        return (numbers[item], value.layout, value.dtype)
    return (numbers[item], spec_of(value).without_grad())


def _target_key(node: fx.Node, module: fx.GraphModule) -> Any:
    """What a node calls or reads; None if two of them can't be told to be the same."""
    if node.op == "get_attr":
        value = module
        for name in str(node.target).split("."):
            value = getattr(value, name)
        return ("attribute", id(value))
    if graphs.is_function_node(node):
        # Each trace makes its own node of a Function; its operands may be of any type.
        return None
    return node.target if node.op == "call_function" else None


def _key(value: Any, numbers: dict[fx.Node, int]) -> Any:
    """Arguments as a hashable value; 1, 1.0 and True are three things, as are 0.0 and -0.0."""
    if isinstance(value, fx.Node):
        return ("node", numbers[value])
    if isinstance(value, list | tuple):
        return (type(value).__name__, *(_key(item, numbers) for item in value))
    if isinstance(value, dict):
        return ("dict", *((name, _key(item, numbers)) for name, item in value.items()))
    if isinstance(value, slice):
        return ("slice", _key((value.start, value.stop, value.step), numbers))
    if isinstance(value, float | complex):
        return (type(value), repr(value))
    return (type(value), value)
