"""Private names of modules that ``DistributedDataParallel`` and ``fully_shard`` have wrapped."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

__all__ = [
    "DistributedDataParallel",
    "belongs_to_fsdp",
    "bucket_limits",
    "exchanges_parts_of_sequences",
    "is_sharded",
    "is_state_of_fsdp",
    "same_state",
]


def bucket_limits(parallel: Any) -> tuple[int, ...]:
    """Bytes of the buckets that a ``DistributedDataParallel`` reduces; the last is for the rest."""
    if parallel.bucket_bytes_cap_list:
        return tuple(parallel.bucket_bytes_cap_list)
    if parallel.bucket_bytes_cap_default:
        return (dist._DEFAULT_FIRST_BUCKET_BYTES, parallel.bucket_bytes_cap)
    return (parallel.bucket_bytes_cap,)


def exchanges_parts_of_sequences(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call computes attention as ``context_parallel`` does it, if that is on."""
    name = getattr(function, "__name__", "")
    if name not in ("scaled_dot_product_attention", "multi_head_attention_forward"):
        return False
    import sys

    module = sys.modules.get("torch.distributed.tensor.experimental._context_parallel._attention")
    if module is None:
        return False
    if name == "multi_head_attention_forward":  # which asks for the other by its name
        return torch.nn.functional.scaled_dot_product_attention in module._replaced_functions
    handlers = module.DTensor._op_dispatcher._custom_op_handlers
    is_on = torch.ops.aten._scaled_dot_product_flash_attention.default in handlers
    return is_on and any(isinstance(value, module.DTensor) for value in args)


def _fsdp_class() -> type | None:
    """The class that ``fully_shard`` puts before a module's own, if somebody may have used it."""
    import sys

    module = sys.modules.get("torch.distributed.fsdp")
    return None if module is None else module.FSDPModule


def is_sharded(module: torch.nn.Module) -> bool:
    """Whether ``fully_shard`` was called on a module."""
    kind = _fsdp_class()
    return kind is not None and isinstance(module, kind)


def belongs_to_fsdp(cls: type) -> bool:
    """Whether a class is what ``fully_shard`` makes of a module's class."""
    kind = _fsdp_class()
    return kind is not None and issubclass(cls, kind)


def is_state_of_fsdp(thing: Any) -> bool:
    """Whether something is what ``fully_shard`` keeps for a module, whose methods are its hooks."""
    import sys

    module = sys.modules.get("torch.distributed.fsdp._fully_shard._fsdp_state")
    return module is not None and isinstance(thing, module.FSDPState)


def same_state(module: torch.nn.Module, other: torch.nn.Module) -> None:
    """Let another object of the same attributes find what ``fully_shard`` keeps for a module."""
    from torch.distributed import _composable_state as composable

    state = composable._get_module_state(module)
    if state is not None and composable._get_module_state(other) is None:
        composable._insert_module_state(other, state)


def depth_of_original_class(kind: Any) -> int:
    """Where ``FSDPModule`` finds the class it was put before, for a subclass of such a class."""
    return int(getattr(kind, "_orig_cls_mro_index", 2)) + 1
