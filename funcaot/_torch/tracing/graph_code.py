"""Private names behind the source text that fx keeps of every graph module."""

from __future__ import annotations

import linecache
import weakref

from torch import fx
from torch.fx.graph_module import _loader


def forget_source_with(module: fx.GraphModule) -> fx.GraphModule:
    """Let the module's generated source go when the module does; fx keeps it for good.

    Call it after each ``recompile``, which generates source anew.
    """
    key = type(module).forward.__code__.co_filename
    weakref.finalize(module, _forget, key).atexit = False
    return module


def _forget(key: str) -> None:
    _loader.eval_cache.pop(key, None)
    linecache.cache.pop(key, None)
