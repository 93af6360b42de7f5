"""``.grad`` of tensors as an effect: read at the start, accumulated on the tape, replayed after.

``loss.backward()`` inside a compiled function accumulates into ``.grad`` of the tape's leaves. The
real ``.grad`` of each, if it has one, is lifted as an input before; what the leaf holds in the end
is an output, assigned to the real tensor after the call. A ``.grad`` that is accumulated in place
or zeroed is a mutated input like any other. Of a tensor that autograd wouldn't accumulate into, the
``.grad`` is looked at where the function itself does; a result may have one as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.levels import functorch
from funcaot._torch.levels.innermost import lacks_a_rule_here
from funcaot._torch.tensors.ops import HigherOrderOperator
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing import tracing
from funcaot.aot.closure.hashing.hashed import ANY
from funcaot.aot.closure.named.code_names import names_of
from funcaot.aot.state.changed_by_hooks import refusing_changes
from funcaot.aot.state.known_hooks import KnownHook, are_known, hooks_of, owner_of
from funcaot.aot.state.optimizer_step import (
    FirstStepError,
    Hyperparameters,
    ParameterState,
    StateTensor,
    StepWatcher,
    by_parameter,
    hooks_of_all_optimizers,
    with_tensor_scalars,
)
from funcaot.errors import UnsupportedError

_FLEX_ATTENTION = "flex_attention"
_IN_PYTHON = {"cond", "while_loop", "map_impl", "scan", "associative_scan", _FLEX_ATTENTION}

_get = torch.Tensor.grad.__get__  # type: ignore[attr-defined]
_set = torch.Tensor.grad.__set__  # type: ignore[attr-defined]
_delete = torch.Tensor.grad.__delete__  # type: ignore[attr-defined]
_OF_ONE = {_get, _set, _delete}
_TOUCHING = {*_OF_ONE, torch.Tensor.backward, torch.autograd.backward}
_STARTING = {
    torch.Tensor.requires_grad_,
    torch.Tensor.requires_grad.__set__,  # type: ignore[attr-defined]
}


@dataclass(frozen=True)
class Source:
    """Where a real tensor comes from at a call: a flat leaf, or a lifted tensor."""

    leaf: int | None
    lifted: int | None = None

    def read(self, leaves: Sequence[Any], lifted: Sequence[Any]) -> Any:
        """The tensor of this call, or what else is known of it."""
        return leaves[self.leaf] if self.leaf is not None else lifted[self.lifted or 0]


@dataclass(frozen=True)
class Gradient:
    """The ``.grad`` of one leaf.

    Attributes:
        source: The leaf.
        lifted: Position of its ``.grad`` among the lifted tensors; None if it had none.
        hooks: The hooks that it had; None if autograd wouldn't accumulate into it.
        assigned: Whether it is replaced after the call.
        value: Which of the extra outputs replaces it; None to set it to None.
        tensor: The leaf that was captured, as long as somebody has it.
    """

    source: Source
    lifted: int | None
    hooks: tuple[KnownHook, ...] | None
    assigned: bool = False
    value: int | None = None
    tensor: weakref.ref[torch.Tensor] | None = None

    def fits(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor has a ``.grad`` and hooks exactly if the captured one had."""
        if (tensor.grad is None) != (self.lifted is None):
            return False
        return self.hooks is None or are_known(self.hooks, tensor)

    def change_of(self, tensor: torch.Tensor, name: str) -> str:
        """In what a tensor doesn't fit, in words."""
        if self.lifted is None and tensor.grad is not None:
            return f"{name}.grad was None and is now a tensor"
        if self.lifted is not None and tensor.grad is None:
            return f"{name}.grad was a tensor and is now None"
        return f"{name} has other hooks than before"


