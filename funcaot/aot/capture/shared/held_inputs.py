"""Inputs that are inside of other inputs: a tensor that is given alone and in a wrapper, too.

On a tape both are one tensor, so a write to either is one to both, as in eager.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tracing import tracing
from funcaot.aot.subclasses.structure import paths_inside
from funcaot.aot.tape.wrappers import is_wrapper, leaves_of
from funcaot.errors import UnsupportedError

__all__ = ["Held", "held_in", "held_inputs"]


@dataclass(frozen=True)
class Held:
    """Inputs that others hold, where one of them is written to.

    Attributes:
        inputs: Their positions.
    """

    inputs: tuple[int, ...]

    def __str__(self) -> str:
        """As a plan shows it."""
        return f"inputs {', '.join(map(str, self.inputs))} are inside of others"


def held_in(tensors: Sequence[torch.Tensor]) -> dict[int, tuple[int, ...]]:
    """For each input that is inside of others, the inputs inside of it, if it is a wrapper itself.

    Those that others hold come after what they hold themselves.
    """
    positions = {id(tensor): index for index, tensor in enumerate(tensors)}
    inside = {
        index: tuple(positions[id(p)] for _, p in paths_inside(tensor) if id(p) in positions)
        for index, tensor in enumerate(tensors)
        if is_wrapper(tensor)
    }
    held = {index for found in inside.values() for index in found}
    # What a wrapper holds is inside of whatever holds the wrapper, so it holds less.
    return {
        index: inside.get(index, ())
        for index in sorted(held, key=lambda each: len(inside.get(each, ())))
    }


def held_inputs(
    tensors: Sequence[torch.Tensor], writes: Set[int], storages: Mapping[int, Sequence[int]]
) -> Iterator[Held]:
    """The inputs that others hold, if one of both is written to; nothing if there are none.

    Args:
        tensors: The inputs, in order.
        writes: Positions of those that the function writes to.
        storages: The positions of plain ones, by the memory that they are in.

    Raises:
        UnsupportedError: If a sparse one or one inside of a wrapper shares memory that is written
            to with another tensor. No region can hold these.
    """
    owners = {key: list(indices) for key, indices in storages.items()}
    known = {key: [tensors[index] for index in indices] for key, indices in storages.items()}
    if functorch.transforms_active():
        known = {}
    alone = True
    for index, tensor in enumerate(tensors):
        if tensor.layout is torch.strided and not is_wrapper(tensor):
            continue
        parts = list(map(functorch.fully_unwrapped, leaves_of(tensor)))
        for part, key in [(each, key) for each in parts for key in tracing.storage_keys(each)]:
            together = [index, *owners.get(key, ())]
            is_one = is_wrapper(tensor) and any(part is each for each in known.get(key, ()))
            if is_wrapper(tensor) and key not in owners:
                known[key] = [part]
            owners[key] = together
            if len(together) == 1 or writes.isdisjoint(together):
                continue
            alone = False
            if not is_one:
                raise _refusal(tensors, together)
    held = () if alone or functorch.transforms_active() else tuple(held_in(tensors))
    if held:
        yield Held(tuple(sorted(held)))


def _refusal(tensors: Sequence[torch.Tensor], together: Sequence[int]) -> UnsupportedError:
    kinds = [(each, type(tensors[each]).__name__) for each in sorted(set(together))]
    names = ", ".join(f"{each} (a {kind})" for each, kind in kinds)
    return UnsupportedError(
        f"Inputs {names} share memory, one of them is sparse or wraps it, and one of them is "
        "written to.",
        remedy="clone one of them before the call; of a wrapper and its inner tensor, pass the "
        "inner tensor itself, not a view of it, or write to x.inner inside.",
    )
