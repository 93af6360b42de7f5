"""Torch's random state, read or set inside: the tracker of state asks, and the call is refused.

Draws are a program's own; what the generators' states are isn't, so code that saves, restores or
seeds one in a capture does so once. Torch's functions are seen where they start. What a generator
does itself leaves no trace, so the names in the code that ran stand for it.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator

import torch

from funcaot._torch.tensors.seeding import generators_among, place_of
from funcaot.aot.closure.environment import Environment
from funcaot.aot.closure.ran import Ran
from funcaot.errors import UnsupportedError

_REMEDY = "seed, save and restore random states outside of the compiled function."


def refuse_states(name: str, environment: Environment, ran: Ran) -> None:
    """Raise if a function reads or sets the state of one of torch's generators.

    Args:
        name: The user's function.
        environment: What it can reach.
        ran: The code that ran.

    Raises:
        UnsupportedError: If it does.
    """
    used = sorted(ran.random_states)
    if not used:
        return
    raise UnsupportedError(
        f"{name} calls {used[0]}, which would happen once, when it is captured, and not at every "
        "call.",
        remedy=_REMEDY,
    )


def known_generators(environment: Environment) -> set[int]:
    """The generators that a function can reach, by where they are in memory."""
    things = [*environment.objects.values(), *(thing for _, thing in environment.identities)]
    things += [thing.__self__ for thing in things if isinstance(thing, types.BuiltinMethodType)]
    return set(_places(things))


def refuse_new_generators(
    name: str, environment: Environment, root: torch.nn.Module, leaves: Iterable[object]
) -> None:
    """Raise if a graph draws from a generator that the function made itself.

    Args:
        name: The user's function.
        environment: What it can reach.
        root: What the graph of its capture holds besides tensors.
        leaves: What it was called with.

    Raises:
        UnsupportedError: If it does: each call would go on with that generator.
    """
    used = set(_places(vars(root).values()))
    if used:
        known = known_generators(environment).union(_places((*leaves, torch.default_generator)))
        if not used <= known:
            raise UnsupportedError(
                f"{name} draws from a torch.Generator that it makes itself, or that isn't found in "
                "its arguments, its closure or its globals: later calls would go on with this one.",
                remedy="call torch.Generator inside; or make the generator outside, and pass it or "
                "close over it.",
            )


def _places(things: Iterable[object]) -> Iterator[int]:
    """Where generators are in memory: each time that torch returns one it is another object."""
    return map(place_of, generators_among(things))