@dataclass(frozen=True, eq=False)
class GradientEffects:
    """What a function does to ``.grad``, and the optimizers that it steps.

    Attributes:
        gradients: One per leaf whose ``.grad`` may be read or written.
        state: Optimizers' state of each parameter.
        hyperparameters: Of each optimizer.
        count: Number of lifted tensors.
        of_results: Flat outputs that were made inside and have a ``.grad``, with the extra output
            that it is.
        replaced: Tensors of optimizers' state that are replaced, by which extra output.
        hooks: Those that torch ran for all optimizers, if it steps any.
        settings: Hyperparameters that are tensors, with their positions among the lifted ones.
    """

    gradients: tuple[Gradient, ...]
    state: tuple[ParameterState, ...]
    hyperparameters: tuple[Hyperparameters, ...]
    count: int
    of_results: tuple[tuple[int, int], ...] = ()
    replaced: tuple[tuple[StateTensor, int], ...] = ()
    hooks: tuple[Any, ...] = ()
    settings: tuple[tuple[weakref.ref[torch.Tensor], int], ...] = ()

    @cached_property
    def hidden(self) -> frozenset[int]:
        """Positions of lifted tensors that are read here and not in the environment."""
        found = {gradient.lifted for gradient in self.gradients if gradient.lifted is not None}
        return frozenset(found.union(*(dict(item.places) for item in self.state)))

    def read(
        self, leaves: Sequence[Any], found: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...] | None:
        """All lifted tensors, from those found in the environment; None if something changed."""
        if not all(item.hold() for item in self.hyperparameters):
            return None
        if self.hyperparameters and not self.has_its_hooks():
            return None
        rest = iter(found)
        hidden = self.hidden
        lifted: list[Any] = [None if i in hidden else next(rest) for i in range(self.count)]
        if not all(item.read(lifted) for item in self.state):
            return None
        for gradient in self.gradients:
            tensor = gradient.source.read(leaves, lifted)
            if not gradient.fits(tensor):
                return None
            if gradient.lifted is not None:
                lifted[gradient.lifted] = tensor.grad
        return None if any(tensor is None for tensor in lifted) else tuple(lifted)

    def explain(
        self,
        leaves: Sequence[Any],
        found: Sequence[torch.Tensor],
        names: Sequence[str],
        arguments: Sequence[str],
    ) -> str:
        """What isn't as it was, in words; empty if everything that is looked at here is.

        Args:
            leaves: Flat leaves of the call.
            found: The tensors that the environment holds.
            names: What the user calls these.
            arguments: What the user calls the leaves.
        """
        if not all(item.hold() for item in self.hyperparameters):
            return "the groups of an optimizer are others than before"
        if self.hyperparameters and not self.has_its_hooks():
            return "the hooks that torch runs for all optimizers are others than before"
        lifted = self._placed(found)
        for gradient in self.gradients:
            tensor = gradient.source.read(leaves, lifted)
            if isinstance(tensor, torch.Tensor) and not gradient.fits(tensor):
                name = gradient.source.read(arguments, self._placed(names))
                return gradient.change_of(tensor, name or "a tensor")
        if all(item.read(lifted) for item in self.state):
            return ""
        return "the state of an optimizer, which it has yet to make"

    def _placed(self, found: Sequence[Any]) -> list[Any]:
        """What is known of the environment's tensors, at their places among the lifted ones."""
        rest, hidden = iter(found), self.hidden
        return [None if i in hidden else next(rest, None) for i in range(self.count)]

    def has_its_hooks(self) -> bool:
        """Whether torch runs the hooks for all optimizers that it ran in the capture."""
        now = hooks_of_all_optimizers()
        return len(now) == len(self.hooks) and all(
            one is other for one, other in zip(now, self.hooks, strict=True)
        )

    def apply(
        self, leaves: Sequence[Any], lifted: Sequence[torch.Tensor], values: Sequence[Any]
    ) -> None:
        """Assign ``.grad`` after a call."""
        for gradient in self.gradients:
            if gradient.assigned:
                tensor = gradient.source.read(leaves, lifted)
                tensor.grad = None if gradient.value is None else values[gradient.value]
        for place, value in self.replaced:
            place.put(values[value])

    def apply_to_results(self, outputs: Sequence[Any], values: Sequence[Any]) -> None:
        """Give new tensors among a call's flat outputs their ``.grad``."""
        for position, value in self.of_results:
            outputs[position].grad = values[value]


@dataclass(eq=False)
class _Slot:
    """A leaf that was entered: what it is on the outside and on the tape."""

    real: torch.Tensor
    leaf: int | None
    seen: torch.Tensor
    before: torch.Tensor | None
    entered: torch.Tensor | None
    handles: list[Any]
    accumulates: bool


