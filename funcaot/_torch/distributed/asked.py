"""What a captured function asks of the process groups: its place among the ranks, and their number.

These are plain numbers, which a program holds as constants. Another rank that finds the program
in a file has another place, and a process may join another group, so they are noted and compared.
All of ``torch.distributed`` looks for the default group in one property.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch.distributed as dist

from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch

__all__ = ["Asked", "hold", "noting_what_is_asked"]

# A question and its answer.
Asked = tuple[str, Any]

_MODULE = "torch.distributed.distributed_c10d"
_PLACE, _SIZE, _EXISTS = "the place in it", "its size", "whether there is one"


class _Noted(threading.local):
    """Where this thread's capture keeps what is asked."""

    questions: dict[str, Any] | None = None


_noted = _Noted()


class _Original:
    """What is replaced."""

    default: Any = None


def hold(asked: tuple[Asked, ...]) -> bool:
    """Whether all would be answered now as it was."""
    return all(_answer(question) == answer for question, answer in asked)


def _answer(question: str) -> Any:
    """What is so of the default group now."""
    group = _group()
    if question == _EXISTS:
        return group is not None
    if group is None:
        return None
    return group.size() if question == _SIZE else [group.size(), group.rank()]


def _group() -> Any:
    if not dist.is_available():
        return None
    world: Any = sys.modules[_MODULE]._world
    return (_Original.default or type(world).default_pg).fget(world)


def _default_group(world: Any) -> Any:
    """The property that says which group is the default."""
    if _noted.questions is not None:
        question = _question(sys._getframe(1))
        _noted.questions.setdefault(question, _answer(question))
    return _Original.default.fget(world)


def _question(frame: FrameType | None) -> str:
    """What is asked, by the function of ``torch.distributed`` that was called for it."""
    function = frame
    while frame is not None and frame.f_globals.get("__name__") == _MODULE:
        function, frame = frame, frame.f_back
    name = "" if function is None else function.f_code.co_name
    if name == "is_initialized":
        return _EXISTS
    # The number of ranks in another group depends on which group this rank has.
    if name == "get_world_size" and function is not None and not function.f_locals.get("group"):
        return _SIZE
    return _PLACE


def _replace() -> None:
    kind: Any = sys.modules[_MODULE]._World
    if kind.default_pg.fget is not _default_group:
        _Original.default = kind.default_pg
        kind.default_pg = property(_default_group, _Original.default.fset)


def _restore() -> None:
    if _Original.default is not None:
        sys.modules[_MODULE]._World.default_pg = _Original.default


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def noting_what_is_asked() -> Iterator[dict[str, Any]]:
    """What this thread asks inside, with the answers; it grows."""
    if _MODULE not in sys.modules:
        yield {}
        return
    require("places among ranks")
    before, found = _noted.questions, dict[str, Any]()
    with _patch.used():
        _noted.questions = found
        try:
            yield found
        finally:
            _noted.questions = before
            if before is not None:
                before.update(found)
