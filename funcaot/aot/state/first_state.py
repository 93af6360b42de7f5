"""The state that an optimizer makes in its first step, made before it for a while.

Such a step is eager's: a capture would make symbolic tensors. What comes after it can be captured
ahead of it once there is a state that looks the same.
"""

from __future__ import annotations

import contextlib
import copy
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch.optim import Optimizer

from funcaot.aot.state.optimizer_step import FirstStepError, hooks_of_all_optimizers

T = TypeVar("T")


def with_states(act: Callable[[], T], made: contextlib.ExitStack) -> tuple[T, bool]:
    """Do something that optimizers need a state for; it is made for those that have none.

    Args:
        act: Captures a call; it is tried again with each state.
        made: States are taken away when it closes.

    Returns:
        What that gives, and whether some optimizer had no state.

    Raises:
        FirstStepError: If something else than such a state is made in the first call, or the
            optimizer is one whose step may do anything.
    """
    known: list[Optimizer] = []
    while True:
        try:
            return act(), bool(known)
        except FirstStepError as error:
            optimizer = error.optimizer
            if optimizer is None or optimizer in known or not _is_torchs(optimizer):
                raise
            known.append(optimizer)
            made.enter_context(_state_made(optimizer))


def _is_torchs(optimizer: Optimizer) -> bool:
    """Whether a step runs code of torch only."""
    return type(optimizer).__module__.startswith("torch.optim.") and not hooks_of_all_optimizers()


@contextlib.contextmanager
def _state_made(optimizer: Optimizer) -> Iterator[None]:
    """Give an optimizer the state that a step on gradients of zeros leaves."""
    twins: dict[torch.Tensor, torch.Tensor] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            twins[parameter] = twin = parameter.detach().clone()
            twin.requires_grad_(parameter.requires_grad)
            if parameter.requires_grad:
                twin.grad = torch.zeros_like(twin)
    double = copy.copy(optimizer)  # without hooks
    double.state = defaultdict(dict)
    double.param_groups = [
        {**group, "params": [twins[parameter] for parameter in group["params"]]}
        for group in optimizer.param_groups
    ]
    double.step()
    given = [parameter for parameter in twins if not optimizer.state.get(parameter)]
    for parameter in given:
        if double.state.get(twins[parameter]):
            optimizer.state[parameter] = double.state[twins[parameter]]
    try:
        yield
    finally:
        for parameter in given:
            optimizer.state.pop(parameter, None)
