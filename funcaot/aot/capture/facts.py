"""What a function reads of its inputs beside their elements and looks; each call compares it.

A capture's tensors stand for the inputs. They have shapes, dtypes and whether they require grad,
and no signature says more: not how often an input was written to, whether it is a view or who
shares it. What a function reads of that is read off the real input, and is part of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from funcaot._torch.tracing.tracing import disable_current_modes
from funcaot.aot.signature.histories import History, Place, has_hooks, led_by

__all__ = ["FACTS", "Fact", "Facts", "changed_of", "fact_of", "hold"]


FACTS: Mapping[str, Callable[[torch.Tensor], Any]] = {
    "_backward_hooks": lambda tensor: len(tensor._backward_hooks or ()),
    "_is_view": lambda tensor: tensor._is_view(),
    "_post_accumulate_grad_hooks": lambda tensor: len(tensor._post_accumulate_grad_hooks or ()),
    "_version": lambda tensor: tensor._version,
    "is_inference": torch.Tensor.is_inference,
    "is_pinned": lambda tensor: _is_pinned(tensor),
    "is_shared": torch.Tensor.is_shared,
    "output_nr": lambda tensor: tensor.output_nr,
    "retains_grad": lambda tensor: tensor.retains_grad,
}


def _is_pinned(tensor: torch.Tensor) -> bool:
    with disable_current_modes():  # An op, which a capture would be asked about.
        return tensor.is_pinned()


class Fact(NamedTuple):
    """Something that a program takes for granted of one of its inputs.

    Attributes:
        is_argument: Whether the input is an argument; else it is closed over.
        position: Its leaf among the arguments, or its place among what is closed over.
        name: What was read, of ``FACTS``.
        value: What it was.
    """

    is_argument: bool
    position: int
    name: str
    value: Any


def fact_of(tensor: torch.Tensor, name: str) -> Any:
    """What is so of a tensor now; None if it doesn't say."""
    try:
        return FACTS[name](tensor)
    except RuntimeError:
        return None


def hold(facts: Sequence[Fact], arguments: Sequence[Any], lifted: Sequence[torch.Tensor]) -> bool:
    """Whether all that a program takes for granted of its inputs is so in a call."""
    return next(_changed(facts, arguments, lifted), None) is None


def changed_of(
    facts: Sequence[Fact],
    names: Sequence[str],
    arguments: Sequence[Any],
    lifted: Sequence[torch.Tensor],
) -> str:
    """The first of them that isn't so any more, in words; empty if there is none.

    Args:
        facts: What a program takes for granted.
        names: What the user calls each argument.
        arguments: A call's leaves.
        lifted: What the function closes over in that call.
    """
    for fact, now in _changed(facts, arguments, lifted):
        name = names[fact.position] if fact.is_argument else "a tensor that it closes over"
        return f"{fact.name} of {name} was {fact.value} and is now {now}"
    return ""


def _changed(
    facts: Sequence[Fact], arguments: Sequence[Any], lifted: Sequence[torch.Tensor]
) -> Iterator[tuple[Fact, Any]]:
    """Facts that aren't so in a call, each with what is."""
    for fact in facts:
        inputs = arguments if fact.is_argument else lifted
        now = fact_of(inputs[fact.position], fact.name)
        if now != fact.value:
            yield fact, now


class Facts:
    """What one capture's function has read of its inputs."""

    def __init__(self) -> None:
        """Start with nothing read."""
        self._real: dict[int, tuple[torch.Tensor, int | None]] = {}
        self._read: dict[tuple[int, str], Any] = {}
        self._histories: list[tuple[list[torch.Tensor], list[torch.Tensor]]] = []

    def enter(self, real: torch.Tensor, seen: torch.Tensor, argument: int | None) -> None:
        """Remember what a tensor of the capture stands for."""
        self._real[id(seen)] = (real, argument)

    def read(self, seen: torch.Tensor, name: str) -> Any:
        """What is so of the input that a tensor stands for; the program depends on it."""
        value = fact_of(self._real[id(seen)][0], name)
        self._read[id(seen), name] = value
        return value

    def know(self, seen: Any) -> bool:
        """Whether a tensor of the capture stands for an input."""
        return id(seen) in self._real

    def note_history(
        self, behind: list[torch.Tensor], by: list[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Note that the program takes for granted that no tensor was made of one of others.

        These have no hooks, which is for `has_hooks` to say now and for each call to look at.

        Args:
            behind: Tensors of the capture that stand for inputs.
            by: Others of these.

        Returns:
            One that was, and what it was made of; None if there is none.
        """
        self._histories.append((behind, by))
        found = led_by(*([self._real[id(seen)][0] for seen in side] for side in (behind, by)))
        return None if found is None else (behind[found[0]], by[found[1]])

    def has_hooks(self, seen: torch.Tensor) -> bool:
        """Whether there are hooks on the input that a tensor stands for."""
        return has_hooks(self._real[id(seen)][0])

    def histories(self, lifted: Sequence[torch.Tensor]) -> tuple[History, ...]:
        """What was noted of them; of real tensors that the function closes over, in order."""
        place = self._placing(lifted)
        noted = [
            History(*(tuple(place(id(seen)) for seen in side) for side in sides))
            for sides in self._histories
        ]
        return tuple(dict.fromkeys(noted))

    def _placing(self, lifted: Sequence[torch.Tensor]) -> Callable[[int], Place]:
        """Says where the input is that a tensor stands for, by ``id``."""
        places = {id(real): place for place, real in enumerate(lifted)}

        def place(seen: int) -> Place:
            real, argument = self._real[seen]
            return Place(argument is not None, places[id(real)] if argument is None else argument)

        return place

    def noted(self, lifted: Sequence[torch.Tensor]) -> tuple[Fact, ...]:
        """All that was read.

        Args:
            lifted: The real tensors that the function closes over, in order.
        """
        place = self._placing(lifted)
        return tuple(Fact(*place(seen), name, value) for (seen, name), value in self._read.items())
