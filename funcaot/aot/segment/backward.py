"""Tracing a backward when it is invoked: the tape continues with the real tangents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import fx

from funcaot._torch.autograd import autograd
from funcaot._torch.autograd.nodes import autograd_nodes, leaves_behind, stopping_at
from funcaot._torch.distributed.asked import Asked, as_it_was
from funcaot._torch.distributed.settings import loss_is_parallel
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.fake_values import is_fake
from funcaot.aot.graph import graphs
from funcaot.aot.graph.graph_checks import Roles
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.lowering.executable_cache import TANGENT
from funcaot.aot.reader.reader import Rules
from funcaot.aot.segment.backward_effects import BackwardMutation, Snapshot, Write
from funcaot.aot.segment.dependence import find_links_of_derivative
from funcaot.aot.segment.segment import Form, Operand, Segment
from funcaot.aot.signature.sizes import Conditions
from funcaot.aot.tape.masks import use_kept_masks
from funcaot.classes.traits import defined_at, display_name, origin_of, reverse_rule
from funcaot.errors import GraphError, UnsupportedError
from funcaot.rules.operands.kept import stored_while_traced
from funcaot.rules.returns import differentiated_twice

# Tangents on the tape, by the output of the graph that each belongs to.
Arrived: TypeAlias = dict[int, torch.Tensor]


class BackwardKey(NamedTuple):
    """What a backward is specialized on.

    Attributes:
        needs: Which operands need a gradient.
        tangents: Spec of each output's tangent, None where there is none.
        create_graph: Whether the backward will itself be differentiated.
        edges: Operands of the forward that are passed on only for their autograd edge.
        autocast: Device types that autocast while the backward runs, which its ops see as in eager.
        asked_by: Whether levels or dual numbers ask for it, if Functions may tell.
        variant: Counts backwards that differ in what they assume about open sizes.
        dispatch: Settings by which ops on wrappers are dispatched, where there are wrappers.
        pattern: Which things inside of wrappers are one object, where there are wrappers.
        stops: Positions in ``Segment.shown`` of tensors beyond which no gradient goes; theirs are
            asked for too.
    """

    needs: tuple[bool, ...]
    tangents: tuple[TensorSpec | None, ...]
    create_graph: bool
    edges: tuple[int, ...]
    autocast: tuple[Any, ...] = ()
    asked_by: str = ""
    variant: int = 0
    dispatch: tuple[Any, ...] = ()
    pattern: tuple[int, ...] = ()
    stops: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Backward:
    """A traced backward.

    Attributes:
        key: What it is specialized on.
        segment: From residuals, tangents and edges to gradients; None if there are none.
        targets: For each operand of the forward, and then each of ``key.stops``, which of
            the segment's outputs is its gradient, or None.
        mutations: What it overwrites besides.
        premises: Nodes that leave it if values aren't what it was traced for.
        timings: Seconds per stage.
        conditions: What it assumes about open sizes, if there are any.
        rules: Whether what user's rules read is as it was, if they ran and read something.
        asked: What was asked of process groups, with the answers.
    """

    key: BackwardKey
    segment: Segment | None
    targets: tuple[int | None, ...]
    mutations: tuple[BackwardMutation, ...] = ()
    premises: tuple[fx.Node, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    conditions: Conditions | None = None
    rules: Rules | None = None
    asked: tuple[Asked, ...] = ()

    @cached_property
    def read(self) -> Callable[[], bool] | None:
        """Whether what its trace read is as it was, if it read something."""
        return as_it_was(self.rules, self.asked)

    def verify(self) -> None:
        """Refuse a gradient or a write that no output of the segment stands for."""
        count = 0 if self.segment is None else len(self.segment.outputs)
        named = [target for target in self.targets if target is not None]
        named += [mutation.value for mutation in self.mutations]
        if len(set(named)) < len(named) or any(not 0 <= index < count for index in named):
            raise GraphError(f"A backward with {count} results names {named}.")

    @cached_property
    def reads(self) -> frozenset[fx.Node]:
        """Nodes in whose memory the values live that the backward reads or computes again.

        What was kept in place of a value, as booleans, stands for it.
        """
        if self.segment is None:
            return frozenset()
        given = {operand.node for operand in self.segment.operands}
        needed = graphs.closure(self.segment.output_nodes, given)
        used = {source for node in needed for source in node.all_input_nodes}
        read = used | (given & {*self.segment.output_nodes})
        read |= {node.meta["mask_of"] for node in read if "mask_of" in node.meta}
        return frozenset(map(graphs.view_root, read))

    def distribute(self, gradients: Sequence[Any]) -> tuple[Any, ...]:
        """One gradient per target, None where autograd gives none."""
        return tuple(None if target is None else gradients[target] for target in self.targets)


@dataclass(frozen=True)
class Pulled:
    """What a backward came to: gradients by operand, writes, premises, what else has to run."""

    gradients: dict[int, torch.Tensor] = field(default_factory=dict)
    writes: tuple[Write, ...] = ()
    premises: tuple[fx.Node, ...] = ()
    others: tuple[fx.Node, ...] = ()


def tangent_specs(tangents: Sequence[torch.Tensor | None]) -> tuple[TensorSpec | None, ...]:
    """Specs as leaves; one requires grad where a derivative of the derivative may flow through it.

    A gradient of a gradient that nobody can ask for isn't recorded, and what the backward returns
    requires grad exactly where it does in eager.
    """
    create_graph = autograd.gradients_are_differentiated()
    forward_mode = create_graph and tracing.forward_mode_active()
    specs: list[TensorSpec | None] = []
    for tangent in tangents:
        if tangent is None:
            specs.append(None)
            continue
        spec = spec_of(tangent, forward_mode=forward_mode)
        wanted = spec.requires_grad and create_graph
        specs.append(spec.with_grad() if wanted else spec.without_grad())
    return tuple(specs)


def arrive(
    segment: Segment,
    form: Form,
    key: BackwardKey,
    tangents: Sequence[torch.Tensor | None],
    values: Sequence[torch.Tensor],
) -> Arrived:
    """Put the tangents on the tape, by output, and tell it the values that the forward kept."""
    for residual, value in zip(form.residuals, values, strict=bool(values)):
        segment.tape.provide(residual.node, value)
    placed: dict[int, torch.Tensor] = {}
    for index, (spec, tangent) in enumerate(zip(key.tangents, tangents, strict=True)):
        if spec is not None:
            of = segment.graph_outputs[index] if index < len(segment.graph_outputs) else None
            placed[index] = segment.tape.placeholder(f"tangent_{index}", spec, tangent, of)
            segment.node_of(placed[index]).meta[TANGENT] = True
    segment.tape.wrappers.shared.clear()
    return placed


def pull_back(segment: Segment, form: Form, key: BackwardKey, arrived: Arrived) -> Pulled:
    """Run autograd on the tape, users' rules included."""
    traced = [index for index in arrived if segment.graph_outputs[index].requires_grad]
    wanted = [index for index, needed in enumerate(key.needs) if needed]
    if not traced or not (wanted or key.stops):
        return Pulled()
    outputs = [segment.graph_outputs[index] for index in traced]
    _refuse_once_differentiable(segment, outputs)
    snapshot = Snapshot(segment, list(arrived.values()))
    last = next(iter(reversed(segment.tape.graph.nodes)))
    ends = [segment.shown[index].tensor for index in key.stops]
    leaves: dict[int, Any] = {index: segment.operands[index].leaf for index in wanted}
    if ends:
        around = set(map(id, leaves_behind(outputs, ends)))
        wanted = [i for i, leaf in leaves.items() if not leaf.is_leaf or id(leaf) in around]
    inputs = [*(leaves[index] for index in wanted), *ends]
    with stopping_at(ends) as stopped:
        gradients = segment.tape.gradients(
            outputs, inputs, [arrived[index] for index in traced], create_graph=key.create_graph
        )
    _refuse_foreign(segment, last)
    gradients = (*gradients[: len(wanted)], *stopped)
    writes = snapshot.changes()
    use_kept_masks(segment.tape.graph, last, [residual.node for residual in form.residuals])
    wanted += range(len(key.needs), len(key.needs) + len(key.stops))
    found = zip(wanted, gradients, strict=True)
    present = {
        index: _with_memory(segment, gradient) for index, gradient in found if gradient is not None
    }
    premises, others = graphs.premises_after(last), graphs.reaching_out_after(last)
    return Pulled(present, writes, premises, others)


