"""Ops that are recorded as others, since torch's symbolic versions differ from eager's kernels.

``TapeFunctionalMode`` asks here before it records an op.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from funcaot._torch.tensors.random.made_generators import made_at
from funcaot._torch.tracing.eager_rules.mixed_norms import NORMS, in_single_precision
from funcaot._torch.tracing.eager_rules.products.grouped import GROUPED, by_own_op
from funcaot._torch.tracing.eager_rules.silent_writes import SILENT, as_declared

__all__ = ["REWRITTEN"]

aten = torch.ops.aten


def _as_one_row(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A margin loss of one sample as that of a batch of one: torch's formula adds a dimension."""
    sample, target, *reduction = args
    if sample.dim() != 1:
        return NotImplemented
    made = func(sample[None], target.reshape(1, -1), *reduction, **kwargs)
    loss, is_target = made
    return loss.reshape(()), is_target.reshape(target.shape)


_FILLING = {
    aten.cauchy_.default: aten.cauchy.default,
    aten.exponential_.default: aten.exponential.default,
    aten.geometric_.default: aten.geometric.default,
    aten.log_normal_.default: aten.log_normal.default,
}


def _filled(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A draw in place as a copy of one that isn't: torch's symbolic one takes no generator."""
    generator = kwargs.get("generator")
    if generator is None or made_at(generator) is None:
        return NotImplemented
    return aten.copy_.default(args[0], _FILLING[func](*args, **kwargs))


# What each returns in another way, or NotImplemented: called with the op and its arguments.
REWRITTEN = {
    **dict.fromkeys(SILENT, as_declared),
    **dict.fromkeys(NORMS, in_single_precision),
    **dict.fromkeys(_FILLING, _filled),
    GROUPED: by_own_op,
    aten.multilabel_margin_loss_forward.default: _as_one_row,
}
