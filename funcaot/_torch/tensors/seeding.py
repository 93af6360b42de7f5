"""Random generators: seeding during a capture, which is refused, and their states.

Seeding would happen once, not at every call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch, holding

_PLACES = ((torch, "manual_seed"), (torch, "seed"), (torch.random, "manual_seed"))


class _ThisThread(threading.local):
    refuse: Callable[[str], Exception] | None = None


_this_thread = _ThisThread()


@contextlib.contextmanager
def seeding_refused(refuse: Callable[[str], Exception]) -> Iterator[None]:
    """While active in this thread, ``torch.manual_seed`` and ``torch.seed`` raise.

    Args:
        refuse: Makes the exception, given the function's name.
    """
    require("seeding")
    with _patch.used(), holding(_this_thread, refuse=refuse):
        yield


class _Guarded:
    """Stands for a function that seeds."""

    def __init__(self, name: str, original: Callable[..., Any]) -> None:
        self._name = name
        self.original = original

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if _this_thread.refuse is not None:
            raise _this_thread.refuse(self._name)
        return self.original(*args, **kwargs)


def _guard() -> None:
    for module, name in _PLACES:
        if not isinstance(original := getattr(module, name), _Guarded):
            setattr(module, name, _Guarded(name, original))


def _restore() -> None:
    for module, name in _PLACES:
        if isinstance(guarded := getattr(module, name), _Guarded):
            setattr(module, name, guarded.original)


_patch = SharedPatch(_guard, _restore)


def random_states(generators: Iterable[torch.Generator] = ()) -> tuple[Any, ...]:
    """The states of torch's own generators, and of some more."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, [(each, each.get_state()) for each in generators]


def restore_random_states(states: tuple[Any, ...]) -> None:
    """Put the generators back."""
    default, cuda, others = states
    torch.set_rng_state(default)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    for generator, state in others:
        generator.set_state(state)


@contextlib.contextmanager
def drawing_nothing(things: Iterable[object] = ()) -> Iterator[None]:
    """What is drawn inside is drawn again after it.

    Args:
        things: What the code may draw from, besides torch's own generators.
    """
    states = random_states(generators_among(things))
    try:
        yield
    finally:
        restore_random_states(states)


@contextlib.contextmanager
def drawing_nothing_on_errors() -> Iterator[None]:
    """If the block raises, what it drew from torch's own generators is drawn again after it."""
    states = random_states()
    try:
        yield
    except BaseException:
        restore_random_states(states)
        raise


def generators_among(things: Iterable[object]) -> tuple[torch.Generator, ...]:
    """The generators among some things; a graph holds each in a wrapper."""
    opened = (getattr(thing, "real_obj", thing) for thing in things)
    return tuple(thing for thing in opened if isinstance(thing, torch.Generator))


def place_of(generator: torch.Generator) -> int:
    """Where a generator is in memory: each time that torch returns one it is another object."""
    return generator._cdata  # pyright: ignore[reportAttributeAccessIssue]
