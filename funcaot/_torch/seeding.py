"""Random generators: seeding during a capture, which is refused, and their states.

Seeding would happen once, not at every call.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_PLACES = ((torch, "manual_seed"), (torch, "seed"), (torch.random, "manual_seed"))
_lock = threading.Lock()


class _Users:
    count = 0
    originals: tuple[Any, ...] = ()


class _ThisThread(threading.local):
    refuse: Callable[[str], Exception] | None = None


_this_thread = _ThisThread()


@contextlib.contextmanager
def seeding_refused(refuse: Callable[[str], Exception]) -> Iterator[None]:
    """While active in this thread, ``torch.manual_seed`` and ``torch.seed`` raise.

    Args:
        refuse: Makes the exception, given the function's name.
    """
    previous, _this_thread.refuse = _this_thread.refuse, refuse
    with _lock:
        _Users.count += 1
        if _Users.count == 1:
            _Users.originals = tuple(getattr(module, name) for module, name in _PLACES)
            for (module, name), original in zip(_PLACES, _Users.originals, strict=True):
                setattr(module, name, _guarded(name, original))
    try:
        yield
    finally:
        _this_thread.refuse = previous
        with _lock:
            _Users.count -= 1
            if _Users.count == 0:
                for (module, name), original in zip(_PLACES, _Users.originals, strict=True):
                    setattr(module, name, original)


def _guarded(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def seed(*args: Any, **kwargs: Any) -> Any:
        if _this_thread.refuse is not None:
            raise _this_thread.refuse(name)
        return original(*args, **kwargs)

    return seed


def random_states() -> tuple[Any, ...]:
    """The states of the generators in use."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda


def restore_random_states(states: tuple[Any, ...]) -> None:
    """Put the generators back."""
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state_all(states[1])
