"""Many ranks: modules that ``torch.distributed`` has wrapped, and modules that funcaot shards."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from funcaot.distributed.sharding import shard

__all__ = ["shard"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: ``DTensor`` takes a second to import."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("funcaot.distributed.sharding").shard
