"""What a captured function asks of the process groups: its place among the ranks, and their number.

These are plain numbers, which a program holds as constants. Another rank that finds the program
in a file has another place, and a process may join another group, so they are noted and compared.
All of ``torch.distributed`` looks for the default group in one property, and for this rank's number
in a group in one method. Who calls a collective needs the group, and not the place in it.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from funcaot._torch.distributed.coordinates import depends_on_it, forget_plans
from funcaot._torch.patches import require
from funcaot.base.scopes import SharedPatch

__all__ = ["WHOLE", "Asked", "as_it_was", "hold", "is_whole", "noting_what_is_asked"]

# A question and its answer.
Asked = tuple[str, Any]

# What a Function asks of autograd's engine: see ``autograd.whole_backward``.
WHOLE = "whether the backward goes through the whole graph"

_MODULE = "torch.distributed.distributed_c10d"
_MESHES, _COORDINATE = "torch.distributed.device_mesh", "_coordinate_on_dim"
_PLACE, _SIZE, _EXISTS = "the place in it", "its size", "whether there is one"
# What only needs to know which group is the default. That a rank asks for its number in it is seen
# by itself; what a group is compared with or sends by is compared where graphs wait for it.
_OF_GROUP = {
    "WORLD", "all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_single",
    "all_reduce", "all_reduce_coalesced", "all_to_all", "all_to_all_single", "broadcast",
    "reduce_scatter", "reduce_scatter_single", "reduce_scatter_tensor", "_all_gather_base",
    "_reduce_scatter_base",
}  # fmt: skip


class _Noted(threading.local):
    """Where this thread's capture keeps what is asked."""

    questions: dict[str, Any] | None = None


_noted = _Noted()


class _Original:
    """What is replaced."""

    default: Any = None
    ranks: Any = None
    method: Any = None  # In a dictionary: a class gives the function, which doesn't bind.


def hold(asked: tuple[Asked, ...]) -> bool:
    """Whether all would be answered now as it was."""
    return all(_answer(question) == answer for question, answer in asked)


def as_it_was(
    read: Callable[[], bool] | None, asked: tuple[Asked, ...]
) -> Callable[[], bool] | None:
    """What says whether what was read is as it was, and the answers to what was asked too."""
    if not asked:
        return read
    return lambda: hold(asked) and (read is None or read())


def _answer(question: str) -> Any:
    """What is so of the default group, or of autograd's engine, now."""
    if question == WHOLE:
        return is_whole()
    group = _group()
    if question == _EXISTS:
        return group is not None
    if group is None:
        return None
    rank = _Original.ranks or type(group).rank
    return group.size() if question == _SIZE else [group.size(), rank(group)]


def is_whole() -> bool:
    """Whether the backward in progress is asked for no gradients in particular."""
    engine: Any = torch.autograd.Variable._execution_engine
    return engine.is_checkpoint_valid()


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
    if name in _OF_GROUP:
        return _SIZE
    # The number of ranks in another group depends on which group this rank has.
    if name == "get_world_size" and function is not None and not function.f_locals.get("group"):
        return _SIZE
    return _PLACE


def _rank(group: Any) -> Any:
    """The method that says which of its ranks this one is."""
    if _noted.questions is not None:
        _noted.questions.setdefault(_PLACE, _answer(_PLACE))
    return _Original.ranks(group)


def _coordinate(mesh: Any) -> Any:
    """The attribute of a mesh that says where in it this rank is."""
    found = vars(mesh)[_COORDINATE]
    if _noted.questions is not None and (found is None or depends_on_it(sys._getframe(1))):
        _noted.questions.setdefault(_PLACE, _answer(_PLACE))
    return found


def _set_coordinate(mesh: Any, value: Any) -> None:
    vars(mesh)[_COORDINATE] = value


def _replace() -> None:
    kind: Any = sys.modules[_MODULE]._World
    if kind.default_pg.fget is not _default_group:
        _Original.default = kind.default_pg
        kind.default_pg = property(_default_group, _Original.default.fset)
    groups: Any = dist.ProcessGroup
    if groups.rank is not _rank:
        _Original.ranks, _Original.method = groups.rank, {"rank": vars(groups)["rank"]}
        groups.rank = _rank
    module: Any = sys.modules.get(_MESHES)
    if module is not None and _COORDINATE not in vars(module.DeviceMesh):
        setattr(module.DeviceMesh, _COORDINATE, property(_coordinate, _set_coordinate))


def _restore() -> None:
    if _Original.default is not None:
        sys.modules[_MODULE]._World.default_pg = _Original.default
    if _Original.method is not None:
        groups: Any = dist.ProcessGroup
        groups.rank = _Original.method["rank"]
    module: Any = sys.modules.get(_MESHES)
    if module is not None and _COORDINATE in vars(module.DeviceMesh):
        delattr(module.DeviceMesh, _COORDINATE)


_patch = SharedPatch(_replace, _restore)


@contextlib.contextmanager
def noting_what_is_asked() -> Iterator[dict[str, Any]]:
    """What this thread asks inside, with the answers; it grows."""
    if _MODULE not in sys.modules:
        yield {}
        return
    require("places among ranks")
    before, found = _noted.questions, dict[str, Any]()
    if before is None:
        forget_plans()
    with _patch.used():
        _noted.questions = found
        try:
            yield found
        finally:
            _noted.questions = before
            if before is not None:
                before.update(found)
