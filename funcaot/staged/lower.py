"""``funcaot.lower``: a call is captured, looked at, and compiled when that is asked for."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from functools import cached_property, partial
from html import escape
from typing import Any

import torch
from torch import fx

from funcaot._torch.dynamo.dynamo import without_dynamo
from funcaot._torch.levels import functorch
from funcaot._torch.levels.thread_state import StateKept
from funcaot._torch.tensors.guards import autocast_state
from funcaot._torch.tensors.pytree import tree_map
from funcaot._torch.tracing import tracing
from funcaot.aot.graph.tensor_spec import spec_of
from funcaot.aot.lowering.lower import decomposed
from funcaot.aot.pipeline import compile_backward
from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.aot.runtime.entry import Entry, make_entry
from funcaot.aot.runtime.module import compiled_of
from funcaot.aot.segment.backward import BackwardKey
from funcaot.aot.segment.segment import Segment
from funcaot.aot.signature.signature import Signature, read_signature
from funcaot.aot.state.first_state import with_states
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.api import compile as compile_function
from funcaot.errors import UnsupportedError
from funcaot.report import markup
from funcaot.report.build import residual_report
from funcaot.report.html import residuals_table
from funcaot.staged.cost import Cost, cost_of


def lower(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Lowered:
    """Capture a call without running it, to look at what would be compiled.

    The function's Python code runs once, on tensors without values. Nothing is compiled before
    ``compile`` is called.

    Args:
        function: A function or an ``nn.Module``. What ``funcaot.compile`` returned keeps its
            backend and policy.
        *args: Arguments; a tensor on the device ``meta`` stands for one on the CPU that looks
            the same, whose values nobody knows.
        **kwargs: Keyword arguments.

    Returns:
        The stages.

    Raises:
        UnsupportedError: For what can't be captured, and inside of a transform.
        Exception: Whatever the function raises, unchanged.

    Example:
        >>> import funcaot, torch
        >>> def energy(x, w):
        ...     return (x @ w).tanh().sum()
        >>> x = torch.empty(8, 4, device="meta")
        >>> w = torch.empty(4, 2, requires_grad=True, device="meta")
        >>> lowered = funcaot.lower(energy, x, w)
        >>> lowered.cost.flops  # 2 * 8 * 4 * 2 of the product, 8 * 2 of tanh, 1 of the sum
        145
        >>> [node.name for node in lowered.backward.graph.nodes if node.op == "output"]
        ['output']
    """
    if functorch.transforms_active() or tracing.is_abstract():
        raise UnsupportedError(
            "funcaot.lower was called inside of a transform or of a capture.",
            remedy="lower the function under the transform: funcaot.lower(vmap(f), ...).",
        )
    compiled = _compiled(function)
    args, kwargs = tree_map(_on_the_cpu, (args, kwargs))
    settings = compiled.settings
    signature, leaves = read_signature(settings.name, args, kwargs)
    with settings.lock, StateKept(), without_dynamo():
        call = args, kwargs
        try:
            with contextlib.ExitStack() as made:
                capture = partial(make_entry, compiled.function, signature, leaves, call, settings)
                (entry, _), _ = with_states(capture, made)
        except FirstStepError as error:
            raise UnsupportedError(
                f"{settings.name} {error}.",
                remedy="call it once, then lower it.",
            ) from None
        entry.capture.tape.forget_values()
    return Lowered(compiled, entry)


def _compiled(function: Any) -> CompiledFunction:
    """A compiled function of its own, so that looking changes nothing."""
    known = compiled_of(function) if isinstance(function, torch.nn.Module) else function
    if isinstance(known, CompiledFunction):
        settings = dataclasses.replace(known.settings)
        return CompiledFunction(known.function, settings)
    made: Any = compile_function(function)
    return compiled_of(made) if isinstance(made, torch.nn.Module) else made  # type: ignore


def _on_the_cpu(leaf: Any) -> Any:
    """A tensor with memory that nobody has written to, for one without memory."""
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != "meta":
        return leaf
    made = torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device="cpu")
    return made.requires_grad_(leaf.requires_grad)


class Lowered:
    """A call in stages.

    Example:
        >>> import torch, funcaot
        >>> lowered = funcaot.lower(lambda x: x.sin().sum(), torch.empty(3, device="meta"))
        >>> [node.name for node in lowered.graph.graph.nodes if node.op == "call_function"]
        ['sin', 'sum_1']
    """

    def __init__(self, compiled: CompiledFunction, entry: Entry) -> None:
        """Made by ``lower``."""
        self._compiled, self._entry = compiled, entry

    @property
    def signature(self) -> Signature:
        """What calls it serves."""
        return self._entry.signature

    @cached_property
    def graph(self) -> fx.GraphModule:
        """The functional graph of the forward, with what it keeps for a backward as outputs."""
        form = self._segment.form(keeping=self._entry.differentiable)
        return form.graph.module

    @property
    def effects(self) -> str:
        """What a call does beside its graph, a line each."""
        return str(self._entry.effects)

    @cached_property
    def backward(self) -> fx.GraphModule | None:
        """The graph of the backward, for gradients as they usually come; None without one."""
        if not self._entry.differentiable:
            return None
        segment = self._segment
        form = segment.form(keeping=True)
        needs = tuple(operand.leaf is not None for operand in segment.operands)
        saved = {residual.operand for residual in form.residuals}
        edges = tuple(i for i, needed in enumerate(needs) if needed and i not in saved)
        specs = tuple(
            spec_of(output).without_grad() if output.requires_grad else None
            for output in segment.graph_outputs
        )
        key = BackwardKey(needs, specs, False, edges, autocast_state())
        with segment.settings.lock, StateKept(), without_dynamo():
            found = compile_backward(segment, form, key, [None] * len(specs), ())
        return None if found.segment is None else found.segment.form(keeping=False).graph.module

    @property
    def code(self) -> str:
        """The forward graph as Python code, with shapes."""
        return self.graph.print_readable(print_output=False)

    @cached_property
    def cost(self) -> Cost:
        """What a call costs, without its backward."""
        return cost_of(self._inlined(self.graph))

    @cached_property
    def backward_cost(self) -> Cost | None:
        """What the backward costs; None without one."""
        return None if self.backward is None else cost_of(self._inlined(self.backward))

    def compile(self) -> CompiledFunction:
        """Compile the forward; calls that look like this one capture and compile no more.

        Returns:
            A compiled function; its backward is compiled when it is first invoked.
        """
        entry = self._entry
        if entry not in self._compiled.entries:
            self._compiled.adopt(entry)
        if self._segment.output_nodes:
            functions = entry.functions
            chosen = functions.keeping if entry.differentiable else functions.plain
            _ = chosen.program.lowered
        return self._compiled

    @property
    def _segment(self) -> Segment:
        return self._entry.forward.segment

    def _inlined(self, module: fx.GraphModule) -> fx.GraphModule:
        """The graph with the ops of users' Functions in their place."""
        compiler = dataclasses.replace(
            self._compiled.settings.compiler, inline=True, decompositions=None
        )
        return decomposed(module, compiler)

    def _repr_html_(self) -> str:
        """For notebooks: the stages so far, without making another one."""
        form = self._segment.form(keeping=self._entry.differentiable)
        residuals = form.residuals if self._entry.differentiable else ()
        kept = [residual_report(self._segment, each) for each in residuals]
        parts = [
            f"<div><b>{escape(self._compiled.settings.name)}</b>, lowered for "
            f"{markup.code(self.signature)}</div>",
            f"<div>forward: {escape(str(self.cost))}</div>",
            markup.folded(markup.word("graph"), markup.graph_code(self.graph)),
            markup.folded("effects", markup.lines_of(self.effects.splitlines())),
            residuals_table(kept),
        ]
        if self._entry.differentiable:
            parts.append(self._backward_html())
        return markup.framed(*parts, markup.timings(self._entry.forward.timings))

    def _backward_html(self) -> str:
        word = markup.word("backward")
        if "backward" not in self.__dict__:
            return f"<div>{word}: traced when <code>.backward</code> is asked for</div>"
        if self.backward is None:
            return f"<div>{word}: every gradient is None</div>"
        summary = f"{word}: {escape(str(self.backward_cost))}"
        return markup.folded(summary, markup.graph_code(self.backward))

    def __repr__(self) -> str:
        """One line."""
        return f"<funcaot lowered {self._compiled.settings.name}: {self.signature}>"
