"""Programs that take whole training steps, as data: what they do to ``.grad`` and to optimizers.

A gradient belongs to a leaf, and a tensor of an optimizer's state to a parameter. Both are named by
the place of that tensor among the arguments or among those that the function closes over; an
optimizer is named by how the code that ran leads to it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx
from torch.optim import Optimizer

from funcaot.aot.calls.in_place_call import InPlace
from funcaot.aot.calls.program import GraphProgram
from funcaot.aot.capture.grad_effects import Gradient, GradientEffects, Source
from funcaot.aot.effects.effects import Effects
from funcaot.aot.lowering.lower import Writes
from funcaot.aot.reader.reader import Reader
from funcaot.aot.saved.codec import Data, scalar_data, scalar_from
from funcaot.aot.saved.errors import NotLoadedError, NotMadeYetError, NotSavedError
from funcaot.aot.saved.functions import Loaded, LoadedProgram
from funcaot.aot.saved.graphs import graph_digest
from funcaot.aot.saved.segments import loaded_form
from funcaot.aot.segment.in_place import InPlacePlan
from funcaot.aot.state.optimizer_step import OPEN, Hyperparameters, ParameterState, StateTensor

_PARAMETERS = "params"


# --- gradients and optimizers ---------------------------------------------------------------------


def gradients_data(effects: GradientEffects | None, reader: Reader | None) -> Data:
    """What a program does to ``.grad`` and to optimizers.

    Raises:
        NotSavedError: If a part of it has no description.
    """
    if effects is None:
        return None
    if any(gradient.hooks for gradient in effects.gradients):
        raise NotSavedError("there are hooks on gradients that it accumulates")
    if effects.hooks:
        raise NotSavedError("there are hooks that torch runs for all optimizers")
    writer = _Writer(effects, reader)
    return {
        "gradients": [
            [
                _source_data(item.source),
                item.lifted,
                item.hooks is not None,
                item.assigned,
                item.value,
            ]
            for item in effects.gradients
        ],
        "steps": [writer.step(item) for item in effects.hyperparameters],
        "state": [
            [
                writer.optimizer(item.optimizer),
                writer.parameter(item.parameter),
                [[position, scalar_data(key)] for position, key in item.places],
            ]
            for item in effects.state
        ],
        "count": effects.count,
        "of_results": [list(pair) for pair in effects.of_results],
        "replaced": [
            [
                writer.optimizer(place.optimizer),
                writer.parameter(place.parameter),
                scalar_data(place.key),
                value,
            ]
            for place, value in effects.replaced
        ],
    }


class _Writer:
    """Names optimizers and parameters of this process."""

    def __init__(self, effects: GradientEffects, reader: Reader | None) -> None:
        found = () if reader is None else reader.optimizers
        self._optimizers = {id(ref()): list(key) for key, ref in found if ref() is not None}
        tensors = [(item.tensor and item.tensor(), item.source) for item in effects.gradients]
        self._sources = {id(tensor): source for tensor, source in tensors if tensor is not None}
        self._settings = {id(ref()): place for ref, place in effects.settings}

    def step(self, item: Hyperparameters) -> Data:
        groups = []
        for group in item.groups:
            values = {key: value for key, value in group.items() if key != _PARAMETERS}
            given = [self._known(ref) for ref in group[_PARAMETERS]]
            groups.append([given, [[key, self._value(key, v)] for key, v in values.items()]])
        optimizer = item.optimizer()
        kind = type(optimizer)
        return [
            self.optimizer(item.optimizer), f"{kind.__module__}.{kind.__qualname__}", groups
        ]  # fmt: skip

    def optimizer(self, ref: weakref.ref[Optimizer]) -> Data:
        found = self._optimizers.get(id(ref()))
        if ref() is None or found is None:
            raise NotSavedError("it steps an optimizer that its code doesn't lead to")
        return found

    def parameter(self, ref: weakref.ref[torch.Tensor]) -> Data:
        found = self._known(ref)
        if found is None:
            raise NotSavedError("an optimizer keeps state of a tensor that isn't used")
        return found

    def _value(self, key: str, value: Any) -> Data:
        if value is OPEN:
            return {"open": True}
        if not isinstance(value, torch.Tensor):
            return scalar_data(value)
        if id(value) not in self._settings:
            raise NotSavedError(f"an optimizer's {key} is a tensor that its code doesn't lead to")
        return {"lifted": self._settings[id(value)]}

    def _known(self, ref: weakref.ref[torch.Tensor]) -> Data:
        """Where a parameter comes from; None for one that the program doesn't use."""
        tensor = ref()
        if tensor is None:
            raise NotSavedError("a parameter of an optimizer is gone")
        source = self._sources.get(id(tensor))
        return None if source is None else _source_data(source)