def _refuse_foreign(segment: Segment, last: fx.Node) -> None:
    """Refuse a backward that computes with a tensor of a capture that isn't on its tape."""
    node = last.next
    while node.op != "root":
        if node.op == "get_attr" and is_fake(getattr(segment.tape.root, str(node.target), None)):
            raise stored_while_traced(f"A backward in {segment.settings.name}")
        node = node.next


@contextlib.contextmanager
def explained(name: str) -> Iterator[None]:
    """Say what to do where code of a backward meets what the program doesn't know."""
    try:
        yield
    except (RuntimeError, NotImplementedError) as error:
        if loss_is_parallel() and "got mixed torch.Tensor and DTensor" in str(error):
            raise UnsupportedError(
                f"{name} differentiates a derivative of a cross entropy under loss_parallel. Torch "
                "computes that derivative in one, and has none of it; eager gives other numbers.",
                remedy="leave loss_parallel out, and let the last layer return the whole: "
                "ColwiseParallel(output_layouts=Replicate()).",
            ) from error
        if not tracing.is_untraceable(error):
            raise
        raise UnsupportedError(
            f"A hook or a Function's backward in {name} reads a value (`.item()`, a branch, or a "
            "shape that depends on it) that isn't known any more when the backward is traced, as "
            "the call didn't keep what it comes from.",
            remedy="read it before, in the function itself, or compute with the tensor "
            "(torch.where); or compile a function that runs the backward too.",
        ) from error
    except AssertionError as error:
        if not tracing.is_untraceable_function(error):
            raise
        raise UnsupportedError(
            f"A hook or a Function's backward in {name} computes with a tensor that isn't an "
            "operand of the Function, and that the compiled function didn't use itself: something "
            "that a call stored, or that was made elsewhere.",
            remedy="save what it needs with ctx.save_for_backward, or compile a function that runs "
            "the backward too, as a whole training step does.",
        ) from error


