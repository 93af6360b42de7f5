"""What a call's inputs share, seen with what a first capture found out that the function does."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from funcaot._torch.tracing import tracing
from funcaot.aot.capture.capture import Capture, Sharing
from funcaot.aot.capture.shared.shared_memory import Region, find_regions, has_room
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import SizeError, Sizes
from funcaot.errors import UnsupportedError


def refuse_room(tensors: Sequence[torch.Tensor], name: str) -> None:
    """Refuse to grow a tensor in a storage that has room: it would show what is there.

    Raises:
        UnsupportedError: If one has.
    """
    for tensor in tensors:
        if has_room(tensor):
            raise UnsupportedError(
                f"{name} resizes a tensor {list(tensor.shape)} to more elements, and its storage "
                "holds others that it would show then.",
                remedy="resize a clone, or take a larger view of the whole.",
            )


@dataclass(frozen=True)
class Touched:
    """Inputs of which it matters who shares their memory.

    Attributes:
        written: Those that the function writes to.
        placed: Those of whose storages it names places that may be outside of them.
    """

    written: frozenset[int]
    placed: frozenset[int]

    def __bool__(self) -> bool:
        """Whether there is one."""
        return bool(self.written or self.placed)

    def __or__(self, other: Touched) -> Touched:
        """What either touches."""
        return Touched(self.written | other.written, self.placed | other.placed)


def touched_inputs(captured: Capture, written: Collection[int]) -> Touched:
    """What a first run touched.

    Args:
        captured: The run.
        written: Positions of the operands that it wrote to.
    """
    inputs = range(len(captured.inputs))
    return Touched(frozenset(written) & frozenset(inputs), _placed(captured))


def _placed(captured: Capture) -> frozenset[int]:
    """Inputs of whose storages the function names places that may be outside of them."""
    storages = {tracing.storage_key(tensor) for tensor in captured.events.placed}
    if not storages:
        return frozenset()
    return frozenset(
        index
        for index, slot in enumerate(captured.inputs)
        if slot.spec.layout is torch.strided and tracing.storage_key(slot.tensor) in storages
    )


def sharing_of(
    given: Sequence[torch.Tensor],
    lifted: tuple[torch.Tensor, ...],
    touched: Touched,
    signature: Signature,
    sizes: Sizes | None,
) -> Sharing:
    """Memory that a call's inputs share with one that the function writes to.

    Args:
        given: The call's tensors, each once.
        lifted: Those that the function closes over, as far as known.
        touched: What it touches.
        signature: The call's signature.
        sizes: What it leaves open.

    Raises:
        SizeError: Inputs share memory and sizes are open.
        UnsupportedError: They do, inside forward mode.
    """
    if not touched:
        return Sharing()
    regions = find_regions(
        [*given, *lifted],
        touched.written,
        touched.placed,
        differentiable=signature.ambient.grad_mode,
    )
    if not regions:
        return Sharing()
    if sizes is not None:
        raise SizeError("Inputs share memory.", remedy="compile with dynamic=False.")
    if signature.ambient.forward_mode and isinstance(regions[0], Region):
        raise UnsupportedError(
            f"Inside forward mode, {regions[0]} and one of them is written to.",
            remedy="pass one tensor and make the views of it inside the compiled function.",
        )
    return Sharing(lifted, regions)
