"""What is mended in Inductor, in one place: ``inductor`` and ``aoti`` compile with it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from torch import fx

from funcaot._torch.inductor import (
    casts,
    partitions,
    reinplacing,
    rigid_kernels,
    scalars,
    special_values,
)
from funcaot._torch.inductor.loops import (
    dtypes,
    empty_ranges,
    indices,
    joined,
    short_rows,
    strides,
    threads,
)
from funcaot._torch.patches import applied

__all__ = ["code_mended", "prepare"]


def prepare(module: fx.GraphModule) -> None:
    """Write what Inductor's passes misread in a graph so that they don't; it is changed."""
    special_values.without_folded_zeros(module)
    casts.through_single_precision(module)
    casts.rounded_where_compared(module)


@contextlib.contextmanager
def code_mended() -> Iterator[str]:
    """Generate mended code inside.

    Yields:
        What tells such code from other code in Inductor's caches.
    """
    with (
        applied("loops", threads.mended, "") as looped,
        applied("short rows", short_rows.mended, "") as short,
        applied("indices", indices.mended, "") as checked,
        applied("dtype rules", dtypes.rules_kept, None),
        applied("strides", strides.mended, None),
        applied("joined indices", joined.mended, None),
        applied("symbols of partitions", partitions.without_symbols, None),
        applied("empty ranges", empty_ranges.left_out, None),
        applied("scalars", scalars.computed_once, "") as scaled,
        applied("apart", reinplacing.apart, "") as placed,
        applied("rigid kernels", rigid_kernels.operands_as_captured, "") as rigid,
        applied("stored apart", casts.stored_apart, "") as stored,
        applied("quotients", scalars.divided_exactly, "") as divided,
        special_values.mended() as exact,
    ):
        # The last is what ``prepare`` marks, which is no part of a graph's text.
        made = (looped, short, checked, scaled, placed, rigid, stored, divided, exact)
        yield "".join((*made, " rounded 3"))
