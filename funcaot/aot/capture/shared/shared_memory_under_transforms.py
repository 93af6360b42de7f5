"""Inputs that share memory under transforms, one of them written to.

There memory is only reached through the caller's tensors, at the levels in progress. So the graph
reads each of them: on the tape a flat tensor is filled with them, and what the function sees are
views of it. At the end each input that the function wrote to gets what its view holds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.levels import functorch
from funcaot._torch.levels.functorch import Layer
from funcaot._torch.tracing import tracing
from funcaot.aot.graph.tensor_spec import TensorSpec, contiguous_stride, spec_of
from funcaot.aot.tape.memory import writes
from funcaot.aot.tape.memory.strided_views import extent, placed
from funcaot.aot.tape.tape import Tape
from funcaot.errors import UnsupportedError

_COUNTED = 1 << 18


@dataclass(frozen=True)
class Place:
    """Where an input lies in joined memory.

    Attributes:
        input: Its position.
        spec: Its metadata.
        stride: Its strides, counted in the memory's elements.
        start: Its first element.
        written: Whether the function writes to it.
    """

    input: int
    spec: TensorSpec
    stride: tuple[int, ...]
    start: int
    written: bool


@dataclass(frozen=True)
class Joined:
    """Memory that inputs share, as the innermost level sees it. Equal ones run the same program.

    Attributes:
        length: Elements of the flat tensor.
        unit: Elements of real memory from one of its elements to the next.
        places: The inputs in it.
        unrelated: Whether autograd of some level doesn't know that they share it; then nothing in
            it may have a derivative.
    """

    length: int
    unit: int
    places: tuple[Place, ...]
    unrelated: bool

    def __str__(self) -> str:
        """``inputs 0, 2 share float32[12]`` style."""
        inputs = ", ".join(str(place.input) for place in self.places)
        dtype = str(self.places[0].spec.dtype).removeprefix("torch.")
        return f"inputs {inputs} share {dtype}[{self.length}]"


def join(tensors: Sequence[torch.Tensor], group: Sequence[int], written: frozenset[int]) -> Joined:
    """Find how inputs lie in the memory that they share.

    Args:
        tensors: The inputs.
        group: Positions of those that share memory.
        written: Positions of those that the function writes to.

    Raises:
        UnsupportedError: If they can't be joined.
    """
    names = ", ".join(map(str, group))
    stacks = [functorch.layers(tensors[index]) for index in group]
    unrelated = _compare_levels(names, stacks)
    members = [tensors[index] for index in group]
    if len({(tensor.dtype, tensor.device) for tensor in members}) > 1 or any(
        tensor.is_conj() or tensor.is_neg() for tensor in members
    ):
        raise _refusal(names, "and see it as different types")
    starts = [int(stack[-1].tensor.storage_offset()) for stack in stacks]
    starts = [start - min(starts) for start in starts]
    layouts = [_layout(tensor) for tensor in members]
    unit = math.gcd(*starts, *(step for _, steps in layouts for step in steps)) or 1
    steps = [tuple(step // unit for step in stride) for _, stride in layouts]
    shapes = [shape for shape, _ in layouts]
    # Room for layouts to be made by views that compose.
    room = max((step for stride in steps for step in stride), default=0)
    starts = [start // unit + room for start in starts]
    geometries = tuple(zip(shapes, steps, starts, strict=True))
    batches = tuple(
        (layer.size, layer.step) for layer in stacks[0] if layer.kind == "batch" and layer.size > 1
    )
    if not _are_apart(geometries, unit, batches):
        raise _refusal(names, "as do the examples of a batch")
    forward_mode = tracing.forward_mode_active()
    return Joined(
        max(start + extent(shape, stride) for shape, stride, start in geometries) + room,
        unit,
        tuple(
            Place(
                index,
                spec_of(tensors[index], forward_mode=forward_mode),
                stride,
                start,
                index in written,
            )
            for index, (_, stride, start) in zip(group, geometries, strict=True)
        ),
        unrelated,
    )


def _layout(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides; a dimension of one element doesn't move in memory."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(tensor.shape), tuple(step if size > 1 else 0 for size, step in pairs)


def _refusal(names: str, why: str) -> UnsupportedError:
    return UnsupportedError(
        f"Inputs {names} share memory {why}, and one of them is written to, inside a torch.func "
        "transform.",
        remedy="pass one tensor and make the views of it inside the compiled function.",
    )


def _compare_levels(names: str, stacks: Sequence[Sequence[Layer]]) -> bool:
    """Whether some level doesn't know that tensors share memory.

    Raises:
        UnsupportedError: If that matters, or if the tensors live at different levels.
    """
    kinds = {tuple((a.level, a.kind, a.size, a.step) for a in stack) for stack in stacks}
    if len(kinds) > 1:
        raise _refusal(names, "at different levels")
    unrelated = differentiated = False
    for layer in zip(*stacks, strict=True):
        if layer[0].kind != "autograd":
            continue
        tensors = [item.tensor for item in layer]
        roots = [tensor if tensor._base is None else tensor._base for tensor in tensors]
        unrelated |= any(root is not roots[0] for root in roots)
        required = {tensor.requires_grad for tensor in tensors}
        tangents = [autograd.tangent_of(tensor) for tensor in tensors]
        if len(required) > 1 or not _are_related(tangents):
            raise _refusal(names, "and only some of them have derivatives there")
        differentiated |= required == {True} or tangents[0] is not None
    if unrelated and (differentiated or tracing.forward_mode_active()):
        raise _refusal(names, "and a level differentiates each by itself")
    return unrelated


def _are_related(tangents: Sequence[torch.Tensor | None]) -> bool:
    """Whether tangents are absent, or views of one tensor like their primals."""
    present = [tangent for tangent in tangents if tangent is not None]
    if not present:
        return True
    roots = [tangent if tangent._base is None else tangent._base for tangent in present]
    return len(present) == len(tangents) and all(root is roots[0] for root in roots)


@lru_cache(maxsize=512)
def _are_apart(
    geometries: tuple[tuple[tuple[int, ...], tuple[int, ...], int], ...],
    unit: int,
    batches: tuple[tuple[int, int], ...],
) -> bool:
    """Whether no two examples of a batch share memory."""
    length = max(start + extent(shape, stride) for shape, stride, start in geometries)
    reach = 0
    for step, size in sorted([(unit, length), *((step, size) for size, step in batches)]):
        if step <= reach:
            break
        reach += (size - 1) * step
    else:
        return True
    count = sum(math.prod(shape) for shape, _, _ in geometries)
    if count * math.prod(size for size, _ in batches) > _COUNTED:
        return False
    own = {
        (start + sum(map(int.__mul__, place, stride))) * unit
        for shape, stride, start in geometries
        for place in itertools.product(*map(range, shape))
    }
    shifts = [
        sum(number * step for number, (_, step) in zip(numbers, batches, strict=True))
        for numbers in itertools.product(*(range(size) for size, _ in batches))
    ]
    return len({place + shift for place in own for shift in shifts}) == len(own) * len(shifts)


@dataclass(frozen=True, eq=False)
class TracedPlace:
    """A joined input on a tape.

    Attributes:
        leaf: The placeholder.
        value: The same, or a non-leaf of the same value: what was copied.
        view: What the function sees.
    """

    leaf: torch.Tensor
    value: torch.Tensor
    view: torch.Tensor


def trace_joined(
    tape: Tape, joined: Joined, tensors: Sequence[torch.Tensor]
) -> dict[int, TracedPlace]:
    """Put joined inputs on a tape.

    Args:
        tape: The tape.
        joined: How they lie.
        tensors: The inputs, for their values.

    Returns:
        What stands for each input, by position.
    """
    leaves, values = [], []
    for place in joined.places:
        leaf = tape.placeholder(f"joined_{place.input}", place.spec, tensors[place.input])
        leaves.append(leaf)
        plain = place.spec.is_leaf or not place.spec.requires_grad
        values.append(leaf if plain else tape.non_leaf(leaf))
    first = joined.places[0].spec
    with tape.recording():
        flat = torch.empty_strided(
            (joined.length,), (joined.unit,), dtype=first.dtype, device=first.device
        ).zero_()
        for place, value in zip(joined.places, values, strict=True):
            _fill(tape, _view(flat, place), value)
        views = [_view(flat, place) for place in joined.places]
        for view in views:
            # Made on what the others filled, here: forward mode asks in which grad mode.
            tape.node_of(view)
    return {
        place.input: TracedPlace(leaf, value, view)
        for place, leaf, value, view in zip(joined.places, leaves, values, views, strict=True)
    }


def _fill(tape: Tape, view: torch.Tensor, value: torch.Tensor) -> None:
    writes.recorded(tape, view, [value], lambda: view.copy_(value))


def _view(flat: torch.Tensor, place: Place) -> torch.Tensor:
    shape = place.spec.shape
    usual = contiguous_stride(shape)
    stride = tuple(usual[dim] if size == 1 else place.stride[dim] for dim, size in enumerate(shape))
    return placed(flat, shape, stride, place.start)
