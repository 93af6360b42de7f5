"""Modules under ``fully_shard`` that run without the other ranks, only to be compiled.

Their hooks run as ever, but that what is gathered is made of this rank's part alone, and nothing is
reduced. Afterwards ``fully_shard`` is as if the module hadn't been called.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from funcaot._torch.distributed.wrapped import is_sharded
from funcaot.base.scopes import holding

__all__ = ["holds_gradients", "without_other_ranks"]

# What the first call of a root sets, in a state and in a group of parameters.
_OF_ROOT = ("_is_root", "_state_ctx", "_comm_ctx")
_OF_GROUP = ("comm_ctx", "post_forward_mesh_info", "_module_fqn", "_reset_sharded_params")
# A gradient that waits to be reduced. In torch 2.15 this only says what ``.grad`` is.
_ACCUMULATED = "unsharded_accumulated_grad"


def holds_gradients(module: torch.nn.Module) -> bool:
    """Whether gradients wait to be reduced, as they do while they are accumulated."""
    return any(
        group._partial_reduce_output is not None or any(map(_has_gradient, group.fsdp_params))
        for group in _groups(_states(module))
    )


@contextlib.contextmanager
def without_other_ranks(module: torch.nn.Module) -> Iterator[None]:
    """Let a module's hooks wait for nobody; what they gather inside is of the right sizes only.

    Args:
        module: One under ``fully_shard``, that holds no gradients.
    """
    states = _states(module)
    groups = _groups(states)
    with contextlib.ExitStack() as kept:
        if module._get_fsdp_state()._is_root is None:  # type: ignore[operator, union-attr]
            for state in states:
                kept.callback(state._state_ctx.all_states.clear)
                _keep(kept, state, _OF_ROOT)
            for group in groups:
                _keep(kept, group, _OF_GROUP)
        for group in groups:
            kept.enter_context(holding(group, _all_gather_comm=_Repeated(), reduce_grads=False))
        try:
            yield
        finally:
            _come_to_rest(states, groups)


def _states(module: torch.nn.Module) -> list[Any]:
    """What ``fully_shard`` keeps for the units in a module; several modules may have one."""
    units: list[Any] = [each for each in module.modules() if is_sharded(each)]
    return [*dict.fromkeys(unit._get_fsdp_state() for unit in units)]


def _groups(states: Sequence[Any]) -> list[Any]:
    return [group for state in states for group in state._fsdp_param_groups]


def _has_gradient(parameter: Any) -> bool:
    whole = getattr(parameter, "_unsharded_param", None)
    gradients = (getattr(parameter, _ACCUMULATED), getattr(whole, "grad", None))
    return any(gradient is not None for gradient in gradients)


def _keep(kept: contextlib.ExitStack, owner: Any, names: Sequence[str]) -> None:
    for name in names:
        kept.callback(setattr, owner, name, getattr(owner, name))


def _come_to_rest(states: Sequence[Any], groups: Sequence[Any]) -> None:
    """As after a step, also where the call ended early."""
    idle = type(states[0]._training_state).IDLE
    for state in states:
        state._training_state = idle
        state._state_ctx.iter_forward_root = None
        state._modules_to_run_forward.clear()
    for group in groups:
        group._training_state = idle
        group.finalize_backward()
        group.comm_ctx.post_forward_order.clear()
        group.reshard()
        for parameter in group.fsdp_params:
            if _ACCUMULATED in vars(parameter):
                setattr(parameter, _ACCUMULATED, None)
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None


class _Repeated:
    """Gathers this rank's part, as often as there are ranks."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: Any,
        async_op: bool = False,
    ) -> None:
        part = input_tensor.clone()  # It is a view of what is gathered into.
        output_tensor.view(-1, part.numel()).copy_(part.view(1, -1))
