"""Casts to narrow dtypes round where the program says so; ``inductor`` compiles with this.

Inductor computes with float32 what is of bfloat16 or float16, and takes a cast to one of these and
back for nothing. A program that casts so means the rounding: a quantizer, a test of precision.
"""

from __future__ import annotations

import contextlib

import torch
from torch import fx

_NARROW = (torch.bfloat16, torch.float16)
_CONVERT = torch.ops.prims.convert_element_type.default


def as_written() -> contextlib.AbstractContextManager[None]:
    """Let Inductor keep casts; what is computed between two of them stays in float32."""
    import torch._inductor.config as inductor_config

    return inductor_config.patch(emulate_precision_casts=True)


def through_single_precision(module: fx.GraphModule) -> None:
    """Write a cast from one narrow dtype to the other as two, with float32 between.

    That is the same number. Of the one cast, Inductor drops the rounding of what it casts.
    """
    for node in module.graph.find_nodes(op="call_function", target=_CONVERT):
        source, target = node.args
        value = source.meta.get("val")
        if target not in _NARROW or value is None or value.dtype not in _NARROW:
            continue
        with module.graph.inserting_before(node):
            wide = module.graph.call_function(_CONVERT, (source, torch.float32))
        wide.meta = {**node.meta, "val": node.meta["val"].to(torch.float32)}
        node.args = (wide, target)
