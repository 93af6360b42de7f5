"""Attributes and hooks of a capture's tensors: what is read is compared, what is set is noted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tensors.classes.own_functions import has_own_functions
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.attributes import attributes_of, noticing_lookups
from funcaot._torch.tracing.seen_classes import enter_as
from funcaot.aot.signature.signature import constant_of
from funcaot.aot.state.known_hooks import hooks_of, hooks_with_methods
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.aot.subclasses.structure import added_attributes, is_wrapper
from funcaot.errors import UnsupportedError
from funcaot.rules.operands.reached import is_filled


@dataclass(frozen=True)
class Attached:
    """What a function leaves on a tensor.

    Attributes:
        values: Attributes that it set.
        removed: Attributes that it deleted.
        hooks: Hooks that it registered, each with the method.
    """

    values: tuple[tuple[str, Any], ...] = ()
    removed: tuple[str, ...] = ()
    hooks: tuple[tuple[str, Callable[..., Any]], ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything."""
        return bool(self.values or self.removed or self.hooks)


@dataclass(frozen=True)
class AllAttached:
    """What a function leaves on its inputs and on fresh outputs, by position."""

    inputs: tuple[tuple[int, Attached], ...] = ()
    outputs: tuple[tuple[int, Attached], ...] = ()


NOTHING_ATTACHED = AllAttached()


@dataclass(frozen=True, eq=False)
class _Entered:
    real: torch.Tensor
    argument: int | None
    given: dict[str, Any]
    hooks: tuple[Any, ...]


