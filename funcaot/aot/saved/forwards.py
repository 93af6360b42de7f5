"""A program as data, and made again: ``runtime`` calls it with what a file holds.

What a program consists of: the calls that it serves, what it reads of its environment, its effects,
and its segment with the forms, executables and backwards that were compiled so far.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from funcaot._torch.distributed.described_tensors import is_dtensor_class
from funcaot.aot.calls.call import SegmentFunction, SegmentFunctions
from funcaot.aot.calls.in_place_call import InPlace
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.capture.capture import Capture, Input
from funcaot.aot.capture.events import InputEvents
from funcaot.aot.capture.facts import Fact
from funcaot.aot.capture.grad_effects import GradientEffects
from funcaot.aot.capture.shared_inputs import Touched
from funcaot.aot.closure.ran_code import digest_of
from funcaot.aot.effects.effects import Watched
from funcaot.aot.graph.policy import POLICIES
from funcaot.aot.graph.settings import Settings
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.lowering.lower import Lowered
from funcaot.aot.saved.codec import (
    Blobs,
    Data,
    effects_data,
    effects_from,
    scalar_data,
    spec_data,
    spec_from,
)
from funcaot.aot.saved.described import rules_data
from funcaot.aot.saved.environment import Surroundings, groups_from, reader_data
from funcaot.aot.saved.errors import NotLoadedError, NotSavedError, missing_is_not_loaded
from funcaot.aot.saved.executables import Contents, executable_data, layouts_data
from funcaot.aot.saved.functions import Loaded, LoadedFunctions
from funcaot.aot.saved.graphs import graph_digest
from funcaot.aot.saved.machine import difference
from funcaot.aot.saved.open_sizes import (
    Served,
    backward_sizes_data,
    conditions_data,
    graph_sizes_data,
    numbers_data,
    sizes_data,
)
from funcaot.aot.saved.segments import Token, form_data, segment_data
from funcaot.aot.saved.structures import (
    Classes,
    arguments_data,
    known_classes,
    result_data,
    result_from,
)
from funcaot.aot.saved.whole_steps import gradients_data, in_place_data, in_place_from
from funcaot.aot.segment.backward import Backward, BackwardKey
from funcaot.aot.segment.forward import Forward
from funcaot.aot.segment.segment import Segment
from funcaot.aot.signature.ambient import Ambient
from funcaot.aot.signature.histories import History, Place
from funcaot.aot.signature.signature import ByContents, Constant, Identity, Signature
from funcaot.aot.subclasses.distributed import meshes_in
from funcaot.backends import eager, inductor

# Those whose executables can be written down.
_COMPILERS = (inductor.COMPILER, eager.COMPILER)
_PLAIN = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


@dataclass(frozen=True, eq=False)
class Derived:
    """What only a tape knows of a program, as ``runtime`` reads it off its entry.

    Attributes:
        unreached: Inputs whose history no result depends on.
        used: Inputs whose memory a call uses.
        retains: Whether it calls ``retain_grad``.
        premises: What it takes for granted about values.
    """

    unreached: frozenset[int]
    used: frozenset[int]
    retains: bool
    premises: tuple[str, ...]


def settings_data(settings: Settings) -> Data:
    """The settings of a compiled function that decide what its programs are.

    Raises:
        NotSavedError: For a policy that code alone doesn't describe.
    """
    policy = settings.policy
    name = policy.name
    if POLICIES.get(name) is not policy:
        choice = policy.choice
        if not isinstance(choice, types.FunctionType) or choice.__closure__:
            raise NotSavedError("its policy is an object, or a function that closes over something")
        name = f"{name} {digest_of(choice.__code__)}"
    return [settings.compiler.name, name]


# --- signatures ---------------------------------------------------------------------------------


def signature_data(signature: Signature) -> Data:
    """What calls a program serves, so that equal data means the same program.

    Raises:
        NotSavedError: For a part that is compared by identity.
    """
    ambient = signature.ambient
    if ambient.modes or ambient.forward_mode:
        raise NotSavedError("it was called in a mode, or in forward mode")
    if signature.attributes:
        raise NotSavedError("its arguments have attributes of the user's")
    if not all(kind in _PLAIN or is_dtensor_class(kind) for kind in signature.kinds):
        raise NotSavedError("it takes tensors of a class of their own")
    return {
        "tree": arguments_data(signature.tree),
        "leaves": [_leaf_data(leaf) for leaf in signature.leaves],
        "kinds": [kind.__name__ for kind in signature.kinds],
        "repeats": [list(pair) for pair in signature.repeats],
        "ambient": {
            item.name: scalar_data(getattr(ambient, item.name)) for item in fields(Ambient)
        },
    }


def _leaf_data(leaf: TensorSpec | Constant) -> Data:
    if isinstance(leaf, TensorSpec):
        return {"tensor": spec_data(leaf)}
    if isinstance(leaf.value, Identity):
        raise NotSavedError(f"it is given an object of {leaf.kind.__qualname__}")
    if leaf.value is ByContents.READ:  # The reader compares them.
        value: Any = "contents"
    else:
        value = leaf.value if leaf.by_text else scalar_data(leaf.value)
    return {"constant": [f"{leaf.kind.__module__}.{leaf.kind.__qualname__}", value]}


# --- writing --------------------------------------------------------------------------------------


def forward_data(
    forward: Forward,
    derived: Derived,
    functions: SegmentFunctions,
    in_place: InPlace | None,
    blobs: Blobs,
) -> tuple[Data, list[str]]:
    """A program, and what of it is left out.

    Args:
        forward: The program.
        derived: What only its tape knows.
        functions: What runs it.
        in_place: What runs it where its graph may write to inputs.
        blobs: Gets what isn't text.

    Raises:
        NotSavedError: If a file can't hold it.
    """
    settings, captured = forward.segment.settings, forward.capture
    _refuse(forward, derived)
    reader = reader_data(forward.reader, forward.state)
    left_out: list[str] = []
    names = {watched.root.name for watched in forward.watched}
    writer = _Writer(blobs, names, left_out, forward.made_under)
    writes = None
    if in_place is not None and in_place.program.is_compiled:
        writes = in_place_data(in_place, forward.effects, writer.program(in_place.program))
    if forward.segment.output_nodes and not (functions.made or writes):
        raise NotSavedError("it hasn't run yet")
    known = known_classes(forward.reader, forward.signature.tree)
    data = {
        "name": settings.name,
        "settings": settings_data(settings),
        "made under": forward.made_under,
        "signature": signature_data(forward.signature),
        "sizes": sizes_data(forward.sizes),
        "numbers": numbers_data(forward.numbers),
        "reader": reader,
        "inputs": [[spec_data(slot.spec), slot.argument, slot.kind] for slot in captured.inputs],
        "tree": result_data(captured.tree, known),
        "effects": effects_data(forward.effects),
        "results": len(forward.effects.results),
        "touched": [sorted(forward.touched.written), sorted(forward.touched.placed)],
        "leaves_grad_mode": captured.leaves_grad_mode,
        "absent": [list(pair) for pair in captured.absent],
        "facts": [list(fact) for fact in captured.facts],
        "asked": [list(each) for each in captured.asked],
        "pattern": list(captured.pattern),
        "histories": [
            [[list(place) for place in side] for side in history] for history in captured.histories
        ],
        "reads_data": captured.events.reads_data,
        "grown": sorted(forward.grown),
        "unreached": sorted(derived.unreached),
        "used": sorted(derived.used),
        "watched": [[item.input, item.result, item.root.name] for item in forward.watched],
        "reachable": list(forward.reachable),
        "segment": writer.segment(forward.segment, functions),
        "in place": writes,
        "gradients": gradients_data(captured.gradients, forward.reader),
    }
    return {**data, "groups": blobs.groups, "named": blobs.names}, left_out


def _refuse(forward: Forward, derived: Derived) -> None:
    """Refuse a program that has a part without a description."""
    settings, captured = forward.segment.settings, forward.capture
    for holds, what in (
        (settings.compiler not in _COMPILERS, f"its backend is {settings.compiler.name}"),
        (bool(derived.premises), "it reads values"),
        (derived.retains, "it calls retain_grad"),
        (bool(captured.regions or captured.shared), "its inputs share memory"),
        (_has_classes(forward), "a class of tensors says what functions of torch do"),
        (
            any(
                slot.spec.layout is not torch.strided or any(slot.spec.flags)
                for slot in captured.inputs
            ),
            "it takes sparse, conjugated or negated tensors",
        ),
        (
            forward.sizes is not None and captured.tape.wrappers.used,
            "it takes DTensors of open sizes",
        ),
    ):
        if holds:
            raise NotSavedError(what)


def _has_classes(forward: Forward) -> bool:
    """Whether a class of tensors took part whose code runs while a function is captured."""
    return forward.meets_classes or any(output.of_class for output in forward.effects.outputs)


class _Writer:
    """Writes segments with what was derived from them."""

    def __init__(
        self, blobs: Blobs, roots: set[str], left_out: list[str], under: dict[str, str]
    ) -> None:
        self._blobs, self._roots, self._left_out, self._under = blobs, roots, left_out, under

    def segment(self, segment: Segment, functions: SegmentFunctions) -> Data:
        made = {function.keeping: function for function in functions.made}
        return {
            **segment_data(segment),
            "keeping": self._form(made[True]) if True in made else None,
            "plain": self._form(made[False]) if False in made else None,
        }

    def _form(self, function: SegmentFunction) -> Data:
        backwards = []
        for key, (backward, functions) in function.derivatives.backwards.items():
            try:
                backwards.append(self._backward(key, backward, functions))
            except NotSavedError as error:
                self._left_out.append(f"a backward of {function.segment.name}: {error}")
        return {
            **form_data(function.segment, function.form, keeping=function.keeping),
            "digest": graph_digest(function.form.graph.module),
            "backward sizes": backward_sizes_data(function.derivatives.sizes),
            "program": self.program(function.program),
            "backwards": backwards,
        }

    def program(self, program: GraphProgram) -> Data:
        executables = []
        for assumed, lowered in program.variants:
            self._compare(lowered)
            described = {"assumed": conditions_data(assumed)}
            executables.append(described | executable_data(lowered, self._blobs))
        return {
            "arity": program.arity,
            "used": list(program.used),
            "kept": list(program.kept),
            "draws": program.draws,
            "traced": layouts_data([*program.traced_layouts(range(program.arity)).values()]),
            "sizes": graph_sizes_data(program.sizes),
            "executables": executables,
        }

    def _compare(self, lowered: Lowered) -> None:
        """Refuse a graph that was compiled under other settings than its program was captured."""
        found = lowered.made_under
        if found is None:
            raise NotSavedError("it isn't known under which settings a graph was compiled")
        change = difference(self._under, found)
        if change:
            raise NotSavedError(f"{change} before a graph was compiled")

    def _backward(self, key: BackwardKey, backward: Backward, functions: SegmentFunctions) -> Data:
        for holds, what in (
            (backward.mutations, "it writes to tensors"),
            (backward.premises, "it reads values"),
            (key.stops, "it stops at a result"),
            (backward.segment is not None and not functions.made, "it hasn't run yet"),
        ):
            if holds:
                raise NotSavedError(what)
        segment = backward.segment
        return {
            "key": _key_data(key),
            "targets": list(backward.targets),
            "conditions": conditions_data(backward.conditions),
            "rules": rules_data(backward.rules),
            "asked": [list(each) for each in backward.asked],
            "reads": sorted({node.name for node in backward.reads} & self._roots),
            "segment": None if segment is None else self.segment(segment, functions),
        }


def _key_data(key: BackwardKey) -> Data:
    tangents = [None if spec is None else spec_data(spec) for spec in key.tangents]
    autocast = scalar_data(key.autocast)
    return [
        list(key.needs), tangents, key.create_graph, list(key.edges), autocast, key.asked_by,
        key.variant, scalar_data(key.dispatch), list(key.pattern),
    ]  # fmt: skip


# --- making again -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Remade:
    """A program that was saved.

    Attributes:
        forward: The program.
        functions: What runs it.
        derived: What only a tape knows.
        in_place: What runs it where its graph may write to inputs.
        groups: The names of the groups of ranks that it waits for.
    """

    forward: Forward
    functions: LoadedFunctions
    derived: Derived
    in_place: InPlace | None
    groups: tuple[str, ...] = ()


def forward_from(
    data: Data,
    call: Served,
    environment: Surroundings,
    contents: Contents,
    settings: Settings,
    capture: Callable[[], Any],
) -> Remade:
    """Make a program again.

    Args:
        data: What ``forward_data`` made.
        call: What calls it serves.
        environment: What ``environment_from`` made.
        contents: The file, whose code the caller trusts.
        settings: Those of the compiled function.
        capture: Captures the call, for what only a tape can answer; gives an entry of it.

    Raises:
        NotLoadedError: If its code can't be run here.
    """
    sizes = call.sizes
    groups = groups_from(data, environment.reader)
    reader = environment.reader
    specs = [*call.signature.leaves, *map(spec_of, environment.tensors)]
    with missing_is_not_loaded():
        meshes = meshes_in(specs, () if reader is None else reader.why.namespace.values())
    loaded = Loaded(replace(contents, groups=groups, meshes=meshes), settings, sizes)

    def captured() -> SegmentFunctions:
        entry = capture()
        loaded.tape.captured = entry.capture.tape
        return entry.functions

    functions = LoadedFunctions(data["segment"], loaded, captured)
    results = functions.loaded_segment.outputs
    effects = effects_from(data["effects"], results)
    known = known_classes(environment.reader, call.signature.tree)
    forward = Forward(
        signature=call.signature,
        capture=_capture_from(data, loaded, environment.gradients, known),
        effects=effects,
        touched=Touched(*map(frozenset, data["touched"])),
        segment=functions.loaded_segment,
        in_place=None,
        reader=environment.reader,
        state=environment.state,
        sizes=sizes,
        numbers=call.numbers,
        watched=tuple(
            Watched(source, result, loaded.root(name)) for source, result, name in data["watched"]
        ),
        reachable=tuple(data["reachable"]),
        timings={},
        made_under=data["made under"],
    )
    forward.__dict__["grown"] = frozenset(data["grown"])
    derived = Derived(frozenset(data["unreached"]), frozenset(data["used"]), False, ())
    in_place = None
    if data["in place"] is not None:
        in_place = in_place_from(data["in place"], effects, loaded, lambda: capture().in_place)
    return Remade(forward, functions, derived, in_place, groups)


def _capture_from(
    data: Data, loaded: Loaded, gradients: GradientEffects | None, known: Classes
) -> Capture:
    nothing: Any = None
    inputs = []
    for index, (spec, argument, kind) in enumerate(data["inputs"]):
        node: Any = Token(f"input {index}")
        known_spec = spec_from(spec, loaded.contents.meshes)
        inputs.append(Input(known_spec, nothing, nothing, node, argument, 0, None, (), kind))
    tape: Any = loaded.tape
    return Capture(
        tape,
        tuple(inputs),
        (),
        (),
        result_from(data["tree"], known),
        (),
        (),
        (),
        InputEvents(reads_data=data["reads_data"]),
        data["leaves_grad_mode"],
        gradients=gradients,
        absent=tuple((position, name) for position, name in data["absent"]),
        facts=tuple(Fact(*fact) for fact in data["facts"]),
        asked=tuple((question, answer) for question, answer in data["asked"]),
        pattern=tuple(data["pattern"]),
        histories=tuple(
            History(*(tuple(Place(*place) for place in side) for side in history))
            for history in data["histories"]
        ),
    )


def load_executables(remade: Remade) -> None:
    """Make the executables of a program that its next call runs.

    Raises:
        NotLoadedError: If one can't be made.
    """
    program: Any = None if remade.in_place is None else remade.in_place.program
    if program is not None:
        program.load()
        return
    functions = remade.functions
    segment = functions.loaded_segment
    if not segment.output_nodes:
        return
    form = functions.forms.get(segment.is_differentiable)
    if form is None or not form["program"]["executables"]:
        raise NotLoadedError("its forward wasn't compiled")
    chosen: Any = functions.keeping if segment.is_differentiable else functions.plain
    chosen.program.load()
