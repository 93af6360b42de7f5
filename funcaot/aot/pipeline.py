"""The stages by which ``runtime`` and ``calls`` compile a forward, a backward and a graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import torch

from funcaot import config
from funcaot._torch.autograd.whole_backward import noting_whole_backwards
from funcaot._torch.distributed.asked import as_it_was, noting_what_is_asked
from funcaot._torch.patches import looking_once
from funcaot.aot.closure.libraries.put_into_torch import put_into_torch
from funcaot.aot.closure.outside.watching import Outside
from funcaot.aot.closure.ran import Recorder
from funcaot.aot.effects.analysis import watched
from funcaot.aot.effects.settled import Settled, settle
from funcaot.aot.graph import graphs
from funcaot.aot.graph.functional_graph import FunctionalGraph
from funcaot.aot.graph.made_under import settings_now
from funcaot.aot.graph.observed.logs import show_effects, show_graph
from funcaot.aot.graph.observed.stages import Stages
from funcaot.aot.graph.settings import Settings
from funcaot.aot.lowering.executable_cache import Executables
from funcaot.aot.lowering.lower import (
    Lowered,
    Request,
    Writes,
    as_compiler_wants,
    check,
    compile_checked,
    promised,
)
from funcaot.aot.lowering.wrappers import peeled
from funcaot.aot.reader.reader import ReachedArgumentError, make_check, make_reader
from funcaot.aot.reader.reader_tensors import UnknownTensorError
from funcaot.aot.segment.backward import (
    Backward,
    BackwardKey,
    arrive,
    derived,
    explained,
    pull_back,
)
from funcaot.aot.segment.backward_effects import reachable
from funcaot.aot.segment.backward_sizes import refuse_opaque
from funcaot.aot.segment.forward import Forward, make_segment
from funcaot.aot.segment.forward_mode import FusedPushforward, Pushforward
from funcaot.aot.segment.in_place import plan_in_place
from funcaot.aot.segment.segment import Form, Segment
from funcaot.aot.signature.dynamic import Opening
from funcaot.aot.signature.leaf_names import leaf_names
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import Conditions
from funcaot.aot.state.of_functions import OtherStateError
from funcaot.aot.state.open_settings import OpenSettings
from funcaot.aot.state.state_effects import Call
from funcaot.aot.state.state_tracker import StateTracker
from funcaot.aot.subclasses.classes import Classes
from funcaot.aot.tape.known.sizes_of_values import SizesNeededError
from funcaot.base.garbage import without_full_collections
from funcaot.base.scopes import lasting
from funcaot.errors import UnsupportedError
from funcaot.rules.kept_objects import noting_kept
from funcaot.transforms.forms.plain_call import calling_plainly

AnyPushforward = TypeVar("AnyPushforward", Pushforward, FusedPushforward)


def compile_forward(
    function: Callable[..., Any],
    signature: Signature,
    leaves: Sequence[Any],
    call: Call,
    settings: Settings,
    opening: Opening | None = None,
) -> tuple[Forward, tuple[torch.Tensor, ...]]:
    """Capture a call and prepare its program; nothing of a backward is traced.

    Its graphs are compiled when each first runs.

    Args:
        function: The user's function.
        signature: The call's signature, with symbols for open sizes, tensors for open numbers.
        leaves: Flat leaves of the call.
        call: Its ``(args, kwargs)``.
        settings: Those of the compiled function.
        opening: What the program leaves open.

    Returns:
        The program, and the tensors that the function closes over, which it doesn't keep.

    Raises:
        UnsupportedError: For what can't be captured.
        Exception: Whatever the function raises, unchanged.
    """
    names = leaf_names(function, signature.tree)
    classes = Classes(settings.name, leaves)
    track = partial(StateTracker, function, leaves, call, settings.name, names=names)
    track = partial(track, classes=classes)
    with classes.left_to_eager(), looking_once():
        try:
            return _compile_tracked(track, signature, settings, opening)
        except SizesNeededError:
            classes.refuse("asks for a size that values decide, so that it would run in stages,")
            raise


def _compile_tracked(
    track: Callable[..., StateTracker],
    signature: Signature,
    settings: Settings,
    opening: Opening | None,
) -> tuple[Forward, tuple[torch.Tensor, ...]]:
    """Capture a call, again with plain calls where a node can't stand for a Function.

    A node knows nothing of what is computed inside and stored, and its forward runs again where
    everything is what it was before the call.
    """
    try:
        return _compile_apart(track, signature, settings, opening)
    except (UnknownTensorError, OtherStateError) as error:
        try:
            with calling_plainly():
                return _compile_apart(track, signature, settings, opening)
        except Exception:  # noqa: BLE001  (it asks for values, or is refused for something else)
            raise error from None


def _compile_apart(
    track: Callable[..., StateTracker],
    signature: Signature,
    settings: Settings,
    opening: Opening | None,
) -> tuple[Forward, tuple[torch.Tensor, ...]]:
    """Capture a call, again where the function sees two tensors in the place of one."""
    tracker = track(open=OpenSettings(settings.numbers))
    try:
        return _compile_forward(tracker, signature, settings, opening)
    except ReachedArgumentError as error:
        again = track(as_they_are=error.arguments, open=OpenSettings(settings.numbers))
        try:
            return _compile_forward(again, signature, settings, opening)
        except UnsupportedError:
            raise error from None


def _compile_forward(
    tracker: StateTracker, signature: Signature, settings: Settings, opening: Opening | None
) -> tuple[Forward, tuple[torch.Tensor, ...]]:
    """One go at `compile_forward`, which leaves everything as it was if it fails."""
    try:
        return _forward(tracker, signature, settings, opening)
    except BaseException:
        tracker.take_back()
        raise


def _forward(
    tracker: StateTracker, signature: Signature, settings: Settings, opening: Opening | None
) -> tuple[Forward, tuple[torch.Tensor, ...]]:
    """The program of a call, from a run on a tape to what is checked in later calls."""
    run = Stages(settings.name)
    name = settings.name
    under = {**settings_now(settings.compiler.name), "functions of torch": put_into_torch()}
    sizes, numbers = (None, None) if opening is None else (opening.sizes, opening.numbers)
    # Until what the function reads is noted: that is not what a patch puts there.
    with lasting():
        settled = settle(run, tracker, signature, opening)
        captured, effects = settled.captured, settled.effects
        tracker.acts.refuse_written(_written(tracker, settled))
        segment = run("segment", make_segment, captured, effects, settings)
        show_effects(name, effects)
        in_place = run("in place", plan_in_place, captured, effects, segment, sizes)
    reader, state = run("environment", make_reader, tracker, captured.visible)
    owned = run("versions", watched, captured, effects)
    handed = run("versions", reachable, segment, segment.seen)
    forward = Forward(
        signature=signature,
        capture=replace(captured, lifted=()),
        effects=effects,
        touched=settled.touched,
        segment=segment,
        in_place=in_place,
        reader=reader,
        state=state,
        sizes=sizes,
        numbers=numbers,
        watched=owned,
        reachable=handed,
        timings=run.timings,
        made_under=under,
        meets_classes=tracker.classes.act,
    )
    return forward, captured.lifted


def _written(tracker: StateTracker, settled: Settled) -> list[torch.Tensor]:
    """The caller's tensors that a function writes to; all of those given if some share memory."""
    given, written = tracker.given(), sorted(settled.effects.written)
    known = (*given, *settled.captured.lifted)
    if any(index >= len(known) for index in written):
        return given
    return [known[index] for index in written]


