"""Generators that a capture makes where code asks for a ``torch.Generator``; a tape says how.

A generator of torch's own has its state in C++, where drawing changes it. One that is made in a
capture has it in a tensor of the tape.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Protocol

import torch

from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch, holding
from funcaot.errors import UnsupportedError

__all__ = [
    "REAL",
    "STANDING",
    "MadeGenerator",
    "Tracing",
    "in_state",
    "made_at",
    "made_by",
    "made_really",
    "with_state",
]

# Torch's own class, whatever ``torch.Generator`` is at the moment.
REAL: Any = torch._C.Generator
_META: Any = type(REAL)
_OPEN = (torch.SymInt, torch.SymFloat)  # as a capture gives whole numbers that it leaves open


class Tracing(Protocol):
    """What makes generators while it records."""

    def seeded(self, seed: Any, device: torch.device) -> torch.Tensor:
        """The state of a generator that was just given a seed."""
        ...

    def taken(self, state: torch.Tensor) -> torch.Tensor:
        """The state that a tensor of the user's code holds."""
        ...

    def bare(self, state: torch.Tensor) -> torch.Tensor:
        """A state below all levels."""
        ...


class MadeGenerator(REAL):
    """A generator whose state is recorded.

    Attributes:
        owner: What records it.
        state: Its state, a tensor of the recording.
    """

    _seed: Any
    owner: Tracing
    state: torch.Tensor

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """What code is to see of it."""
        return torch.Generator

    @classmethod
    def made(cls, owner: Tracing, *args: Any, **kwargs: Any) -> MadeGenerator:
        """Make one as ``torch.Generator`` does.

        Args:
            owner: What records its state.
            *args: What ``torch.Generator`` takes.
            **kwargs: The same by keyword.
        """
        made = cls(*args, **kwargs)
        made.owner = owner
        made._set_seed(REAL.initial_seed(made))
        _places[made._cdata] = made
        return made

    def _set_seed(self, seed: Any) -> None:
        self._seed = seed
        self.state = self.owner.seeded(seed, self.device)

    def manual_seed(self, seed: Any) -> MadeGenerator:
        """Start from a seed, which may be a number that the program leaves open."""
        if not issubclass(type(seed), _OPEN):
            REAL.manual_seed(self, seed)  # which raises what eager raises
            seed = REAL.initial_seed(self)
        self._set_seed(seed)
        return self

    def initial_seed(self) -> Any:
        """The last seed."""
        if self._seed is None:
            self._refuse("initial_seed, after its state was set")
        return self._seed if self._seed >= 0 else self._seed + 2**64

    def get_state(self) -> torch.Tensor:
        """The state, as a tensor."""
        return self.owner.taken(self.state)

    def set_state(self, new_state: Any) -> MadeGenerator:
        """Go on from a state."""
        if not isinstance(new_state, torch.Tensor) or new_state.dtype is not torch.uint8:
            REAL.set_state(self, new_state)  # which raises what eager raises
        if new_state.shape != self.state.shape or new_state.device.type != "cpu":
            self._refuse(f"set_state with a state of shape {tuple(new_state.shape)}")
        self.state, self._seed = self.owner.taken(new_state), None
        return self

    def clone_state(self) -> MadeGenerator:
        """Another generator in the same state."""
        copied = MadeGenerator.made(self.owner, self.device)
        copied.state, copied._seed = self.state, self._seed
        return copied

    def __copy__(self) -> MadeGenerator:
        return self.clone_state()

    def __deepcopy__(self, memo: Any) -> MadeGenerator:
        return self.clone_state()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        self._refuse("pickle")

    def seed(self) -> NoReturn:
        """Numbers of the system's are refused."""
        self._refuse("seed, which takes a number of the system's")

    def get_offset(self) -> NoReturn:
        """That of a GPU's generator isn't recorded."""
        self._refuse("get_offset")

    def set_offset(self, offset: Any) -> NoReturn:
        """That of a GPU's generator isn't recorded."""
        self._refuse("set_offset")

    def graphsafe_get_state(self) -> NoReturn:
        """States that are shared aren't recorded."""
        self._refuse("graphsafe_get_state")

    def graphsafe_set_state(self, state: Any) -> NoReturn:
        """States that are shared aren't recorded."""
        self._refuse("graphsafe_set_state")

    def _refuse(self, what: str) -> NoReturn:
        raise UnsupportedError(
            f"A torch.Generator that a compiled function makes is asked for {what}.",
            remedy="make the generator outside, and pass it or close over it; or give it a seed by "
            "manual_seed.",
        )


_places: weakref.WeakValueDictionary[int, MadeGenerator] = weakref.WeakValueDictionary()


def made_at(generator: torch.Generator) -> MadeGenerator | None:
    """The made generator that is the same one in C++, whose object there knows no attributes."""
    opened: Any = getattr(generator, "real_obj", generator)  # a graph's wrapper
    return _places.get(opened._cdata)


def with_state(device: torch.device) -> Callable[[torch.Tensor], torch.Generator]:
    """What makes a generator of a state."""

    def made(state: torch.Tensor) -> torch.Generator:
        generator = REAL(device)
        generator.set_state(state)
        return generator  # type: ignore[no-any-return]

    return made


class _ThisThread(threading.local):
    owner: Tracing | None = None


_this_thread = _ThisThread()


def _meant(kind: Any) -> Any:
    return REAL if kind is STANDING else kind


class _Standing(_META):
    """The class of what stands for ``torch.Generator``, which is that class to every question."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self is not STANDING:
            return super().__call__(*args, **kwargs)
        if (owner := _this_thread.owner) is None:
            return REAL(*args, **kwargs)
        return MadeGenerator.made(owner, *args, **kwargs)

    def __instancecheck__(self, instance: Any) -> bool:
        return _META.__instancecheck__(_meant(self), instance)

    def __subclasscheck__(self, subclass: type) -> bool:
        return type.__subclasscheck__(_meant(self), subclass)

    def __eq__(self, other: object) -> bool:
        return _meant(self) is _meant(other)

    def __hash__(self) -> int:
        return type.__hash__(_meant(self))


# Stands for torch's class while somebody records.
STANDING: Any = None
STANDING = _Standing("Generator", (REAL,), {"__module__": REAL.__module__})


def _stand() -> None:
    torch.Generator = STANDING


def _restore() -> None:
    torch.Generator = REAL  # type: ignore[misc]


_patch = SharedPatch(_stand, _restore)


@contextlib.contextmanager
def made_by(owner: Tracing) -> Iterator[None]:
    """In this thread, what asks for a ``torch.Generator`` inside gets one that is recorded."""
    require("generators")
    with _patch.used(), holding(_this_thread, owner=owner):
        yield


def in_state(device: torch.device, state: torch.Tensor) -> MadeGenerator | None:
    """A generator in a state, as code that is recorded here would make one; None where none is."""
    if _this_thread.owner is None:
        return None
    made = MadeGenerator(device)
    made.owner, made._seed = _this_thread.owner, None
    made.state = made.owner.bare(state)
    _places[made._cdata] = made
    return made


def made_really() -> contextlib.AbstractContextManager[None]:
    """In this thread, generators that are made inside are torch's own."""
    return holding(_this_thread, owner=None)
