"""Lifting: tensors that a function closes over become inputs while it is captured."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.calls.lost_arguments import with_lost
from funcaot._torch.calls.public_lists import behind
from funcaot._torch.levels import functorch
from funcaot._torch.tensors.classes.wrapping import flattened
from funcaot._torch.tensors.pytree import is_size, tree_map
from funcaot._torch.tensors.sizes.ragged import is_placeholder_of_torch
from funcaot._torch.tensors.sizes.read_floats import is_read
from funcaot._torch.tensors.sizes.written_numbers import is_written
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.eager_errors import error_of_eager, refuse_mixed_products
from funcaot.aot.capture.handlers import python_values
from funcaot.aot.capture.handlers.call import Call, InProgress
from funcaot.aot.capture.handlers.table import handled
from funcaot.aot.capture.numbers.calls import followed, one_by_one, with_numbers, with_written
from funcaot.aot.capture.stale_views import stale_view
from funcaot.aot.capture.wrapped_inside import WrappedInside
from funcaot.aot.closure.outside.of_torch import CALLS_WHAT_IT_IS_GIVEN, calls_no_user
from funcaot.aot.signature.tensor_kinds import refuse_unknown_kind
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.aot.tape.memory import writes
from funcaot.aot.tape.wrappers import is_wrapper
from funcaot.base.scopes import untraced
from funcaot.errors import UnsupportedError

_RECORDED = contextlib.nullcontext()


def _nothing() -> None:
    """What stands for a reference where there is none."""


class Lifting(TorchFunctionMode):
    """Replaces each real tensor that an op meets by the tape's input made for it.

    Attributes:
        lifted: The real tensors met so far that weren't arguments, in order.
        capture: The capture in progress.
    """

    def __init__(
        self,
        capture: InProgress,
        known: dict[int, torch.Tensor],
        add: Callable[[torch.Tensor], torch.Tensor],
        themselves: dict[int, torch.Tensor],
    ) -> None:
        """Start with the arguments.

        Args:
            capture: The capture in progress.
            known: The tape's tensor for each real tensor that is an argument, by ``id``.
            add: Makes the tape's input for a real tensor.
            themselves: Arguments that the function sees as they are, by ``id``.
        """
        super().__init__()
        self.lifted: list[torch.Tensor] = []
        self.capture = capture
        self._known = known
        self._real = {id(known[identity]): real for identity, real in themselves.items()}
        self._add = add
        self._wrapped = WrappedInside(capture.name)
        self._saw_number = False
        self._made: dict[int, weakref.ref[torch.Tensor]] = {}

    def note_made(self, wrapper: torch.Tensor) -> None:
        """Remember a wrapper that the function makes."""
        self._made[id(wrapper)] = weakref.ref(wrapper)

    def _enter_parts(self, wrapper: torch.Tensor) -> bool:
        """Put the tape's tensors into a wrapper, if the function made it: of what it closes over.

        Returns:
            Whether it made it.
        """
        if self._made.get(id(wrapper), _nothing)() is not wrapper:
            return False
        for name in flattened(wrapper)[0]:  # type: ignore[attr-defined]
            part = getattr(wrapper, name)
            entered = self.replace(part)
            if entered is not part:
                setattr(wrapper, name, entered)
        return True

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an op on the tape's tensors only."""
        if _describes_fake(func, args):
            return func(*args)
        if (of_lists := behind(func)) is not None:
            with self:
                return of_lists(*args, **(kwargs or {}))
        self._wrapped.refuse(func, args)
        given = (args, with_lost(func, kwargs or {}))
        entered: Any = tree_map(self.replace, given, is_leaf=is_size)
        args, keywords = entered
        if self._saw_number or self.capture.numbers is not None:
            saw, self._saw_number = self._saw_number, False
            if (inside := followed(func, args, keywords)) is not None:
                with self:
                    return inside(*args, **keywords)
            singles = one_by_one(func, args, keywords)
            if singles is not None:
                found = [self.__torch_function__(each[0], types, *each[1:]) for each in singles]
                return found if func.__name__.endswith("_") else tuple(found)
            if saw:
                func, args, keywords = with_written(func, args, keywords, self.replace, self._bring)
            else:
                func, args, keywords = with_numbers(func, args, keywords)
        stale: dict[int, torch.Tensor] = {}
        if self.capture.events.history.changes:
            (args, keywords), stale = self._with_fresh_views(func, args, keywords)
        if func is CALLS_WHAT_IT_IS_GIVEN:
            keywords = {key: self._seen_inside(value) for key, value in keywords.items()}
        try:
            refuse_mixed_products(self.capture.tape, func, args, keywords)
            with untraced() if calls_no_user(func, (args, keywords)) else _RECORDED:
                result = handled(Call.of(func, args, keywords), self.capture)
        except Exception as error:
            theirs = error_of_eager(error, self.capture.tape, func, (args, keywords))
            if theirs is None:
                raise
            raise theirs from None
        if isinstance(result, torch.Tensor):
            # In place, eager returns the tensor itself, which the caller may assign again.
            result = stale.get(id(result), result)
            return self._real.get(id(result), result)
        return result

    def _bring(self, tensor: torch.Tensor) -> Any:
        """The whole number in a tensor as one that the caller brings, which stays open."""
        return python_values.whole_number(tensor, self.capture)

    def read(self, method: Callable[..., Any], tensor: torch.Tensor) -> Any:
        """What a method reads of the tape's memory, in code that runs while the mode is aside."""
        return handled(Call.of(method, (tensor,), {}), self.capture)

    def _seen_inside(self, value: Any) -> Any:
        """A function of the user's that torch calls where this mode doesn't see what it does."""
        if not callable(value):
            return value

        def called(*args: Any, **kwargs: Any) -> Any:
            with self:
                return value(*args, **kwargs)

        return called

    def _with_fresh_views(self, func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Arguments without views that were made before a base changed its shape."""
        history, name = self.capture.events.history, getattr(func, "__name__", "")
        history.inputs.update(id(slot.tensor) for slot in self.capture.inputs)
        if name == "__get__":
            return (args, kwargs), {}
        if name not in writes.METADATA_ONLY:
            return history.refreshed((args, kwargs), self.capture.name)
        target = args[0]
        if torch.is_grad_enabled() and history.is_outdated(target) and history.is_stale(target):
            raise stale_view(target, self.capture.name)
        return (args, kwargs), {}

    def replace(self, value: Any) -> Any:
        """The tape's tensor for a real one, also at an end of a slice; anything else as it is."""
        if type(value) is slice:
            ends = (value.start, value.stop, value.step)
            held = any(isinstance(end, torch.Tensor) for end in ends)
            self._saw_number = self._saw_number or any(map(is_written, ends))
            return slice(*map(self.replace, ends)) if held else value
        if not isinstance(value, torch.Tensor) or isinstance(value, tracing.FunctionalTensor):
            self._saw_number = self._saw_number or is_written(value) or is_read(value)
            return value
        found = self._known.get(id(value))
        if found is not None:
            return found
        if is_wrapper(value):
            if is_placeholder_of_torch(value):
                return value
            made = self._enter_parts(value) or tracing.is_symbolic(value)
            return value if made else self.lift(value)
        # Ops of functorch, and FunctionalTensor.layout, reach this mode with what is wrapped.
        inner = tracing.without_functional_wrapper(functorch.fully_unwrapped(value))
        if isinstance(inner, tracing.FunctionalTensor | tracing.FakeTensor):
            return value
        if is_wrapper(inner) and (self._enter_parts(inner) or tracing.is_symbolic(inner)):
            return value
        if inner is not value and functorch.transforms_active():
            raise UnsupportedError(
                f"Inside {self.capture.name}, a torch.func transform is applied to a tensor that "
                "the function closes over.",
                remedy="pass the tensor as an argument of the compiled function.",
            )
        return self.lift(value)

    def lift_all(self, values: Iterable[torch.Tensor]) -> None:
        """Make the tape's inputs for some real tensors, in order."""
        for value in values:
            self.lift(value)

    def lift(self, value: torch.Tensor) -> torch.Tensor:
        """Make the tape's input for a real tensor."""
        if torch.nn.parameter.is_lazy(value):
            raise FirstStepError("calls a lazy module for the first time")
        refuse_unknown_kind(
            value, f"{self.capture.name} uses {{}} that isn't one of its arguments."
        )
        added = self._add(value)
        self._known[id(value)] = added
        self._real[id(added)] = value
        self.lifted.append(value)
        return added


def _describes_fake(func: Callable[..., Any], args: tuple[Any, ...]) -> bool:
    """Whether torch itself reads metadata of what a new fake tensor is made of.

    Ops of functorch reach a tape's modes with function modes on.
    """
    return (
        len(args) == 1
        and getattr(func, "__name__", "") == "__get__"
        and type(args[0]) is torch.Tensor
        and args[0].device.type == "meta"
        and not functorch.is_functorch_wrapped_tensor(args[0])
    )
