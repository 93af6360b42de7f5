"""Tensors inside of what a Function keeps on its ctx, taken out and put back.

A ctx may hold anything: an object that holds an object that holds a tensor, a function that closes
over one. What runs a rule later, at another level or on real values, has other tensors. It puts
these into copies of what was kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import handle_torch_function

from funcaot._torch.levels.functorch import function_mode_active, is_functorch_wrapped_tensor
from funcaot._torch.tracing.tracing import is_symbolic
from funcaot.classes.kept_values import are_same
from funcaot.classes.opaque import Captor, current_captor
from funcaot.errors import UnsupportedError
from funcaot.rules.operands.closure_parts import is_iterator, parts_of
from funcaot.rules.operands.closures import Hollow, Sealed, hollowed
from funcaot.rules.operands.copied_writes import Original, Writes
from funcaot.rules.operands.flat_call import OPERAND, FlatCall, flatten_values
from funcaot.rules.operands.reached import may_hold, reached_from

__all__ = [
    "HeldCall",
    "Holders",
    "Inside",
    "data_inside",
    "entered",
    "flatten_held",
    "is_of_a_call",
]


def is_of_a_call(tensor: torch.Tensor) -> bool:
    """Whether a tensor stands for that of each call: one of a tape, or one of a level."""
    return is_symbolic(tensor) or is_functorch_wrapped_tensor(tensor)


def entered(captor: Captor, tensors: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """The tape's tensors for those that were there before: its program looks at these anew.

    Args:
        captor: The capture, or what its backward is traced on.
        tensors: Any tensors.
    """
    with captor.closed_over.entering():
        found = _as_modes_pass_on(*tensors)
    return tuple(map(captor.closed_over.replace, found))


def _as_modes_pass_on(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if function_mode_active():
        return handle_torch_function(_as_modes_pass_on, (), *tensors)
    return tensors


@dataclass(frozen=True)
class Inside:
    """Stands in the place of an object from which tensors were taken: one of the holders."""

    index: int


@dataclass(frozen=True, eq=False)
class Holders:
    """Objects and functions without the tensors that were taken out of them.

    They are taken apart together, so that what two of them share stays shared.

    Attributes:
        hollow: The holders with holes.
    """

    hollow: Hollow

    @classmethod
    def of(
        cls, leaves: Iterable[Any], wanted: Callable[[torch.Tensor], bool]
    ) -> tuple[Holders | None, list[Any], tuple[torch.Tensor, ...]]:
        """Take tensors out of what holds them.

        Args:
            leaves: Values, among them objects.
            wanted: Which tensors.

        Returns:
            The holders, if there are any; the leaves with marks in their places; the tensors.

        Raises:
            Sealed: A tensor is held by what can't be copied.
        """
        found = list(leaves)
        places = [i for i, leaf in enumerate(found) if _may_hold(leaf)]
        if not places:
            return None, found, ()
        hollow, tensors, _ = hollowed(tuple(found[i] for i in places), wanted)
        if not tensors:
            return None, found, ()
        for index, place in enumerate(places):
            found[place] = Inside(index)
        return cls(hollow), found, tensors

    def filled(
        self, tensors: Iterable[Any], written: list[Writes] | None = None
    ) -> tuple[Any, ...]:
        """Copies of the holders, with tensors in the places of those taken out."""
        return self.hollow.filled(tensors, written)

    def is_same_as(self, other: Holders) -> bool:
        """Whether a rule can't tell these from the holders of another call, but for tensors."""
        return self._alike(self.hollow.roots, other.hollow.roots, set())

    def _alike(self, one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
        if id(one) not in self.hollow.copies:
            return are_same(one, other)
        if (id(one), id(other)) in seen:
            return True
        seen.add((id(one), id(other)))
        if type(one) is not type(other):
            return False
        if getattr(one, "__code__", None) is not getattr(other, "__code__", None):
            return False
        parts = list(parts_of(one)), list(parts_of(other))
        return len(parts[0]) == len(parts[1]) and all(
            names[0] == names[1] and self._alike(*values, seen)
            for names, values in (zip(*pair, strict=True) for pair in zip(*parts, strict=True))
        )


def _may_hold(value: Any) -> bool:
    return not (value is OPERAND or isinstance(value, torch.Tensor)) and may_hold(value)


@dataclass(frozen=True, eq=False)
class HeldCall:
    """How to rebuild the arguments of a call from its tensors, those inside of objects too.

    Attributes:
        flat: The same, with marks in the places of objects that hold tensors.
        holders: The objects.
        count: How many tensors they hold, which come first.
    """

    flat: FlatCall
    holders: Holders
    count: int

    def arguments(self, tensors: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, with ``tensors`` in their places."""
        made = self.holders.filled(tensors[: self.count])
        leaves = tuple(
            tuple(made[leaf.index] if isinstance(leaf, Inside) else leaf for leaf in each)
            for each in self.flat.leaves
        )
        return FlatCall(self.flat.specs, leaves).arguments(tensors[self.count :])


def flatten_held(
    values: tuple[Any, ...], name: str
) -> tuple[FlatCall | HeldCall, tuple[torch.Tensor, ...]]:
    """Flatten what a backward is given, and take the call's tensors out of objects.

    Args:
        values: Saved tensors, attributes of the ctx by name, cotangents.
        name: The Function.

    Raises:
        UnsupportedError: A tensor is held by what can't be copied; or there is an iterator in a
            capture, whose program would have it give its items to one call after another.
    """
    call, tensors = flatten_values(values)
    leaves = [leaf for each in call.leaves for leaf in each]
    try:
        split = values[1].get("_funcaot_plan")
        objects = leaves if split is None else split.plan.objects
        if current_captor() is not None and any(map(is_iterator, objects)):
            raise Sealed("There is an iterator.")
        holders, found, inside = Holders.of(leaves, is_of_a_call)
    except Sealed as sealed:
        raise UnsupportedError(
            f"The backward of {name} can't be run as a Function of what it reads: its forward "
            "keeps an iterator on ctx, or something else that can't be copied and holds a tensor.",
            remedy="keep tensors with ctx.save_for_backward or as attributes of ctx, and a list "
            "instead of an iterator.",
        ) from sealed
    if holders is None:
        return call, tensors
    rest = iter(found)
    marked = tuple(tuple(next(rest) for _ in each) for each in call.leaves)
    return HeldCall(FlatCall(call.specs, marked), holders, len(inside)), (*inside, *tensors)


def data_inside(values: Sequence[Any], *, parameters: bool = False) -> list[torch.Tensor]:
    """Tensors that objects hold as data, however deep; not those of modules.

    Args:
        values: Objects, among anything else.
        parameters: Whether parameters are meant, too.
    """
    found: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    waiting = [value for value in values if _may_hold(value)]
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, (torch.nn.Module, Original)):
            continue
        seen.add(id(value))
        for part in reached_from(value):
            if isinstance(part, torch.nn.Parameter) and not parameters:
                continue
            if isinstance(part, torch.Tensor):
                found.setdefault(id(part), part)
            elif _may_hold(part):
                waiting.append(part)
    return list(found.values())
