"""Forward mode on a tape: the pushforward is the transpose of the (linear) backward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from funcaot.aot.graph import graphs
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.segment.forward_trace import (
    has_forward_rule,
    is_hidden,
    is_still,
    nodes_between,
    push_forward,
)
from funcaot.aot.segment.segment import Form, Operand, Segment
from funcaot.aot.segment.unread import closure_of_read
from funcaot.aot.tape.masks import use_kept_masks
from funcaot.classes.traits import display_name, has_jvp
from funcaot.errors import MissingRuleError, RuleError, UnsupportedError


@dataclass(frozen=True, eq=False)
class Pushforward:
    """A traced pushforward, by itself: it starts from what the forward kept.

    Attributes:
        segment: From residuals, operands and tangents to the outputs' tangents; None if no
            output depends on an operand that has a tangent.
        sources: For each of the segment's operands before the tangents, whether it is a
            residual (True) or an operand of the forward (False), and which.
        produced: Positions of the forward's graph outputs that have a tangent.
        timings: Seconds per stage.
        read: Whether what user's rules read is as it was, if they ran.
    """

    segment: Segment | None
    sources: tuple[tuple[bool, int], ...]
    produced: tuple[int, ...]
    timings: dict[str, float] = field(default_factory=dict)
    read: Callable[[], bool] | None = None

    def gather(
        self, values: Sequence[torch.Tensor], operands: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The segment's operands before the tangents."""
        return [
            values[index] if is_residual else operands[index] for is_residual, index in self.sources
        ]