class GradientTracker(TorchFunctionMode):
    """Runs inside a capture, where it still sees real tensors, and enters their ``.grad``."""

    def __init__(
        self,
        function: Callable[..., Any],
        leaves: Sequence[Any],
        name: str,
        as_they_are: frozenset[int] = frozenset(),
        *,
        follows_state: bool = False,
    ) -> None:
        """Wrap a function that is about to be captured.

        Args:
            function: The user's function.
            leaves: Flat leaves of the call.
            name: The user's function, for messages.
            as_they_are: Tensors among the leaves that it is given themselves, by ``id``.
            follows_state: Whether the state of optimizers is followed as other objects are.
        """
        super().__init__()
        self._follows_state = follows_state
        self.themselves = {id(leaf): leaf for leaf in leaves if id(leaf) in as_they_are}
        self._function = function
        self._leaves = leaves
        self._name = name
        self._start()

    def _start(self) -> None:
        self._seen: dict[int, tuple[torch.Tensor, int | None]] = {}
        self._slots: dict[int, _Slot] = {}
        self._active = False
        self._steps = StepWatcher(self._name, self._follows_state)
        self._results: list[tuple[_Slot, bool, int | None]] = []
        self._of_results: list[tuple[int, int]] = []
        self._replaced: tuple[tuple[StateTensor, int], ...] = ()
        self._asked: dict[int, torch.Tensor] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Any, tuple[torch.Tensor, ...]]:
        """Run the function on the tape's tensors: its result, and what ``.grad`` becomes."""
        self._start()
        traced, _ = tree_flatten((args, kwargs))
        for position, tensor in enumerate(traced):
            if isinstance(tensor, torch.Tensor):
                self._seen.setdefault(id(tensor), (tensor, position))
        with self._steps.watching(), self:
            result = self._function(*args, **kwargs)
        values = self._finish()
        if not self._active:
            if self._steps.replaced:
                raise FirstStepError("steps an optimizer without gradients")
            return result, values
        self._replaced = tuple(
            (place, len(values) + index) for index, (place, _) in enumerate(self._steps.replaced)
        )
        values += tuple(value for _, value in self._steps.replaced)
        return result, (*values, *self._grads_of_results(result, len(values)))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Enter the ``.grad`` of what is known before it matters."""
        kwargs = kwargs or {}
        if isinstance(func, HigherOrderOperator) and func.name() in _IN_PYTHON:
            with self:  # what runs inside is the user's
                return _run_in_python(func, args, kwargs)
        if isinstance(func, HigherOrderOperator) and lacks_a_rule_here(func):
            raise UnsupportedError(
                f"The higher-order operator {func.name()} is used under a transform.",
                remedy="call it outside of the transform, or make its derivative a Function.",
            )
        for value in tree_flatten((args, kwargs))[0]:
            if isinstance(value, torch.Tensor) and not tracing.is_symbolic(value):
                self._note(value)
        reads, owner = func == _get, args[0] if func in _OF_ONE else None
        if func in _OF_ONE or func in _STARTING:
            self._asked[id(args[0])] = args[0]
            if self._active and id(args[0]) in self._seen:
                self._enter(*self._seen[id(args[0])], reads=reads, owner=owner)
        if func in _TOUCHING and not self._active:
            self._active = True
            for tensor, position in list(self._seen.values()):
                self._enter(tensor, position, reads=reads, owner=owner)
        if self._steps.depth:
            result = with_tensor_scalars(func, args, kwargs)
            if result is not NotImplemented:
                return result
        return func(*args, **kwargs)

    def _note(self, tensor: torch.Tensor) -> None:
        if id(tensor) not in self._seen:
            self._seen[id(tensor)] = (tensor, None)
            if self._active:
                self._enter(tensor, None)

    def _enter(
        self,
        seen: torch.Tensor,
        position: int | None,
        *,
        reads: bool = False,
        owner: torch.Tensor | None = None,
    ) -> None:
        real = seen if position is None else self._leaves[position]
        if id(real) in self._slots:
            return
        with tracing.without_torch_function():
            accumulates = real.requires_grad and real.is_leaf
            if not accumulates and id(seen) not in self._asked:
                return
            if functorch.unwrap_if_dead(real) is not real:
                return  # It was a transform's inside, which is over.
            if functorch.is_functorch_wrapped_tensor(real):
                if seen is not owner or (reads and not accumulates):
                    return  # A level's own tensor has none, and torch refuses backward() there.
                raise UnsupportedError(
                    f"{self._name} calls backward() or uses .grad under a torch.func transform.",
                    remedy="use torch.autograd.grad or torch.func.grad inside.",
                )
            before, hooks = real.grad, hooks_of(real) if accumulates else []
            self._note_owners(hooks)
            accumulated = list((real._post_accumulate_grad_hooks or {}).values())
        if before is not None:
            _set(seen, before)
        entered = _get(seen)
        handles = [
            torch.Tensor.register_post_accumulate_grad_hook(seen, self._refusing(hook))
            if hook in accumulated
            else torch.Tensor.register_hook(seen, self._refusing(hook))
            for hook in hooks
        ]
        slot = _Slot(real, position, seen, before, entered, handles, accumulates)
        self._slots[id(real)] = slot

    def note_code(self, functions: Iterable[FunctionType], names: Iterable[str]) -> None:
        """Take note of functions that run later and of names in them: tensors were taken there."""
        ran = self._function.ran  # type: ignore[attr-defined]
        ran.asked.update(names)
        for function in functions:
            ran.note(function.__code__, function.__globals__)
            if "vars" in names_of(function.__code__).used:
                ran.whole.add(ANY)  # Nobody has seen of what.

    def _refusing(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        function: Any = self._function
        return refusing_changes(hook, self._name, lambda: function.environment)

    def _note_owners(self, hooks: Sequence[Any]) -> None:
        """What methods among hooks read of their objects is compared."""
        owners = [owner for owner in map(owner_of, hooks) if owner is not None]
        if any(type(owner).__weakrefoffset__ == 0 for owner in owners):
            raise UnsupportedError(
                f"{self._name} calls backward() through a hook that is a method of an object which "
                "nobody can refer to weakly.",
                remedy="register a function.",
            )
        self._function.ran.owners += owners  # type: ignore[attr-defined]

    def _finish(self) -> tuple[torch.Tensor, ...]:
        """Take the final ``.grad`` off the tape's leaves."""
        values: list[torch.Tensor] = []
        for slot in self._slots.values():
            now = _get(slot.seen)
            for handle in slot.handles:
                handle.remove()
            _set(slot.seen, None)
            if now is slot.entered:
                self._results.append((slot, False, None))
            elif now is None:
                self._results.append((slot, True, None))
            else:
                self._results.append((slot, True, len(values)))
                values.append(now)
        return tuple(values)

    def _grads_of_results(self, result: Any, count: int) -> list[torch.Tensor]:
        """What new tensors among the results hold, which is to come after so many values."""
        found = []
        inputs = {id(slot.seen) for slot in self._slots.values()}.union(self._seen)
        for position, value in enumerate(tree_flatten(result)[0]):
            if not isinstance(value, torch.Tensor) or id(value) in inputs:
                continue
            gradient = _get(value) if id(value) in self._asked or _accumulates(value) else None
            if gradient is not None:
                self._of_results.append((position, count + len(found)))
                found.append(gradient)
        return found

    def effects(self, lifted: Sequence[torch.Tensor]) -> GradientEffects | None:
        """The record, once the capture has lifted what it had to."""
        if not self._active:
            return None
        places = {id(tensor): index for index, tensor in enumerate(lifted)}
        gradients = tuple(
            Gradient(
                Source(slot.leaf, None if slot.leaf is not None else places[id(slot.real)]),
                None if slot.before is None else places[id(slot.before)],
                tuple(map(KnownHook, hooks_of(slot.real))) if slot.accumulates else None,
                assigned,
                value,
                weakref.ref(slot.real),
            )
            for slot, assigned, value in self._results
            if slot.leaf is not None or id(slot.real) in places
        )
        state = by_parameter(
            (places[key], item) for key, item in self._steps.state.items() if key in places
        )
        steps = tuple(item.after_the_capture() for item in self._steps.hyperparameters)
        count = len(lifted)
        results = tuple(self._of_results)
        hooks = hooks_of_all_optimizers() if steps else ()
        values = [value for step in steps for group in step.groups for value in group.values()]
        settings = tuple(
            (weakref.ref(value), places[id(value)])
            for value in values
            if isinstance(value, torch.Tensor) and id(value) in places
        )
        return GradientEffects(
            gradients, state, steps, count, results, self._replaced, hooks, settings
        )


def _run_in_python(func: HigherOrderOperator, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What an operator of torch stands for, in ops that a tape records."""
    # Torch imports much for control flow; no other function needs either.
    if func.name() == _FLEX_ATTENTION:
        from funcaot.derivatives.attention.flexible import flexible_attention

        return flexible_attention(*args, **kwargs)
    from funcaot.aot.capture import control_flow

    return control_flow.run(func, args, kwargs)


def _accumulates(tensor: torch.Tensor) -> bool:
    """Whether autograd itself may have given a tensor that a function made a ``.grad``."""
    with tracing.without_torch_function():
        try:
            return tensor.requires_grad and (tensor.is_leaf or tensor.retains_grad)
        except RuntimeError:
            # A view made in no_grad whose base was written to: autograd forbids to look.
            return False