def _with_memory(segment: Segment, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient; made on the tape if it is zeros that a formula returns without memory."""
    if not autograd.is_zero_tensor(gradient):
        return gradient
    with segment.tape.recording(grad_mode=False):
        return torch.zeros(gradient.shape, dtype=gradient.dtype, device=gradient.device)


def _refuse_once_differentiable(segment: Segment, outputs: Sequence[torch.Tensor]) -> None:
    """Raise eager's error where a second derivative meets ``once_differentiable``, with its name.

    The node that raises in eager hangs off no input, so asking for the inputs' gradients alone
    would silently find none.
    """
    if any(node.name().endswith("Error") for node in autograd_nodes(outputs)):
        nodes = filter(graphs.is_function_node, segment.tape.graph.nodes)
        called = [origin_of(node.target.function) for node in nodes]  # type: ignore[union-attr]
        once = [each for each in called if autograd.once_differentiable_body(reverse_rule(each))]
        names = " or ".join(dict.fromkeys(map(display_name, once)))
        raise differentiated_twice(names, defined_at(once[0]) if len(once) == 1 else "")


def derived(
    segment: Segment, form: Form, key: BackwardKey, arrived: Arrived, pulled: Pulled
) -> Backward:
    """The segment from residuals, tangents and edges to what was pulled back."""
    present, writes = pulled.gradients, pulled.writes
    if not present and not writes:
        return Backward(key, None, (None,) * (len(key.needs) + len(key.stops)))
    tangents = list(arrived.values())
    targets: list[int | None] = [None] * (len(key.needs) + len(key.stops))
    for position, index in enumerate(present):
        targets[index] = position
    made = len(segment.output_nodes)
    operands = [
        Operand(
            residual.node,
            None if residual.operand is None else segment.operands[residual.operand].leaf,
            private=residual.operand is None and (residual.output or 0) >= made,
        )
        for residual in form.residuals
    ]
    operands += [
        Operand(segment.node_of(tensor), tensor if tensor.requires_grad else None)
        for tensor in tangents
    ]
    operands += [
        Operand(segment.operands[index].node, segment.operands[index].leaf, by_value=False)
        for index in key.edges
    ]
    # Their data when the backward runs, not when the forward did.
    operands += [Operand(write.before) for write in writes if write.operand is not None]
    following = Segment(
        segment.tape,
        tuple(operands),
        (*present.values(), *(write.value for write in writes)),
        segment.settings,
        f"{segment.name}_backward" if segment.order == 0 else f"{segment.name}_again",
        order=segment.order + 1,
        kind="backward",
        start=min(segment.node_of(tensor) for tensor in tangents),
        effect_nodes=(*pulled.premises, *pulled.others),
        drawn=segment.drawn_after,
        executables=segment.backward_executables,
        roles=Roles(copied=frozenset(range(len(present), len(present) + len(writes)))),
    )
    if key.create_graph:
        find_links_of_derivative(following, segment)
    mutations = tuple(
        BackwardMutation(
            write.operand,
            write.tangent,
            len(present) + position,
            write.versions,
            write.name,
            write.requires_grad,
        )
        for position, write in enumerate(writes)
    )
    return Backward(key, following, tuple(targets), mutations, pulled.premises)
