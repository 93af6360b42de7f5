"""Whether a change to torch may be made: every change of the table asks here first.

Note [Patches]: torch has no hook for some of what a capture or a kernel needs. So functions,
tables and settings of its inside are replaced for a while. Each such change is a `Patch`, and its
code asks ``applied``, ``is_usable`` or ``require`` before it acts. Where the targets look
different, or a user switches a patch off (``config.without_patches``), what its ``without`` says
is lost: time, or one way to use the library. No patch stands between a program and its right
value: where one mends a value, graphs that it concerns run op by op instead.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TypeVar

import torch

from funcaot import config
from funcaot._torch.patch import Patch
from funcaot._torch.patch_table import PATCHES
from funcaot.base.scopes import holding
from funcaot.errors import FuncaotError, PatchWarning, UnsupportedError

__all__ = ["applied", "is_usable", "looking_once", "require", "without_those_for_time"]

Value = TypeVar("Value")

_BY_NAME = {patch.name: patch for patch in PATCHES}
_FOR_TIME = frozenset(patch.name for patch in PATCHES if patch.for_time)
_warned: set[tuple[str, str]] = set()


class _ThisThread(threading.local):
    """What this thread leaves out for now, and how it found patches that it looked at."""

    left_out: frozenset[str] = frozenset()
    found: dict[str, str | None] | None = None


_this_thread = _ThisThread()


def without_those_for_time() -> AbstractContextManager[None]:
    """Leave out, in this thread, what only saves time: it may be what fails."""
    return holding(_this_thread, left_out=_FOR_TIME)


def looking_once() -> AbstractContextManager[None]:
    """While something is compiled: a patch's targets are looked at when it is first asked for."""
    return holding(_this_thread, found={})


def _difference(patch: Patch) -> str | None:
    found = _this_thread.found
    if found is None:
        return patch.difference()
    if patch.name not in found:
        found[patch.name] = patch.difference()
    return found[patch.name]


def is_usable(name: str) -> bool:
    """Whether a patch can be used and isn't switched off; says once where this torch differs."""
    patch = _BY_NAME[name]
    if name in switched_off() or name in _this_thread.left_out:
        return False
    difference = _difference(patch)
    if difference is None:
        return True
    if (name, difference) not in _warned:
        _warned.add((name, difference))
        warnings.warn(
            f"This torch, {torch.__version__}, differs from those that funcaot knows "
            f"({' to '.join(patch.versions)}): {difference}. So {patch.without}.",
            PatchWarning,
            stacklevel=2,
        )
    return False


@contextlib.contextmanager
def applied(
    name: str, change: Callable[[], AbstractContextManager[Value]], otherwise: Value
) -> Iterator[Value]:
    """The change is made inside, if its patch is usable.

    Args:
        name: The patch.
        change: Makes the change.
        otherwise: What is handed out where it isn't made.
    """
    if not is_usable(name):
        yield otherwise
        return
    with change() as value:
        yield value


def require(name: str) -> None:
    """Refuse to go on without a patch.

    Raises:
        UnsupportedError: It is switched off, or this torch looks different.
    """
    patch = _BY_NAME[name]
    if name in switched_off():
        raise UnsupportedError(
            f"The patch {name!r} is switched off by funcaot.config's without_patches: "
            f"{patch.without}.",
            remedy="take it out of that list.",
        )
    difference = _difference(patch)
    if difference is not None:
        raise UnsupportedError(
            f"This torch, {torch.__version__}, differs from those that funcaot knows "
            f"({' to '.join(patch.versions)}): {difference}. So {patch.without}.",
            remedy="use a version of torch that funcaot supports.",
        )


def switched_off() -> frozenset[str]:
    """Names of the patches that the configuration leaves out."""
    return names_of(config.get().without_patches)


@functools.lru_cache
def names_of(text: str) -> frozenset[str]:
    """The patches that a list names, by commas.

    Raises:
        FuncaotError: There is no such patch.
    """
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    unknown = sorted(names - {*_BY_NAME})
    if unknown:
        raise FuncaotError(
            f"There is no patch {', '.join(map(repr, unknown))}.",
            expected=", ".join(_BY_NAME),
            remedy="correct funcaot.config's without_patches.",
        )
    return names
