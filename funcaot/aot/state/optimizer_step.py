"""``optimizer.step()`` inside a capture: its state is lifted, its Python numbers are guarded."""

from __future__ import annotations

import contextlib
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from funcaot._torch.tensors.guards import optimizer_hooks
from funcaot._torch.tensors.sizes.number_tensors import computed, kind_of, number_of, stepping
from funcaot._torch.tensors.sizes.written_numbers import holds_written, mathematics
from funcaot._torch.tracing import tracing
from funcaot.aot.closure.look import has_plain_state
from funcaot.aot.closure.named.code_names import names_of
from funcaot.base.scopes import holding
from funcaot.errors import UnsupportedError


class FirstStepError(Exception):
    """What happens in a first call and never again; it says what. That call runs eagerly.

    An optimizer makes its state, which would be symbolic tensors if a capture made it; a module
    makes parameters or layers that it keeps; something is imported. The next call is captured.

    Attributes:
        optimizer: The one that makes its state.
    """

    optimizer: Optimizer | None = None


class StateReadError(FirstStepError):
    """Code that isn't a step reads the state of an optimizer: the call is captured once more."""


STEPS_FIRST = "steps an optimizer for the first time, which makes its state"


def names_state(code: types.CodeType) -> bool:
    """Whether code that isn't a part of a step may read or change the state of an optimizer."""
    return not stepping.steps and "state" in names_of(code).used


def refuse_other_state(holder: Any, before: Any) -> None:
    """Leave a call to eager in which an optimizer gets another state, as ``load_state_dict`` does.

    Its keys are parameters, so no later call could make it again.

    Args:
        holder: Something whose attributes the function has changed.
        before: What these were.

    Raises:
        FirstStepError: If it is an optimizer that has another dictionary for its state.
    """
    if isinstance(holder, Optimizer) and isinstance(before, dict):
        if before.get("state", holder.state) is not holder.state:
            raise FirstStepError("gives an optimizer another state, as load_state_dict does")


@dataclass(frozen=True, eq=False)
class StateTensor:
    """A tensor of an optimizer's state, by where it is found again."""

    optimizer: weakref.ref[Optimizer]
    parameter: weakref.ref[torch.Tensor]
    key: Any

    def put(self, value: Any) -> None:
        """Put another value there, for those who still hold the optimizer."""
        optimizer, parameter = self.optimizer(), self.parameter()
        if optimizer is not None and parameter is not None:
            optimizer.state[parameter][self.key] = value


@dataclass(frozen=True, eq=False)
class ParameterState:
    """What a captured step takes from an optimizer's state of one parameter.

    Attributes:
        places: Where each tensor goes among the lifted ones, and its key in the state.
    """

    optimizer: weakref.ref[Optimizer]
    parameter: weakref.ref[torch.Tensor]
    places: tuple[tuple[int, Any], ...]

    def read(self, lifted: list[Any]) -> bool:
        """Put the tensors that are there now into a list; False if there is no such state."""
        optimizer, parameter = self.optimizer(), self.parameter()
        if optimizer is None or parameter is None:
            return False
        state = optimizer.state.get(parameter)
        if state is None:
            return False
        for position, key in self.places:
            lifted[position] = state.get(key)
        return True


def by_parameter(
    tensors: Iterable[tuple[int, StateTensor]],
) -> tuple[ParameterState, ...]:
    """Tensors of optimizers' state with their positions, a parameter's together.

    Tensors have a slow hash, so each parameter is looked up once.
    """
    groups: dict[tuple[int, int], list[tuple[int, StateTensor]]] = {}
    for position, tensor in tensors:
        owner = (id(tensor.optimizer()), id(tensor.parameter()))
        groups.setdefault(owner, []).append((position, tensor))
    return tuple(
        ParameterState(
            group[0][1].optimizer,
            group[0][1].parameter,
            tuple((position, tensor.key) for position, tensor in group),
        )
        for group in groups.values()
    )


