"""What a Function's rules change in Python, where they run more often than eager runs them.

A capture runs forward once, as its caller's code, and what it changes is the caller's to repeat.
It runs again for a compiler and to learn what it writes to; then nothing may change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from funcaot.classes.opaque import Watch
from funcaot.classes.traits import defines_setup_context, display_name, origin_of

__all__ = ["again", "is_ours", "register_watches", "taken_back", "watch_of"]

_Make = Callable[[tuple[Any, ...], str], Watch]
_watches: list[_Make] = []


def register_watches(make: _Make) -> None:
    """Say how changes are looked at, from what makes them and a name; that is above this."""
    _watches[:] = [make]


def watch_of(rule: Any, function: type, operands: tuple[Any, ...] = ()) -> Watch | None:
    """What looks at changes of a rule that runs by itself; None if nobody said how to look.

    Args:
        rule: The rule.
        function: The Function.
        operands: What the rule is given besides tensors, as an object that counts its uses.
    """
    if not _watches:
        return None
    return _watches[0]((rule, *operands), display_name(function))


@contextlib.contextmanager
def taken_back(watch: Watch | None, *, traced: bool = False) -> Iterator[None]:
    """While a rule runs once more than in eager: what it changes in Python is taken back.

    Args:
        watch: What looks at that.
        traced: Whether a tape has the rule, so that generators which it seeds are its own.
    """
    if watch is None:
        yield
        return
    looked = watch.look()
    try:
        with watch.following(traced=traced):
            yield
    finally:
        watch.take_back(looked)


def again(
    function: type, operands: tuple[Any, ...] = ()
) -> contextlib.AbstractContextManager[None]:
    """While forward runs that ran for this call, or is going to: what it counts is taken back.

    So is what ``setup_context`` counts.

    Args:
        function: The Function.
        operands: Those of its operands that aren't tensors.
    """
    origin = origin_of(function)
    if defines_setup_context(origin):
        operands = (origin.setup_context, *operands)  # type: ignore[attr-defined]
    return taken_back(watch_of(getattr(origin, "forward", None), function, operands), traced=True)


def is_ours(rule: Any) -> bool:
    """Whether a rule calls what its Function was made of, by ``custom_vjp`` and the like."""
    return str(getattr(rule, "__module__", "")).startswith("funcaot.functions")
