"""Calls of a function in which values decide sizes; a compiled function sends them here.

A stage for each ``nonzero`` and the like computes what it is asked of, and the op runs on values.
One program is given all these results as arguments, whose sizes stay open as those of others do.
Stages are the same function, captured up to the op; what they would change is left to the program.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tensors.seeding import drawing_nothing, generators_among
from funcaot._torch.tracing import tracing
from funcaot.aot.graph import graphs
from funcaot.aot.graph.settings import Settings, Statistics
from funcaot.aot.runtime.entry import Entry
from funcaot.aot.state.state_effects import StateEffects
from funcaot.aot.tape.known.sizes_of_values import Answers, Asked, SizesNeededError, answering
from funcaot.errors import FuncaotError

if TYPE_CHECKING:
    from funcaot.aot.runtime.compiled import CompiledFunction

_ATEN = torch.ops.aten
# Where the result is in what a captured function returns, before the new values.
_RESULT = 0
Make = Callable[[Callable[..., Any], Settings], "CompiledFunction"]


class NotStagedError(FuncaotError):
    """A function can't run up to such an op by itself, because of what else it does."""

    def __init__(self) -> None:
        """Nobody sees it."""
        super().__init__("A function can't be run in stages.", remedy="capture it whole.")


class Answered:
    """The function, given what its ops would ask values for."""

    def __init__(self, function: Callable[..., Any]) -> None:
        """Wrap it."""
        self.function = function
        with contextlib.suppress(TypeError, ValueError):
            self.__signature__ = _with_what_is_read(function)

    def __call__(self, known: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """Run it; only a capture does."""
        answers = Answers(tuple(known.values()))
        with answering(answers):
            result = self.function(*args, **kwargs)
        if answers.reached is not None:  # The function caught the error.
            raise SizesNeededError
        return result


def _with_what_is_read(function: Callable[..., Any]) -> inspect.Signature:
    """The parameters of a function after that of what it is given; reasons are told by these."""
    signature = inspect.signature(getattr(function, "forward", function))
    given = inspect.Parameter("read", inspect.Parameter.POSITIONAL_ONLY)
    return signature.replace(parameters=[given, *signature.parameters.values()])


class UpToOp(Answered):
    """The function up to the first op whose result isn't known."""

    def __call__(self, known: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """What the op is asked of: None, if the function comes to its end."""
        answers = Answers(tuple(known.values()))
        try:
            with answering(answers):
                self.function(*args, **kwargs)
        except Exception:
            if answers.reached is None:
                raise
        if answers.reached is None:
            return None
        asked, tensors = answers.reached
        return asked, tuple(tracing.to_functional(tensor).detach().clone() for tensor in tensors)


def without_effects(entry: Entry) -> Entry:
    """A stage's program, which changes nothing that the caller sees.

    Raises:
        NotStagedError: If what it finds depends on random numbers, which the program draws itself,
            or if it steps an optimizer.
    """
    looked_at = [node for node in entry.capture.effect_nodes if not graphs.is_random(node)]
    needed = graphs.needed_for([*entry.forward.segment.output_nodes, *looked_at])
    if any(map(graphs.is_random, needed)):
        raise NotStagedError
    if generators_among(vars(entry.capture.tape.root).values()):
        raise NotStagedError
    forward, state = entry.forward, entry.forward.state
    capture, gradients = entry.capture, entry.capture.gradients
    if gradients is not None:
        steps = gradients.hyperparameters or gradients.replaced
        if steps and not all(map(_is_taken_over, needed)):
            raise NotStagedError
        read = tuple(replace(each, assigned=False) for each in gradients.gradients)
        bare_gradients = replace(gradients, gradients=read, of_results=(), replaced=())
        capture = replace(capture, gradients=bare_gradients)
    if state is not None:
        if state.kept:
            raise NotStagedError
        state = _that_stores_nothing(state)
    effects = replace(forward.effects, mutations=(), flats=(), attached=())
    bare = replace(forward, capture=capture, effects=effects, in_place=None, state=state)
    return Entry(bare, forward.segment.settings)


def _is_taken_over(node: fx.Node) -> bool:
    """Whether a node is an input, or the same numbers in another dtype: no step changes it."""
    return node.op == "placeholder" or node.target is _ATEN._to_copy.default


def _that_stores_nothing(state: StateEffects) -> StateEffects:
    """The effects of a program that stores nothing, and whose result is what it was."""

    def reach(root: tuple[Any, ...]) -> Any:
        things = state.reach(root)
        return None if things is None else things[len(things) - state.computed :]

    return replace(
        state,
        changes=(),
        in_arguments=(),
        reach=reach,
        around=0,
        read_off=(),
        returned=tuple(path for path in state.returned if path[0] == _RESULT),
        written=tuple((path, at) for path, at in state.written if path[0] == _RESULT),
    )


class SizedCalls:
    """The stages and the program of one function.

    Attributes:
        program: The function, given the results.
        stages: The function up to each op.
    """

    def __init__(self, function: Callable[..., Any], settings: Settings, make: Make) -> None:
        """Nothing is captured yet.

        Args:
            function: The user's function.
            settings: Its settings.
            make: Makes the program of a function.
        """
        self.program = make(Answered(function), settings)
        self.stages: list[CompiledFunction] = []
        self._function = function
        self._settings = replace(settings, statistics=Statistics(), is_stage=True)
        self._make = make

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call.

        Raises:
            NotStagedError: If the function can't run in stages.
        """
        known: dict[str, Any] = {}
        # The first call comes here because a capture of it has met such an op.
        for stage in list(self.stages) or [self._stage(0)]:
            if not self._go_on(stage, known, args, kwargs):
                break
        while True:
            self.program.open_together(range(len(tree_flatten(known)[0])))
            try:
                return self.program(known, *args, **kwargs)
            except SizesNeededError:
                stage = self._stage(len(known))
                if not self._go_on(stage, known, args, kwargs):
                    raise NotStagedError from None

    def _stage(self, position: int) -> CompiledFunction:
        if position == len(self.stages):
            self.stages.append(self._make(UpToOp(self._function), self._settings))
        return self.stages[position]

    def _go_on(
        self, stage: CompiledFunction, known: dict[str, Any], args: tuple[Any, ...], kwargs: Any
    ) -> bool:
        """Run one stage and the op after it; False if the function has no further one."""
        stage.open_together(range(len(tree_flatten(known)[0])))
        with drawing_nothing():
            found = stage(known, *args, **kwargs)
        if found is None:
            return False
        asked: Asked = found[0]
        known[f"{len(known)}: {asked.name}"] = asked.answer(found[1])
        return True
