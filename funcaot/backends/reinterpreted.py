"""Views as another dtype, of tensors whose layout Inductor would choose.

Such a view needs its last dimension dense. Inductor lays out what it makes as it likes, channels
last behind convolutions, and then can't make the view. What is viewed keeps the capture's strides.
"""

from __future__ import annotations

import torch
from torch import fx

from funcaot._torch.inductor.reinplacing import restriding_op

aten = torch.ops.aten

_VIEWS = {aten.view_as_complex.default, aten.view.dtype}


def with_dense_operands(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph, in which what is viewed as another dtype has the strides that it had."""
    changed = False
    for node in list(module.graph.nodes):
        if node.op != "call_function" or node.target not in _VIEWS:
            continue
        source = node.args[0]
        value = source.meta.get("val")
        if source.op == "placeholder" or not isinstance(value, torch.Tensor):
            continue
        with module.graph.inserting_before(node):
            laid_out = module.graph.call_function(restriding_op(), (source, ()))
        # Torch warns of open sizes among the arguments of a node that is made.
        laid_out.args = (source, tuple(value.stride()))
        laid_out.meta["val"] = value
        node.update_arg(0, laid_out)
        changed = True
    if changed:
        module.recompile()
    return module
