"""Open sizes of a graph that has none: Inductor searches all its loops for them.

It does so to hand them to the parts into which it would cut a graph, and writes each loop once more
to look at it. Where there is no symbol for a size, nothing can be found.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from funcaot._torch.dynamo.compile_lock import replaced_here

__all__ = ["without_symbols"]


@contextlib.contextmanager
def without_symbols() -> Iterator[None]:
    """Let Inductor search only graphs with a symbol in them."""
    from torch._inductor.scheduler import Scheduler
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    usual: Any = Scheduler.get_graph_partition_symbol_inputs

    def symbols(scheduler: Any, partition: Any, input_nodes: Any) -> Any:
        known: Any = V.graph.sizevars.shape_env
        if not known.var_to_range and not known.backed_var_to_val:
            return OrderedSet()
        return usual(scheduler, partition, input_nodes)

    with replaced_here(Scheduler, "get_graph_partition_symbol_inputs", symbols):
        yield