def _source_data(source: Source) -> Data:
    return [source.leaf, source.lifted]


def gradients_from(
    data: Data,
    reader: Reader | None,
    tensors: Sequence[torch.Tensor],
    leaves: Sequence[Any],
) -> GradientEffects | None:
    """What ``gradients_data`` described, for the optimizers and tensors of this process.

    Args:
        data: The description.
        reader: The reader that was made here.
        tensors: The closed-over tensors that it reads.
        leaves: Flat leaves of a call.

    Raises:
        NotMadeYetError: If an optimizer has yet to make its state, and everything else is right.
        NotLoadedError: If an optimizer isn't as it was.
    """
    if data is None:
        return None
    hidden = {lifted for _, lifted, *_ in data["gradients"] if lifted is not None}
    hidden |= {position for *_, places in data["state"] for position, _ in places}
    rest = iter(tensors)
    lifted = [None if i in hidden else next(rest, None) for i in range(data["count"])]
    finder = _Finder(reader, lifted, leaves)
    steps = tuple(map(finder.step, data["steps"]))
    state = tuple(
        ParameterState(
            finder.optimizer(optimizer),
            finder.parameter(parameter),
            tuple((position, scalar_from(key)) for position, key in places),
        )
        for optimizer, parameter, places in data["state"]
    )
    if any(map(_is_to_be_made, state)):
        raise NotMadeYetError("an optimizer makes its state in its first step")
    for item in state:
        item.read(lifted)
    replaced = tuple(
        (
            StateTensor(finder.optimizer(optimizer), finder.parameter(parameter), scalar_from(key)),
            value,
        )
        for optimizer, parameter, key, value in data["replaced"]
    )
    gradients = tuple(map(finder.gradient, data["gradients"]))
    results = tuple((position, value) for position, value in data["of_results"])
    return GradientEffects(gradients, state, steps, data["count"], results, replaced)