class Attributes:
    """Follows the attributes of one capture's inputs.

    Attributes:
        missing: Attributes that the function looked for and that an argument doesn't have.
    """

    def __init__(self, name: str) -> None:
        """Follow nothing yet.

        Args:
            name: The user's function, for messages.
        """
        self.missing: dict[tuple[int, str], None] = {}
        self._name = name
        self._entered: dict[int, _Entered] = {}
        self._wrappers: set[int] = set()

    def enter(self, real: torch.Tensor, seen: torch.Tensor, argument: int | None) -> None:
        """Give what the function sees the attributes of an input, as far as they are compared."""
        if is_wrapper(real):
            self._wrappers.add(id(seen))
            return  # Its parts are among them; all of them are a part of its structure.
        enter_as(seen, type(real))
        found = attributes_of(real) if argument is not None else {}
        given = {name: value for name, value in found.items() if constant_of(value) is not None}
        vars(seen).update(given)
        if argument is not None and has_own_functions(type(real)):
            self._refuse_hidden(real, found.keys() - given.keys())
        hooks = tuple(hooks_of(seen))
        self._entered[id(seen)] = _Entered(real, argument, given, hooks)

    def _refuse_hidden(self, real: torch.Tensor, names: Iterable[str]) -> None:
        """Refuse what the class of an argument may read and no signature compares."""
        for name in names:
            kind = type(attributes_of(real)[name]).__name__
            raise EagerOnlyError(
                f"{self._name} is called with a tensor of class {type(real).__name__} whose "
                f"attribute {name!r} is a {kind}, which can't be compared in later calls.",
                remedy="keep numbers, texts and tuples of them as attributes.",
            )

    def noticing(self) -> AbstractContextManager[None]:
        """While the function runs, note what it looks for and doesn't find."""
        return noticing_lookups(self._look)

    def _look(self, seen: torch.Tensor, name: str) -> None:
        entered = self._entered.get(id(seen))
        if entered is None or entered.argument is None or name in entered.given:
            return
        if name in attributes_of(entered.real):
            kind = type(attributes_of(entered.real)[name]).__name__
            raise UnsupportedError(
                f"{self._name} reads the attribute {name!r} of a tensor among its arguments, a "
                f"{kind}, which can't be compared in later calls.",
                remedy="pass it as an argument.",
            )
        self.missing[entered.argument, name] = None

    def take_off(self, inputs: Sequence[torch.Tensor], outputs: Sequence[Any]) -> AllAttached:
        """What the function left on its inputs and on outputs that it made.

        Hooks on outputs stay on these too: a backward through the tape runs them.

        Raises:
            UnsupportedError: A tensor of this capture is in there.
        """
        on_inputs = {index: self._left_on(seen) for index, seen in enumerate(inputs)}
        for index, left in on_inputs.items():
            _take_off(inputs[index], [hook for _, hook in left.hooks])
        on_outputs = {
            index: self._left_on(value)
            for index, value in enumerate(outputs)
            if isinstance(value, torch.Tensor) and id(value) not in self._entered
        }
        return AllAttached(
            tuple((index, left) for index, left in on_inputs.items() if left),
            tuple((index, left) for index, left in on_outputs.items() if left),
        )

    def _left_on(self, seen: torch.Tensor) -> Attached:
        """What the function left on one of its inputs, or on a result."""
        if is_wrapper(seen):
            self._refuse_on_wrapper(seen)
            return Attached()
        entered = self._entered.get(id(seen))
        given = {} if entered is None else entered.given
        now = attributes_of(seen)
        values = tuple((k, v) for k, v in now.items() if k not in given or v is not given[k])
        grad_dtype = None if entered is None else _grad_dtype(seen)
        if grad_dtype is not None:
            values += (("grad_dtype", grad_dtype),)
        known = () if entered is None else entered.hooks
        hooks = tuple(
            pair for pair in hooks_with_methods(seen) if not any(pair[1] is hook for hook in known)
        )
        left = Attached(values, tuple(k for k in given if k not in now), hooks)
        if left:
            self._refuse_tensors(left)
        return left

    def _refuse_on_wrapper(self, seen: torch.Tensor) -> None:
        hooks = hooks_of(seen) if id(seen) in self._wrappers else []
        if hooks or added_attributes(seen):
            what = "registers a hook" if hooks else "sets an attribute"
            raise UnsupportedError(
                f"{self._name} {what} on a tensor subclass {type(seen).__name__} that it is given "
                "or returns.",
                remedy="do it outside of the compiled function.",
            )

    def _refuse_tensors(self, left: Attached) -> None:
        things = [value for _, value in left.values]
        things += [part for _, hook in left.hooks for part in _parts(hook)]
        flat, _ = tree_flatten(things)
        if any(map(tracing.is_symbolic, flat)):
            what = "in a hook on a tensor" if left.hooks else "in an attribute of a tensor"
            raise UnsupportedError(
                f"{self._name} keeps a tensor that it made {what} that it is called with.",
                remedy="return the tensor; register hooks that need it outside.",
            )


def _take_off(seen: torch.Tensor, hooks: Sequence[Callable[..., Any]]) -> None:
    """Remove hooks from a symbolic tensor: the real one gets them, and runs them."""
    for registered in (seen._backward_hooks or {}, seen._post_accumulate_grad_hooks or {}):
        for key, hook in list(registered.items()):
            if any(hook is other for other in hooks):
                del registered[key]


def _grad_dtype(seen: torch.Tensor) -> torch.dtype | None:
    """The dtype that its gradient is to have, if it isn't its own; only a leaf has one."""
    # A view would be asked for its history, which makes it anew.
    if seen._is_view() or not (seen.requires_grad and seen.is_leaf):
        return None
    return None if seen.grad_dtype == seen.dtype else seen.grad_dtype


def _parts(hook: Any) -> Iterator[Any]:
    """What a hook holds on to: its closure, defaults, bound arguments and object."""
    function = getattr(hook, "func", hook)
    yield from getattr(hook, "args", ())
    yield from (getattr(hook, "keywords", None) or {}).values()
    cells = getattr(function, "__closure__", None) or ()
    yield from (cell.cell_contents for cell in cells if is_filled(cell))
    yield from getattr(function, "__defaults__", None) or ()
