"""Who reads this rank's coordinate in a mesh, and whether what they find depends on it.

``DTensor`` asks for it in places where every rank gets the same answer: whether this rank is in the
mesh at all, and how large its part of a tensor is that is cut evenly. A program that only asks so
is every rank's. ``asked`` comes here for each read; whatever isn't known here depends on it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any

import torch

__all__ = ["depends_on_it", "forget_plans"]

_MESH = "torch.distributed.device_mesh"
_TENSOR = "torch.distributed.tensor"
_PLACEMENTS, _PLANS = f"{_TENSOR}.placement_types", f"{_TENSOR}._redistribute"
_CALLERS = (
    ("funcaot.aot.capture.handlers.call", "run"),
    ("torch.autograd.graph", "_engine_run_backward"),
)
_Locals = Mapping[str, Any]


def depends_on_it(reader: FrameType | None) -> bool:
    """Whether what reads a rank's coordinate may find something else on another rank.

    Args:
        reader: What reads it of a mesh that this rank is in.
    """
    place = _place(reader)
    if reader is None or place == (_MESH, "_is_current_rank_part_of_mesh"):
        return reader is None
    if place not in ((_MESH, "get_coordinate"), (_MESH, "_sym_get_coordinate")):
        return True
    caller = reader.f_back
    known = _ALIKE.get((place[1], *_place(caller)))
    if known is not None and caller is not None:
        with contextlib.suppress(LookupError):  # of another torch, which calls it otherwise
            return not known(caller.f_locals)
        return True
    return place[1] != "get_coordinate" or not _is_from_dispatch(caller)


def forget_plans() -> None:
    """Let ``DTensor`` plan anew how ops run: a plan that was kept asks for nothing."""
    plans: Any = sys.modules.get(_PLANS)
    if plans is None:
        return
    dispatcher = sys.modules[_TENSOR].DTensor._op_dispatcher
    dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    torch._C._clear_DTensor_sharding_propagator_cache()
    plans._gen_transform_infos.cache_clear()
    plans.clear_redistribute_planner_cache()


def _place(frame: FrameType | None) -> tuple[str, str]:
    if frame is None:
        return "", ""
    return str(frame.f_globals.get("__name__")), frame.f_code.co_name


def _is_from_dispatch(caller: FrameType | None) -> bool:
    """Whether it is asked in C++, which runs an op on ``DTensor``s if this rank is in the mesh.

    There is no frame of that, so its caller seems to ask: what calls a function of torch's in a
    capture, or the engine in a backward; or another function of a library's that doesn't ask, below
    autograd, where no code of the user's function runs.
    """
    if caller is None or "get_coordinate" in caller.f_code.co_names:
        return False
    if _place(caller) in _CALLERS:
        return True
    library = _place(caller)[0].partition(".")[0] in ("torch", "funcaot")
    excluded = torch._C._dispatch_tls_local_exclude_set()
    return library and excluded.has(torch._C.DispatchKey.AutogradOther)


# --- where every rank finds the same --------------------------------------------------------------


def _whether_there_is_one(found: _Locals) -> bool:
    """Only whether it is None is looked at."""
    return True


def _is_even(size: Any, ranks: Any) -> bool:
    return type(size) is int and type(ranks) is int and size % ranks == 0


def _is_local_shape(found: _Locals) -> bool:
    """The sizes of a part, without where it begins, of a tensor that is cut evenly."""
    if not found.get("skip_offset"):
        return False
    return _is_cut_evenly(found["global_shape"], found["mesh_shape"], found["placements"])


def _is_cut_evenly(shape: Sequence[Any], ranks: Sequence[Any], placements: Sequence[Any]) -> bool:
    kinds: Any = sys.modules[_PLACEMENTS]
    sizes = list(shape)
    for count, placement in zip(ranks, placements, strict=True):
        if type(placement) is kinds.Shard:
            if not _is_even(sizes[placement.dim], count):
                return False
            sizes[placement.dim] //= count
        elif type(placement) not in (kinds.Replicate, kinds.Partial):
            return False
    return True


def _is_cut_otherwise_evenly(found: _Locals) -> bool:
    """A tensor that is cut along another dimension, evenly before and after: nothing is padded."""
    shape, ranks = found["current_logical_shape"], found["mesh"].size(found["mesh_dim"])
    return all(_is_even(shape[dim], ranks) for dim in (found["self"].dim, found["new_shard_dim"]))


def _is_next_size(found: _Locals) -> bool:
    """How large a part is that is cut again along another dimension of the mesh."""
    shape, part = found["current_logical_shape"], found["src"]
    return _is_even(shape[part.dim], found["mesh_dim_size"])


# By the method of a mesh that is called, the module that calls it, and the function.
_ALIKE: dict[tuple[str, str, str], Callable[[_Locals], bool]] = {
    ("get_coordinate", _PLACEMENTS, "_make_replicate_tensor"): _whether_there_is_one,
    ("get_coordinate", _PLACEMENTS, "_reduce_shard_tensor"): _whether_there_is_one,
    ("get_coordinate", _PLACEMENTS, "_to_new_shard_dim"): _is_cut_otherwise_evenly,
    (
        "_sym_get_coordinate",
        f"{_TENSOR}._utils",
        "_compute_local_shape_and_global_offset",
    ): _is_local_shape,
    ("_sym_get_coordinate", _PLANS, "generate_greedy_transform_infos"): _is_next_size,
}