class _Finder:
    """Finds the optimizers and parameters of another process in this one."""

    def __init__(self, reader: Reader | None, lifted: list[Any], leaves: Sequence[Any]) -> None:
        self._optimizers = {} if reader is None else dict(reader.optimizers)
        self._lifted, self._leaves = lifted, leaves

    def optimizer(self, key: Data) -> weakref.ref[Optimizer]:
        found = self._optimizers.get(tuple(key))
        if found is None or found() is None:
            raise NotLoadedError("an optimizer that it steps isn't where it was")
        return found

    def parameter(self, source: Data) -> weakref.ref[torch.Tensor]:
        return weakref.ref(self._tensor(source))

    def gradient(self, data: Data) -> Gradient:
        """One gradient, which may have a ``.grad`` too; that comes after it."""
        source, lifted, has_gradient, *rest = data
        tensor = self._tensor(source)
        if lifted is not None:
            if tensor.grad is None:
                raise NotLoadedError("a .grad was there and is None")
            self._lifted[lifted] = tensor.grad
        hooks = () if has_gradient else None
        return Gradient(Source(*source), lifted, hooks, *rest, tensor=weakref.ref(tensor))

    def _tensor(self, source: Data) -> torch.Tensor:
        tensor = Source(*source).read(self._leaves, self._lifted)
        if not isinstance(tensor, torch.Tensor):
            raise NotLoadedError("a tensor whose .grad it uses isn't where it was")
        return tensor

    def step(self, data: Data) -> Hyperparameters:
        key, kind, groups = data
        ref = self.optimizer(key)
        optimizer: Any = ref()
        found = type(optimizer)
        if f"{found.__module__}.{found.__qualname__}" != kind:
            raise NotLoadedError(f"an optimizer was a {kind} and is a {found.__qualname__}")
        now = optimizer.param_groups
        if len(now) != len(groups):
            raise NotLoadedError(f"the {found.__name__} had {len(groups)} groups of parameters")
        known = tuple(self._group(*pair) for pair in zip(groups, now, strict=True))
        return Hyperparameters(ref, known)

    def _group(self, data: Data, now: dict[str, Any]) -> dict[str, Any]:
        given, values = data
        known = {key: self._value(value) for key, value in values}
        for key in {*known, *now} - {_PARAMETERS}:
            if key not in known or key not in now:
                raise NotLoadedError(f"an optimizer's {key} is there in one process only")
            one, other = known[key], now[key]
            if one is OPEN:
                continue  # The reader looks at it.
            tensors = isinstance(one, torch.Tensor) or isinstance(other, torch.Tensor)
            if one is not other and (tensors or one != other):
                was, now_is = ("a tensor" if tensors else repr(each) for each in (one, other))
                raise NotLoadedError(f"an optimizer's {key} was {was} and is {now_is}")
        return {_PARAMETERS: self._parameters(given, now[_PARAMETERS]), **known}

    def _value(self, data: Data) -> Any:
        if isinstance(data, dict) and "lifted" in data:
            return self._lifted[data["lifted"]]
        return OPEN if data == {"open": True} else scalar_from(data)

    def _parameters(
        self, given: Sequence[Data], now: Sequence[torch.Tensor]
    ) -> tuple[weakref.ref[torch.Tensor], ...]:
        """The parameters of a group; those that the program doesn't use are those of now."""
        known = {id(tensor) for tensor in [*self._lifted, *self._leaves] if tensor is not None}
        if len(given) != len(now):
            raise NotLoadedError(f"an optimizer had {len(given)} parameters and has {len(now)}")
        for source, tensor in zip(given, now, strict=True):
            same = id(tensor) not in known if source is None else tensor is self._tensor(source)
            if not same:
                raise NotLoadedError("an optimizer's parameters are other ones")
        return tuple(map(weakref.ref, now))


def _is_to_be_made(item: ParameterState) -> bool:
    """Whether an optimizer has yet to make the state that a program takes from it."""
    optimizer, parameter = item.optimizer(), item.parameter()
    return optimizer is not None and parameter is not None and not optimizer.state.get(parameter)


# --- graphs that write to inputs ------------------------------------------------------------------


def in_place_data(in_place: InPlace, effects: Effects, program: Data) -> Data:
    """A graph that writes to inputs, with its program as data."""
    plan = in_place.plan
    left = plan.effects.mutations
    return {
        "positions": list(plan.form.positions),
        "pairs": [list(pair) for pair in plan.writes.pairs],
        "kept": list(plan.writes.kept),
        "written": list(plan.written),
        "versions": list(plan.versions),
        "others": list(plan.others),
        "left": [index for index, each in enumerate(effects.mutations) if each in left],
        "count": plan.count,
        "digest": graph_digest(plan.form.graph.module),
        "program": program,
    }


def in_place_from(
    data: Data, effects: Effects, loaded: Loaded, captured: Callable[[], InPlace | None]
) -> InPlace:
    """What ``in_place_data`` described.

    Args:
        data: The description.
        effects: All effects of the program.
        loaded: What the functions of the program share.
        captured: Captures the call, for what only its graph can answer.
    """
    writes = Writes(
        tuple((position, output) for position, output in data["pairs"]),
        tuple(data["kept"]),
        fx.GraphModule({}, fx.Graph()),  # Only what compiles reads it.
    )
    left = tuple(effects.mutations[index] for index in data["left"])
    plan = InPlacePlan(
        loaded_form(data),
        writes,
        tuple(data["written"]),
        tuple(data["versions"]),
        tuple(data["others"]),
        Effects(effects.results, left, effects.outputs),
        data["count"],
    )

    def real() -> GraphProgram:
        found = captured()
        if found is None or graph_digest(found.plan.form.graph.module) != data["digest"]:
            raise loaded.changed()
        return found.program

    name = loaded.settings.name
    return InPlace(plan, loaded.settings, LoadedProgram(data["program"], loaded, name, real))