@dataclass(frozen=True, eq=False)
class FusedPushforward:
    """Primal and tangent as one program, in which the primal is computed once.

    Attributes:
        segment: From operands and tangents to outputs and their tangents; None if no output
            depends on an operand that has a tangent.
        values: Where the forward's graph outputs, then its residuals, are among the graph's.
        pushed: The graph outputs that have a tangent, and where among the graph's it is (or,
            from -1 downward, among the operands).
        timings: Seconds per stage.
        read: Whether what user's rules read is as it was, if they ran.
    """

    segment: Segment | None
    values: tuple[int, ...] = ()
    pushed: tuple[tuple[int, int], ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    read: Callable[[], bool] | None = None


def trace_pushforward(
    segment: Segment, form: Form, tangents: Sequence[TensorSpec | None]
) -> Pushforward:
    """Continue the tape by the outputs' tangents, from what a forward kept.

    Args:
        segment: The forward.
        form: How it ran, so which values there are.
        tangents: Specs of the operands' tangents, None where an operand has none.
    """
    last = next(iter(reversed(segment.tape.graph.nodes)))
    given, results = _push(segment, form, tangents)
    if not results:
        return Pushforward(None, (), ())
    operands: list[Operand] = []
    sources: list[tuple[bool, int]] = []
    for position, residual in enumerate(form.residuals):
        if residual.operand is None:
            operands.append(Operand(residual.node, private=True))
            sources.append((True, position))
    for index, operand in enumerate(segment.operands):
        operands.append(Operand(operand.node, operand.leaf, by_value=operand.by_value))
        sources.append((False, index))
    following = Segment(
        segment.tape,
        (*operands, *_tangent_operands(segment, tangents, given)),
        tuple(results.values()),
        segment.settings,
        f"{segment.name}_jvp",
        order=segment.order + 1,
        start=last.next,
        effect_nodes=graphs.premises_after(last),
        drawn=segment.drawn_after,
    )
    return Pushforward(following, tuple(sources), tuple(results))


def trace_fused(
    segment: Segment,
    form: Form,
    tangents: Sequence[TensorSpec | None],
    examples: Sequence[torch.Tensor | None],
) -> FusedPushforward:
    """Continue the tape by the outputs' tangents, to run in one graph with the outputs.

    Random numbers are drawn once, by the nodes that drew them for the primal.

    Args:
        segment: The forward.
        form: How it would run, so which residuals the caller expects.
        tangents: Specs of the operands' tangents, None where an operand has none.
        examples: The tangents of this call, for Functions that need values to be traced.
    """
    last = next(iter(reversed(segment.tape.graph.nodes)))
    given, results = _push(segment, form, tangents, examples)
    if not results:
        return FusedPushforward(None)
    kept = [residual.node for residual in form.residuals if residual.output is not None]
    carried = [node for node in kept if node not in segment.output_nodes]
    following = Segment(
        segment.tape,
        (*segment.operands, *_tangent_operands(segment, tangents, given)),
        (*segment.graph_outputs, *results.values()),
        segment.settings,
        f"{segment.name}_jvp",
        order=segment.order,
        kind=segment.kind,
        effect_nodes=(*segment.effect_nodes, *graphs.premises_after(last)),
        drawn=segment.drawn,
        carried=(*segment.output_nodes[len(segment.graph_outputs) :], *carried),
        roles=form.graph.roles,
    )
    position = {node: index for index, node in enumerate(following.output_nodes)}
    pushed = []
    for offset, index in enumerate(results):
        place = following.places[len(segment.graph_outputs) + offset]
        if place.output is None:
            # The tangent of an output is the tangent of an operand as it is.
            pushed.append((index, -1 - (place.operand or 0)))
        else:
            pushed.append((index, place.output))
    values = tuple(position[node] for node in (*segment.output_nodes, *carried))
    return FusedPushforward(following, values, tuple(pushed))


def _push(
    segment: Segment,
    form: Form,
    tangents: Sequence[TensorSpec | None],
    examples: Sequence[torch.Tensor | None] = (),
) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Continue the tape by ``tangents -> J tangents``.

    With ``u`` a symbolic cotangent, ``J^T u`` is linear in ``u`` and its own vjp with respect to
    ``u``, applied to the tangents, is ``J tangents``. Both vjps run on the tape, so custom
    backwards are respected; a Function that has only a jvp gets its backward generated first.
    (The trick is due to J. Townsend, "A new trick for calculating Jacobian vector products".)

    Returns:
        The tangents' placeholders by operand, and the outputs' tangents by graph output.
    """
    tape = segment.tape
    last = next(iter(reversed(tape.graph.nodes)))
    moving = [
        index
        for index, spec in enumerate(tangents)
        if spec is not None and segment.operands[index].leaf is not None
    ]
    between = nodes_between(segment, moving, range(len(segment.graph_outputs)))
    reached = {*between, *(segment.operands[index].node for index in moving)}
    recorded_only = _refuse_tangled(segment, moving)
    outputs = [
        (index, tensor)
        for index, tensor in enumerate(segment.graph_outputs)
        if tensor.requires_grad or (not recorded_only and _may_move(segment, index, reached))
    ]
    if not moving or not outputs:
        return {}, {}
    given = {
        index: tape.placeholder(
            f"tangent_{index}", spec.with_grad(), examples[index] if examples else None
        )
        for index in moving
        if (spec := tangents[index]) is not None
    }
    pushed = _pushed(segment, given, outputs, between)
    use_kept_masks(tape.graph, last, [residual.node for residual in form.residuals])
    results = {
        index: tensor
        for (index, _), tensor in zip(outputs, pushed, strict=True)
        if tensor is not None
    }
    return given, _apart(segment, given, results)


def _apart(
    segment: Segment, given: dict[int, torch.Tensor], results: dict[int, torch.Tensor]
) -> dict[int, torch.Tensor]:
    """The outputs' tangents, in memory of their own where the outputs are.

    The transpose of a copy hands on what it is given. A write to the output in place would then
    change the tangent of an operand, or of another output.
    """
    tape = segment.tape
    taken = {segment.node_of(tangent) for tangent in given.values()}
    apart = {}
    nodes = tape.nodes_of([*results.values()])
    for (index, tensor), node in zip(results.items(), nodes, strict=True):
        output = segment.output_nodes[index]
        owns = graphs.view_root(output) is output and output.op != "placeholder"
        if node is not None and owns and graphs.view_root(node) in taken:
            with tape.recording():
                tensor = tensor.clone()
            node = tape.node_of(tensor)
        if node is not None:
            taken.add(graphs.view_root(node))
        apart[index] = tensor
    return apart


def _refuse_tangled(segment: Segment, moving: Sequence[int]) -> bool:
    """Whether only autograd's record says where tangents go, as detached memory was written to.

    Raises:
        UnsupportedError: If that isn't all that forward mode looks at.
    """
    everything = range(len(segment.graph_outputs))
    touched = nodes_between(segment, moving, everything, cut=False)
    if not any(node.meta.get("seen_detached") for node in touched):
        return False
    if any(is_hidden(node) or is_still(node) or has_forward_rule(node) for node in touched):
        raise _tangled(segment)
    return True


def _tangled(segment: Segment) -> UnsupportedError:
    return UnsupportedError(
        f"Under forward mode, {segment.settings.name} writes to memory that it also sees by "
        "x.detach() or x.data, and has a torch.no_grad() region, a Function with a jvp, or "
        "something without a second derivative.",
        remedy="write to the tensor itself, or to x.detach().clone().",
    )


def _may_move(segment: Segment, index: int, reached: set[fx.Node]) -> bool:
    """Whether forward mode alone sees a graph output depend on an operand that has a tangent."""
    dtype = segment.graph_outputs[index].dtype
    if segment.order > 0 or not (dtype.is_floating_point or dtype.is_complex):
        return False
    return segment.output_nodes[index] in reached


def _pushed(
    segment: Segment,
    given: dict[int, torch.Tensor],
    outputs: Sequence[tuple[int, torch.Tensor]],
    between: set[fx.Node],
) -> Sequence[torch.Tensor | None]:
    """The outputs' tangents, by the way that gives what eager forward mode gives."""
    still = any(map(is_still, segment.tape.graph.nodes))
    if still and segment.order > 0:
        raise UnsupportedError(
            f"A derivative of {segment.settings.name} was pushed forward, and forward mode was off "
            "for a part of it.",
            remedy="use x.detach() for what is constant, or compile the function that calls "
            "torch.func.jvp, jacfwd or hessian.",
        )
    hidden = still or any(map(is_hidden, between))
    if hidden and segment.order > 0:
        raise UnsupportedError(
            f"A derivative of {segment.settings.name} was pushed forward through a torch.no_grad() "
            "region, which forward mode sees through and reverse mode doesn't.",
            remedy="use x.detach() for what is constant, or compile the function that calls "
            "torch.func.jvp, jacfwd or hessian.",
        )
    if segment.order > 0 and any(node.meta.get("view_of_forward") for node in between):
        raise UnsupportedError(
            f"A derivative of {segment.settings.name} was pushed forward through a view that a "
            "Function made and saved, which forward mode sees through and reverse mode doesn't.",
            remedy="save the input itself and make the view in backward, or compile the function "
            "that calls torch.func.jvp, jacfwd or hessian.",
        )
    positions = [index for index, _ in outputs]
    called = _called_plainly(segment, list(given), positions)
    if any(map(has_jvp, called)):
        _refuse_plain_calls(segment, called)
    if segment.order == 0 and (hidden or any(map(has_forward_rule, between))):
        _refuse_plain_calls(segment, called)
        try:
            return push_forward(segment, given, positions)
        except (MissingRuleError, NotImplementedError):
            if hidden:
                raise
    tape = segment.tape
    with tape.recording(grad_mode=False):
        specs = [spec_of(tensor).with_grad() for _, tensor in outputs]
    cotangents = [tape.placeholder(f"cotangent_{i}", spec) for i, spec in enumerate(specs)]
    try:
        return _transposed_twice(segment, [tensor for _, tensor in outputs], cotangents, given)
    except (MissingRuleError, RuntimeError, AssertionError) as error:
        if _refuse_tangled(segment, list(given)):
            raise _tangled(segment) from error
        if isinstance(error, RuleError) and called:
            raise
        _refuse_plain_calls(segment, called)
        # An op or a Function without a backward; forward mode may be all that it has.
        try:
            return push_forward(segment, given, positions)
        except UnsupportedError as refusal:
            raise refusal from error


def _called_plainly(
    segment: Segment, moving: Sequence[int], outputs: Sequence[int]
) -> Sequence[type]:
    """Functions that were called as eager calls them, where tangents may go through.

    What the tape has of these is what their forward does, which isn't their rule.
    """
    if segment.order > 0 or not segment.tape.called_plainly:
        return ()
    touched = nodes_between(segment, moving, outputs, cut=False)
    return tuple({node.meta["called"] for node in touched if node.meta.get("called")})


def _refuse_plain_calls(segment: Segment, called: Sequence[type]) -> None:
    if called:
        name = display_name(called[0])
        raise UnsupportedError(
            f"Under forward mode, {segment.settings.name} calls {name}, which is no node of the "
            "program: it is given an object with tensors inside or a container that it changes, "
            "or keeps a graph. Its jvp can't be asked then, and its backward can't be transposed, "
            "or not together with a torch.no_grad() region or another Function's jvp.",
            remedy="pass the tensors inside as operands of their own, and keep on ctx what the "
            "graph is computed from; or take the tangents of the function uncompiled.",
        )


def _transposed_twice(
    segment: Segment,
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    given: dict[int, torch.Tensor],
) -> Sequence[torch.Tensor | None]:
    """The outputs' tangents; as a ``RuntimeError``, that they depend on the cotangents."""
    pushed = _twice(segment, outputs, cotangents, given)
    tape = segment.tape
    found = [node for node in tape.nodes_of([t for t in pushed if t is not None]) if node]
    unknown = {tape.node_of(cotangent) for cotangent in cotangents}
    known = [operand.node for operand in segment.operands]
    if not unknown & graphs.closure(found, known):
        return pushed
    if unknown & closure_of_read(found, known):
        raise RuntimeError("a backward that isn't visibly linear in the cotangents")
    # Kernels are given them and don't read them, so zeros will do.
    with tape.recording():
        zeros = [torch.zeros_like(tensor.detach()).requires_grad_() for tensor in outputs]
    return _twice(segment, outputs, zeros, given)


def _twice(
    segment: Segment,
    outputs: Sequence[torch.Tensor],
    cotangents: Sequence[torch.Tensor],
    given: dict[int, torch.Tensor],
) -> Sequence[torch.Tensor | None]:
    """What the gradients by the operands, along their tangents, have as gradients."""
    tape = segment.tape
    pulled = tape.gradients(
        outputs,
        [segment.operands[index].leaf for index in given],  # type: ignore[misc]
        cotangents,
        create_graph=True,
    )
    pairs = [
        (gradient, tangent)
        for gradient, tangent in zip(pulled, given.values(), strict=True)
        if gradient is not None and gradient.requires_grad
    ]
    if not pairs:
        return [None] * len(outputs)
    return tape.gradients(
        [gradient for gradient, _ in pairs],
        cotangents,
        [tangent for _, tangent in pairs],
        create_graph=True,
    )


def _tangent_operands(
    segment: Segment, tangents: Sequence[TensorSpec | None], given: dict[int, torch.Tensor]
) -> list[Operand]:
    operands = []
    for index, spec in enumerate(tangents):
        if spec is None:
            continue
        tangent = given.get(index)
        if tangent is None:
            tangent = segment.tape.placeholder(f"unused_tangent_{index}", spec)
        leaf = tangent if tangent.requires_grad else None
        operands.append(Operand(segment.node_of(tangent), leaf))
    return operands