def compile_backward(
    segment: Segment,
    form: Form,
    key: BackwardKey,
    tangents: Sequence[torch.Tensor | None],
    values: Sequence[torch.Tensor],
    conditions: Conditions | None = None,
) -> Backward:
    """Continue the tape by the backward of a segment; its graph is compiled when it first runs.

    Args:
        segment: The forward.
        form: How the forward ran, so what it kept.
        key: Needs and specs of the tangents.
        tangents: The tangents themselves, for layouts that specs don't describe and for opaque
            Functions that the backward calls.
        values: What the forward kept; none if it hasn't run.
        conditions: What is noted about open sizes meanwhile, if there are any.

    Raises:
        UnsupportedError: If the backward changes more than data of inputs and tangents.
        RuntimeError: If a Function on the way is ``once_differentiable`` and this is the second.
        Exception: Whatever a user's backward raises, unchanged.
    """
    run = Stages(f"backward of {segment.settings.name}")
    with (
        explained(segment.settings.name),
        looking_once(),
        lasting(),
        Recorder(watch=Outside()) as recorder,
        noting_what_is_asked() as asked,
        noting_whole_backwards(asked),
        noting_kept() as kept,
    ):
        arrived = run("tangents", arrive, segment, form, key, tangents, values)
        pulled = run("trace", pull_back, segment, form, key, arrived)
        backward = run("segment", derived, segment, form, key, arrived, pulled)
    run("segment", refuse_opaque, segment)
    rules = run("environment", make_check, recorder.ran, kept)
    noted = {"conditions": conditions, "rules": rules, "asked": tuple(asked.items())}
    return replace(backward, timings=run.timings, **noted)