@dataclass(frozen=True, eq=False)
class Hyperparameters:
    """Learning rate, betas and so on of an optimizer, which a captured step has as constants.

    A tensor (``lr=torch.tensor(1e-3)``) isn't a constant but an input: it is compared by identity.

    Attributes:
        made_inside: Whether the function makes the optimizer, another one in each call.
    """

    optimizer: weakref.ref[Optimizer]
    groups: tuple[dict[str, Any], ...]
    made_inside: bool = False

    def after_the_capture(self) -> Hyperparameters:
        """The same once the function has run: an optimizer that it made is gone."""
        return self if self.optimizer() is not None else replace(self, made_inside=True)

    def hold(self) -> bool:
        """Whether they still are what they were."""
        if self.made_inside:
            return True
        optimizer = self.optimizer()
        if optimizer is None or len(optimizer.param_groups) != len(self.groups):
            return False
        return all(map(_same, self.groups, optimizer.param_groups))


def hyperparameters(optimizer: Optimizer) -> tuple[dict[str, Any], ...]:
    """A copy of each group, with parameters as weak references."""
    own = is_torchs(optimizer)
    return tuple(
        {
            key: tuple(map(weakref.ref, value)) if key == "params" else _kept(value, own=own)
            for key, value in group.items()
        }
        for group in optimizer.param_groups
    )


# An optimizer's state, by parameter.
_States = dict[torch.Tensor, dict[Any, Any]]
# What stands for a hyperparameter that may be another one in each call.
OPEN = object()


def _kept(value: Any, *, own: bool) -> Any:
    """What is compared; code of others may put another tensor there in each step."""
    is_open = holds_written(value) or (isinstance(value, torch.Tensor) and not own)
    return OPEN if is_open else value


def _same(saved: dict[str, Any], group: dict[str, Any]) -> bool:
    if saved.keys() != group.keys():
        return False
    for key, value in saved.items():
        now = group[key]
        if key == "params":
            if len(now) != len(value) or any(
                ref() is not tensor for ref, tensor in zip(value, now, strict=True)
            ):
                return False
        elif value is OPEN:
            continue  # The reader of the environment looks at it.
        elif now is not value and (isinstance(now, torch.Tensor) or now != value):
            return False
    return True


_REFUSED = {
    torch.optim.LBFGS: "decides by the values of losses how often it asks for them",
    torch.optim.SparseAdam: "reads the indices of sparse gradients",
}


