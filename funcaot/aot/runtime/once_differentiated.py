"""Results whose derivative can't be differentiated, since a wrapper of ``torch.distributed`` can't.

Compiled modules call `refuse_second`, where the module is wrapped by something that would go wrong
without a word, or with words about storages.
"""

from __future__ import annotations

from typing import Any

import torch

from funcaot._torch.distributed.wrapped import DistributedDataParallel
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot.errors import UnsupportedError

__all__ = [
    "FULLY_SHARDED",
    "STATIC_GRAPH",
    "in_static_graph",
    "refuse_delayed",
    "refuse_second",
]

FULLY_SHARDED = (
    "fully_shard frees the parameters as soon as the gradients of its inputs are there, so that "
    "forces and penalties have nothing to be differentiated with",
    "take the derivative inside of the module's forward, or use funcaot.distributed.shard(module) "
    "instead of fully_shard, which gathers again.",
)
STATIC_GRAPH = (
    "DistributedDataParallel with static_graph=True reduces gradients after the first backward, "
    "which is this one, and never those of the loss",
    "take the derivative inside of the module's forward, or leave static_graph out.",
)


def refuse_second(results: Any, reason: tuple[str, str], name: str) -> Any:
    """The same results; to differentiate their derivative is refused.

    Args:
        results: What a module returns, with a history.
        reason: Why, and what to do instead.
        name: The module, for the message.
    """

    def refuse(gradient: torch.Tensor) -> None:
        if torch.is_grad_enabled():
            raise UnsupportedError(
                f"A derivative of what {name} returned is taken with create_graph=True, and "
                f"{reason[0]}.",
                remedy=reason[1],
            )

    for result in tree_flatten(results)[0]:
        if isinstance(result, torch.Tensor) and result.requires_grad:
            result.register_hook(refuse)
    return results


def in_static_graph() -> bool:
    """Whether a ``DistributedDataParallel`` with a static graph calls its module now."""
    active: Any = DistributedDataParallel._active_ddp_module
    if active is None:
        return False
    refuse_delayed(active)
    return active.static_graph and active.require_backward_grad_sync


def refuse_delayed(parallel: Any) -> None:
    """Refuse a reduction that one parameter's hook starts for parameters whose gradients are there.

    Gradients of one program arrive in no order, so some would be reduced before they are there.

    Args:
        parallel: A ``DistributedDataParallel``.
    """
    if getattr(parallel, "_delay_all_reduce_params", ()):
        raise UnsupportedError(
            "A DistributedDataParallel with delay_all_reduce_named_params reduces gradients in "
            "a hook of another parameter, and those of a compiled module come in no order.",
            remedy="leave delay_all_reduce_named_params out.",
        )