def compile_pushforward(segment: Segment, trace: Callable[[], AnyPushforward]) -> AnyPushforward:
    """Continue the tape by a forward-mode derivative of a segment.

    Args:
        segment: The forward.
        trace: One of the two ways, by itself or fused with the primal.

    Raises:
        MissingRuleError: A Function on the way has neither a jvp nor a linear backward.
        Exception: Whatever a user's rule raises, unchanged.
    """
    run = Stages(f"pushforward of {segment.settings.name}")
    with (
        looking_once(),
        lasting(),
        Recorder(watch=Outside()) as recorder,
        noting_what_is_asked() as asked,
    ):
        pushed = run("trace", trace)
    read = as_it_was(run("environment", make_check, recorder.ran), tuple(asked.items()))
    return replace(pushed, timings=run.timings, read=read)


def _ops(graph: FunctionalGraph) -> int:
    return sum(node.op == "call_function" for node in graph.module.graph.nodes)


def _drawing_as_captured(graph: FunctionalGraph) -> AbstractContextManager[Any]:
    """Let a compiler draw eager's numbers where a premise reads them: the capture went by these."""
    nodes = graph.module.graph.nodes
    reading = filter(graphs.is_premise, nodes) if any(map(graphs.is_random, nodes)) else ()
    if any(map(graphs.is_random, graphs.needed_for(reading))):
        return config.patch(fallback_random=True)
    return nullcontext()


def compile_graph(
    graph: FunctionalGraph,
    settings: Settings,
    executables: Executables | None = None,
    writes: Writes | None = None,
) -> Lowered:
    """Make a graph executable.

    Args:
        graph: A functional graph, as extracted from a tape.
        settings: Those of the compiled function.
        executables: Where an executable of an equal graph may be found.
        writes: What the executable writes into inputs, if it does.

    Raises:
        StageError: If the compiler fails; ``__cause__`` is its own exception.
        GraphError: If the graph isn't functional, or a result shares memory.
    """
    inner = None if writes is not None else peeled(graph)
    if inner is not None:
        return inner.outside.around(compile_graph(inner.graph, settings, executables))
    request = Request(graph, settings.compiler, settings.name, writes)
    run = Stages(request.what, _ops(graph))
    show_graph(request.what, graph.module)
    found = None if executables is None else run("share", executables.find, request)
    if found is not None and found.lowered is not None:
        return replace(found.lowered, timings=run.timings)
    if found is not None:
        request = replace(request, compiler=found.compiler)
    contract = run("contract", promised, request)
    under = settings_now(settings.compiler.name)
    with _drawing_as_captured(graph), without_full_collections():
        module = run("decompose", as_compiler_wants, request)
        run("check", check, module, request)
        lowered = run("compile", compile_checked, module, request, contract)
    lowered = replace(lowered, made_under=under)
    if found is not None:
        found.keep(lowered)
    return replace(lowered, timings=run.timings)
