"""Changes that last for a block, also where an interrupt comes between two of its lines."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

__all__ = [
    "PausableTrace",
    "SharedPatch",
    "Watch",
    "holding",
    "lasting",
    "tracing_here",
    "untraced",
    "unwatched",
]


@contextlib.contextmanager
def holding(target: object, **attributes: Any) -> Iterator[None]:
    """Attributes of an object have other values inside."""
    before = {name: getattr(target, name) for name in attributes}
    try:
        for name, value in attributes.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)


_AS_IT_IS = contextlib.nullcontext()


class PausableTrace:
    """A trace function of Python's that needs to see no code of libraries.

    Attributes:
        before: The trace function that was there before, which goes on.
        asked: Where names are noted by which code gets attributes, if somebody wants to know.
    """

    before: Any = None
    asked: set[str] | None = None

    def trace(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        """See a frame that starts."""
        raise NotImplementedError

    def note_whole(self, thing: Any) -> None:
        """Code is shown all attributes of something at once, by ``vars``."""

    def trying(self) -> contextlib.AbstractContextManager[None]:
        """While code is tried, which may fail."""
        return _AS_IT_IS

    def passed_on(self, frame: types.FrameType, event: str, argument: Any) -> Any:
        """What the trace function that was there before makes of it."""
        before = self.before
        return None if before is None else before(frame, event, argument)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """See nothing inside."""
        here = sys.gettrace()
        sys.settrace(self.before)
        try:
            with unwatched():
                yield
        finally:
            sys.settrace(here)


def tracing_here() -> PausableTrace | None:
    """The pausable trace function of this thread, if that is what traces it."""
    owner = getattr(sys.gettrace(), "__self__", None)
    return owner if isinstance(owner, PausableTrace) else None


def untraced() -> contextlib.AbstractContextManager[None]:
    """Where no code of the user's runs: a pausable trace function of this thread sees nothing."""
    owner = tracing_here()
    return _AS_IT_IS if owner is None else owner.paused()


class Watch:
    """A profile function of Python's, which sees each function of C before this thread calls it.

    A profiler that was there before goes on to see everything; where that is one of C's, nothing
    is watched.

    Attributes:
        before: That profiler; that of the watch around this one, if there is one.
    """

    before: Any = None

    def __enter__(self) -> Watch:
        """Start to watch."""
        self._outer = before = sys.getprofile()
        around = _watch_of(before)
        self.before = before if around is None else around.before
        self._is_lost = False
        if before is None or callable(before):
            sys.setprofile(self.see)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop, and restore what profiled before."""
        if self._outer is None or callable(self._outer):
            sys.setprofile(self._outer)

    def see(self, frame: types.FrameType, event: str, argument: Any) -> None:
        """See what happens in a frame."""
        raise NotImplementedError

    def lose(self) -> None:
        """Note that the profile function raises, for which Python takes it away."""
        self._is_lost = True

    def resume(self) -> None:
        """Go on to watch, if an error that was caught since has ended it."""
        if self._is_lost:
            self._is_lost = False
            sys.setprofile(self.see)


def _watch_of(profiler: Any) -> Watch | None:
    """The watch whose profile function that is, if it is one."""
    owner = getattr(profiler, "__self__", None)
    return owner if isinstance(owner, Watch) else None


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Where no code runs that is captured: what this thread calls isn't watched."""
    here = sys.getprofile()
    watch = _watch_of(here)
    if watch is None:
        yield
        return
    sys.setprofile(watch.before)
    try:
        yield
    finally:
        sys.setprofile(here)


class _User:
    """Somebody who uses a patch; without a thread it outlives forks."""

    __slots__ = ("__weakref__", "thread")

    def __init__(self, thread: int | None) -> None:
        self.thread = thread


class _ThisThread(threading.local):
    """The patches that stay in this thread until the end of a block, with their users."""

    kept: dict[SharedPatch, _User] | None = None


_this_thread = _ThisThread()


@contextlib.contextmanager
def lasting() -> Iterator[None]:
    """Patches that last, and that this thread uses inside, stay until the end of the block.

    For those that are used again and again: to make a change and to undo it costs more than to
    find it there.
    """
    if _this_thread.kept is not None:
        yield
        return
    kept: dict[SharedPatch, _User] = {}
    try:
        with holding(_this_thread, kept=kept):
            yield
    finally:
        for patch, user in reversed([*kept.items()]):
            patch._leave(user)


class SharedPatch:
    """A change to the whole process, from its first user to its last, of all threads.

    Users aren't counted but remembered weakly: an interrupt in between would leave a count wrong,
    while a user dies with the block that made it.
    """

    def __init__(
        self, change: Callable[[], None], undo: Callable[[], None], *, lasts: bool = False
    ) -> None:
        """A patch that nobody uses yet.

        Args:
            change: Makes the change. It does nothing where that is done already, and completes
                what an interrupt left half done.
            undo: Restores what was before; likewise.
            lasts: Whether it stays until the end of a `lasting` block. It means nothing then to
                what runs in between, as it does to other threads.
        """
        self._change, self._undo, self._lasts = change, undo, lasts
        self._users: weakref.WeakSet[_User] = weakref.WeakSet()
        self._installed: list[_User] = []
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._after_fork)

    @property
    def is_installed(self) -> bool:
        """Whether the patch is there until it is uninstalled."""
        return bool(self._installed)

    def used(self) -> contextlib.AbstractContextManager[None]:
        """The patch is there inside."""
        kept = _this_thread.kept
        if kept is None or not self._lasts:
            return self._used()
        if self not in kept:
            kept[self] = user = _User(threading.get_ident())
            with self._lock:
                self._users.add(user)
                self._change()
        return _AS_IT_IS

    @contextlib.contextmanager
    def _used(self) -> Iterator[None]:
        user = _User(threading.get_ident())
        try:
            with self._lock:
                self._users.add(user)
                self._change()
            yield
        finally:
            self._leave(user)

    def install(self) -> None:
        """Make the change until :meth:`uninstall` is called as often."""
        with self._lock:
            user = _User(None)
            self._users.add(user)
            self._change()
            self._installed.append(user)

    def uninstall(self) -> None:
        """Take one :meth:`install` back, if there is one."""
        with self._lock:
            if self._installed:
                self._leave(self._installed.pop())

    def complete(self) -> None:
        """Make the change whole again, where it has a user and somebody took a part of it away."""
        with self._lock:
            if self._users:
                self._change()

    def _leave(self, user: _User) -> None:
        with self._lock:
            self._users.discard(user)
            if not self._users:
                self._undo()

    def _after_fork(self) -> None:
        """The lock may be held by a thread that isn't there any more."""
        self._lock = threading.RLock()
        here = threading.get_ident()
        for user in list(self._users):
            if user.thread not in (here, None):
                self._leave(user)