@dataclass(eq=False)
class StepWatcher:
    """Sees each ``step`` of a capture, and what the optimizer's state was before.

    Attributes:
        hyperparameters: Of each optimizer that stepped.
        state: State tensors of each optimizer that stepped, by ``id``.
        follows_state: Whether state is followed as what other objects hold is.
        depth: How many steps are running now.
        replaced: What a step put in place of tensors of the state, once the function has run.
    """

    name: str
    follows_state: bool = False
    hyperparameters: list[Hyperparameters] = field(default_factory=list)
    state: dict[int, StateTensor] = field(default_factory=dict)
    depth: int = 0
    replaced: tuple[tuple[StateTensor, Any], ...] = ()
    _old: dict[tuple[int, int, Any], tuple[StateTensor, torch.Tensor]] = field(default_factory=dict)
    _first: dict[int, tuple[Optimizer, Any]] = field(default_factory=dict)
    _running: list[tuple[Optimizer, _States | None]] = field(default_factory=list)
    _groups: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    _thread: int = field(default_factory=threading.get_ident)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the optimizers of this thread."""
        handles = (
            register_optimizer_step_pre_hook(self._begin),
            register_optimizer_step_post_hook(self._end),
        )
        try:
            with mathematics(), holding(stepping, steps=0):
                yield
            while self._running:
                self._leave()  # An error ended this step, and the function caught it.
            self._first.clear()  # An optimizer that the function made is to end with it.
        except BaseException:
            # Who catches it calls the function as it is, or raises: the state is eager's.
            for optimizer, states in self._first.values():
                _put_back(optimizer, states)
            raise
        finally:
            for handle in handles:
                handle.remove()
            self._restore_groups()
            self.replaced = tuple(self._take_replaced())

    def _begin(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread:
            return
        self._refuse_kind(optimizer)
        self.depth += 1
        stepping.steps = self.depth
        here = weakref.ref(optimizer)
        self.hyperparameters.append(Hyperparameters(here, hyperparameters(optimizer)))
        before = None
        if has_plain_state(optimizer) and not self.follows_state:
            before = {parameter: dict(state) for parameter, state in optimizer.state.items()}
            states = [(key, state, dict(state)) for key, state in optimizer.state.items()]
            self._first.setdefault(id(optimizer), (optimizer, states))
            for parameter, state in before.items():
                for key, value in state.items():
                    if isinstance(value, torch.Tensor):
                        self.state[id(value)] = StateTensor(here, weakref.ref(parameter), key)
        self._running.append((optimizer, before))
        self._write_tensor_by_tensor(optimizer)

    def _refuse_kind(self, optimizer: Optimizer) -> None:
        """Refuse steps that loop on losses' values, or take sparse gradients apart."""
        for kind, why in _REFUSED.items():
            if isinstance(optimizer, kind):
                raise UnsupportedError(
                    f"{self.name} runs {kind.__name__}.step(), which {why}.",
                    remedy="step this optimizer outside of the compiled function, and compile the "
                    "loss.",
                )

    def _write_tensor_by_tensor(self, optimizer: Optimizer) -> None:
        """Take the path that is the same arithmetic by ops which a capture can record.

        Lists of numbers that became tensors, and fused kernels, can't be; the graph's compiler
        fuses the ops anyway. SGD counts no steps and keeps its own path, which may overwrite .grad.
        """
        if not is_torchs(optimizer):
            return  # Another path may do something else.
        counts = not isinstance(optimizer, torch.optim.SGD)
        for group in optimizer.param_groups:
            fused, rate = group.get("fused"), group.get("lr")
            if "foreach" in group and (fused or counts or isinstance(rate, torch.Tensor)):
                chosen = {key: group[key] for key in ("foreach", "fused") if key in group}
                self._groups.append((group, chosen))
                group.update(dict.fromkeys(chosen, False))

    def _end(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if threading.get_ident() != self._thread or not self._running:
            return
        while self._running and self._leave() is not optimizer:
            pass  # A step inside of this one, which an error ended.

    def _leave(self) -> Optimizer:
        """Look at what the step that began last has made of its optimizer's state."""
        self.depth -= 1
        stepping.steps = self.depth
        self._restore_groups()
        optimizer, before = self._running.pop()
        if before is not None:
            self._look(optimizer, before)
        return optimizer

    def _look(self, optimizer: Optimizer, before: _States) -> None:
        """Note tensors that were replaced; a state that was made is one of a first step."""
        made = not has_plain_state(optimizer)
        for parameter, state in optimizer.state.items():
            if not isinstance(state, dict):
                made |= tracing.is_symbolic(state)
                continue
            own = before.get(parameter, {})
            for key in [key for key, value in state.items() if tracing.is_symbolic(value)]:
                old = own.get(key)
                made |= not isinstance(old, torch.Tensor)
                if isinstance(old, torch.Tensor) and not tracing.is_symbolic(old):
                    place = StateTensor(weakref.ref(optimizer), weakref.ref(parameter), key)
                    self._old[id(optimizer), id(parameter), key] = place, old
        if made:
            optimizer.state.clear()
            optimizer.state.update(before)
            error = FirstStepError(STEPS_FIRST)
            error.optimizer = optimizer
            raise error

    def _take_replaced(self) -> Iterator[tuple[StateTensor, Any]]:
        """Put tensors of the state back, and hand out what was put in their place."""
        for place, old in self._old.values():
            optimizer, parameter = place.optimizer(), place.parameter()
            if optimizer is not None and parameter is not None and parameter in optimizer.state:
                state = optimizer.state[parameter]
                if place.key in state:
                    yield place, state[place.key]
                state[place.key] = old
        self._old.clear()

    def _restore_groups(self) -> None:
        while self._groups:
            group, chosen = self._groups.pop()
            group.update(chosen)


def is_torchs(optimizer: Optimizer) -> bool:
    """Whether torch has written how an optimizer steps."""
    step = type(optimizer).step
    return getattr(step, "__module__", "").startswith("torch.optim.")


def hooks_of_all_optimizers() -> tuple[Any, ...]:
    """The hooks that torch runs before and after each optimizer's step, without a capture's own."""
    found = optimizer_hooks()
    if not found:
        return ()
    owners = [getattr(hook, "__self__", None) for hook in found]
    own = [isinstance(owner, StepWatcher) for owner in owners]
    return tuple(hook for hook, is_own in zip(found, own, strict=True) if not is_own)


def _put_back(optimizer: Optimizer, states: Sequence[tuple[Any, Any, dict[Any, Any]]]) -> None:
    """Make an optimizer's state what it was."""
    optimizer.state.clear()
    for key, state, contents in states:
        state.clear()
        state.update(contents)
        optimizer.state[key] = state


def with_tensor_scalars(
    func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run an op of a step where Python numbers may have become tensors.

    ``step.item()`` gives a tensor that stands for the number; ops that take such a number only as
    a Python one are written with ops that take a tensor. No number has an ``item``: if what stands
    for one is asked for it, a branch or ``float`` wants the value, which the call's premises then
    are about.

    Args:
        func: The op.
        args: Its arguments.
        kwargs: Its keyword arguments.

    Returns:
        The result, or ``NotImplemented`` for an op that runs as it is.
    """
    if func is torch.Tensor.item:
        number = None if kind_of(args[0]) is not None else number_of(args[0])
        return NotImplemented if number is None else number
    rewrite = _REWRITES.get(func)
    found = NotImplemented if rewrite is None else rewrite(func, args, kwargs)
    return computed(func, args, kwargs) if found is NotImplemented else found


def _scaled(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A sum or difference, with a factor."""
    alpha = kwargs.get("alpha")
    if not isinstance(alpha, torch.Tensor) or len(args) != 2:
        return NotImplemented
    # Of two dtypes, eager multiplies in the one that it adds in.
    other = args[1].to(torch.result_type(*args)) if isinstance(args[1], torch.Tensor) else args[1]
    return func(args[0], other * _like(other, alpha))


def _weighted(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``lerp``, whose weight is of the dtype of the rest."""
    weight = kwargs.get("weight", args[2] if len(args) > 2 else None)
    if not isinstance(weight, torch.Tensor) or kind_of(weight) is None or len(args) < 2:
        return NotImplemented
    return func(*args[:2], _like(args[0], weight))


def _combined(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """``addcmul`` and ``addcdiv``, whose factor multiplies the first of the two."""
    value = kwargs.get("value", args[3] if len(args) > 3 else None)
    if not isinstance(value, torch.Tensor):
        return NotImplemented
    target, first, second = args[:3]
    first = first.to(torch.promote_types(torch.result_type(target, first), second.dtype))
    return func(target, first * _like(first, value), second)


def _each(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An op on lists that is given such a number, one by one."""
    if not any(kind_of(value) for value in [*args, *kwargs.values()]):
        return NotImplemented
    name = func.__name__.removeprefix("_foreach_")
    single = getattr(torch.Tensor, name)
    found = []
    for index in range(len(args[0])):
        given = [each[index] if isinstance(each, list | tuple) else each for each in args]
        rewrite = _REWRITES.get(single)
        result = NotImplemented if rewrite is None else rewrite(single, tuple(given), kwargs)
        found.append(single(*given, **kwargs) if result is NotImplemented else result)
    return None if name.endswith("_") else tuple(found)


def _like(tensor: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
    """A number in the dtype that a tensor is computed with."""
    return number.to(torch.result_type(tensor, 1.0))


_LISTS = ("add", "sub", "mul", "div", "lerp", "addcmul", "addcdiv", "pow")
_TENSOR: Any = torch.Tensor
_REWRITES: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((_TENSOR.add, _TENSOR.add_, _TENSOR.sub, _TENSOR.sub_), _scaled),
    **dict.fromkeys((torch.add, torch.sub), _scaled),
    **dict.fromkeys((_TENSOR.lerp, _TENSOR.lerp_, torch.lerp), _weighted),
    **dict.fromkeys((_TENSOR.addcdiv, _TENSOR.addcdiv_, torch.addcdiv), _combined),
    **dict.fromkeys((_TENSOR.addcmul, _TENSOR.addcmul_, torch.addcmul), _combined),
    **{getattr(torch, f"_foreach_{name}{end}"): _each for name in _LISTS for end in ("", "_")},
}
