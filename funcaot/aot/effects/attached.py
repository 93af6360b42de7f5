"""Attributes that a function leaves on tensors: containers are made anew in each call."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import torch

from funcaot._torch.autograd.nodes import nodes_behind
from funcaot._torch.tracing.attributes import attributes_of
from funcaot.aot.capture.attributes import AllAttached, Attached
from funcaot.aot.capture.capture import Capture
from funcaot.aot.closure.alike import may_be_another
from funcaot.aot.closure.children import CONTAINERS, DICTIONARIES
from funcaot.aot.closure.constants import is_immutable
from funcaot.aot.closure.environment import Environment
from funcaot.aot.effects.actions.attach import Attach
from funcaot.aot.effects.effects import Output
from funcaot.errors import UnsupportedError

__all__ = ["Copies", "on_outputs", "told_apart"]


def on_outputs(
    capture: Capture, outputs: Sequence[Output], name: str
) -> tuple[tuple[int, Attach], ...]:
    """What outputs get after a call.

    Hooks run in the backward of the tape that an output is a result of. One that is made again,
    as a view, has another history, and gets the hooks too.

    Raises:
        UnsupportedError: If such hooks would run in two places, each with a part of the gradient.
    """
    found = []
    for index, left in capture.attached.outputs:
        is_again = not outputs[index].is_result
        if left.hooks and is_again:
            _refuse_two_parts(capture, index, name)
        kept = left if is_again else replace(left, hooks=())
        if kept:
            found.append((index, Attach(kept)))
    return tuple(found)


def _refuse_two_parts(capture: Capture, index: int, name: str) -> None:
    hooked = capture.outputs[index].grad_fn
    others = [value for value in capture.outputs if isinstance(value, torch.Tensor)]
    starts = {value.grad_fn for value in others} - {None, hooked}
    if hooked is not None and hooked in set(nodes_behind([*starts])):
        raise UnsupportedError(
            f"{name} registers a hook on a result that is a view of another tensor, and uses it "
            "for other results too; eager's hook gets the sum of both gradients.",
            remedy="register the hook outside, or return a clone().",
        )


@dataclass(frozen=True, eq=False)
class _Old:
    """A container that was there before: a tensor gets this one, and no copy."""

    thing: Any


def told_apart(
    attached: AllAttached, environment: Environment, leaves: Sequence[Any], name: str
) -> AllAttached:
    """Attributes, where containers and objects that were there before are told from new ones.

    Args:
        attached: What the function left on tensors.
        environment: What it reaches.
        leaves: Flat leaves of the call; what its tensors have is a part of the signature.
        name: The user's function, for messages.

    Raises:
        UnsupportedError: For what no later call could make anew, or find again.
    """
    given = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    held = {id(value) for tensor in given for value in attributes_of(tensor).values()}
    known = held.union(environment.objects)

    def told(left: Attached) -> Attached:
        values = ((key, _told(key, value, known, name)) for key, value in left.values)
        return replace(left, values=tuple(values))

    return AllAttached(
        tuple((index, told(left)) for index, left in attached.inputs),
        tuple((index, told(left)) for index, left in attached.outputs),
    )


def _told(attribute: str, value: Any, known: Set[int], name: str) -> Any:
    if id(value) in known:
        return _Old(value)
    for part in _parts(value):
        old = id(part) in known and part is not value
        changeable = isinstance(part, CONTAINERS) and not is_immutable(part)
        if may_be_another(part) or (changeable and (old or type(part) not in _COPIED)):
            raise UnsupportedError(
                f"{name} sets the attribute {attribute!r} of a tensor to what holds a "
                f"{type(part).__name__} that no later call could make or find.",
                remedy="keep numbers, texts, tuples and new containers of them as attributes.",
            )
    return value


_COPIED = (list, dict, set, tuple)


def _parts(value: Any) -> Iterator[Any]:
    """A value, and what is in it if it is a container."""
    yield value
    if isinstance(value, CONTAINERS):
        for part in value.values() if isinstance(value, DICTIONARIES) else value:
            yield from _parts(part)


class Copies:
    """Copies of containers for one call: what was one object is one."""

    def __init__(self) -> None:
        """Nothing is copied yet."""
        self._made: dict[int, Any] = {}

    def of(self, value: Any) -> Any:
        """The value itself, or a copy of a container that may change."""
        if isinstance(value, _Old):
            return value.thing
        if is_immutable(value) or type(value) not in _COPIED:
            return value
        if id(value) not in self._made:
            made = self._made[id(value)] = copy.copy(value)
            if isinstance(value, dict):
                made.update((key, self.of(item)) for key, item in value.items())
            elif isinstance(value, list):
                made[:] = map(self.of, value)
            elif isinstance(value, tuple):
                self._made[id(value)] = tuple(map(self.of, value))
        return self._made[id(value)]
