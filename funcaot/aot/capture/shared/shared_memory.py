"""Inputs that share memory: which ones do, and the flat region that stands for them on a tape.

A function that writes to one of two overlapping inputs changes the other. So on the tape both are
views of one input, the region: the flat memory that they live in. What autograd knows about them
is kept: inputs that are views of one tensor stay views of one tensor (a *family*, differentiated
through its base), and a ``detach`` of it is a family of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.levels import functorch
from funcaot._torch.tracing import tracing
from funcaot.aot.capture.shared.held_inputs import Held, held_inputs
from funcaot.aot.capture.shared.shared_memory_under_transforms import Joined, join
from funcaot.aot.graph.tensor_spec import TensorSpec, is_dense, spec_of
from funcaot.aot.tape.memory.strided_views import extent, placed
from funcaot.aot.tape.tape import Tape
from funcaot.aot.tape.wrappers import is_wrapper
from funcaot.errors import UnsupportedError

Shared: TypeAlias = "Region | Joined | Held"
_ALIGNMENT = 16


@dataclass(frozen=True)
class Family:
    """Inputs that autograd knows as views of one tensor, or one input that is no view.

    Attributes:
        input: An input of the family.
        of_base: Whether the family's base is that input's ``_base`` rather than itself.
        spec: The base's metadata.
        start: The base's first byte in the region.
        counter: Families of the same number count in-place changes together.
    """

    input: int
    of_base: bool
    spec: TensorSpec
    start: int
    counter: int


@dataclass(frozen=True)
class Member:
    """An input that lives in a region.

    Attributes:
        input: Its position.
        family: Its family's position in the region.
        spec: Its metadata.
        start: Its first byte in the region.
        creation: How autograd says that the view was made, None for a base.
    """

    input: int
    family: int
    spec: TensorSpec
    start: int
    creation: str | None


@dataclass(frozen=True)
class Region:
    """Memory that several inputs share. Equal regions run the same program.

    Attributes:
        spec: The region as a flat tensor.
        families: The autograd families in it.
        members: The inputs in it.
    """

    spec: TensorSpec
    families: tuple[Family, ...]
    members: tuple[Member, ...]

    def __str__(self) -> str:
        """``inputs 0, 2 share float32[12]`` style."""
        inputs = ", ".join(str(member.input) for member in self.members)
        return f"inputs {inputs} share {self.spec}"


@dataclass(frozen=True)
class _Span:
    """The bytes of a storage that an input, or its base, reaches."""

    low: int
    high: int

    def meets(self, other: _Span) -> bool:
        return self.low < other.high and other.low < self.high

    def joined(self, other: _Span) -> _Span:
        return _Span(min(self.low, other.low), max(self.high, other.high))


@dataclass(frozen=True)
class _Wanted:
    """Which groups of inputs need a region.

    Attributes:
        writes: Inputs that are written to.
        alone: Inputs that need one even if they share it with nobody: they have gaps between their
            elements, or the function sees more of their storage.
    """

    writes: frozenset[int]
    alone: frozenset[int]

    def covers(self, group: Sequence[int]) -> bool:
        several = len(group) > 1 and not self.writes.isdisjoint(group)
        return several or not self.alone.isdisjoint(group)


def find_regions(
    tensors: Sequence[torch.Tensor],
    written: Iterable[int],
    placed: Iterable[int] = (),
    *,
    differentiable: bool,
) -> tuple[Shared, ...]:
    """Group inputs that share memory with one that is written to.

    Args:
        tensors: The inputs, in order.
        written: Positions of those that the function writes to.
        placed: Positions of those of whose storages the function names places that may be outside
            of them. Unless there is nothing outside, their region is the storage.
        differentiable: Whether autograd records the call. Then inputs of one storage count in-place
            changes together even where they don't overlap, so they belong to one region.

    Raises:
        UnsupportedError: For overlapping inputs whose relation can't be told.
    """
    writes = set(written)
    whole = {index for index in placed if _is_part(tensors[index])}
    if not writes and not whole:
        return ()
    alone = whole | {index for index in writes if _has_gaps(tensors[index])}
    storages: dict[int, list[int]] = {}
    for index, tensor in enumerate(tensors):
        if tensor.layout is torch.strided and not is_wrapper(tensor):
            storages.setdefault(tracing.storage_key(functorch.memory_of(tensor)), []).append(index)
    if len(storages) == len(tensors) and not alone:
        return ()
    regions: list[Shared] = list(held_inputs(tensors, writes, storages))
    for shared in storages.values():
        if not (alone.isdisjoint(shared) and (len(shared) == 1 or writes.isdisjoint(shared))):
            together = differentiable and any(
                functorch.requires_grad_at_any_level(tensors[index]) for index in shared
            )
            # Of a storage that is seen as a whole, everything is in one region.
            together |= not whole.isdisjoint(shared)
            wanted = _Wanted(frozenset(writes), frozenset(alone))
            if functorch.transforms_active():
                regions += _joined(tensors, shared, wanted, together=together)
                continue
            for component in _components(tensors, shared, wanted, together=together):
                if wanted.covers(component):
                    everything = not whole.isdisjoint(component)
                    regions.append(_region(tensors, component, everything=everything))
    return tuple(regions)


def _joined(
    tensors: Sequence[torch.Tensor], shared: Sequence[int], wanted: _Wanted, *, together: bool
) -> list[Joined]:
    """What becomes of inputs of one storage under transforms."""
    groups = [(_span(tensors[index]), [index]) for index in shared if tensors[index].numel()]
    found = []
    for _, group in _merged(groups, together=together):
        if not wanted.covers(group):
            continue
        if not wanted.alone.isdisjoint(group):
            raise UnsupportedError(
                f"Memory of input {min(wanted.alone.intersection(group))}'s storage is used that "
                "isn't the input's, inside a torch.func transform.",
                remedy="pass one tensor and make the views of it inside the compiled function.",
            )
        try:
            found.append(join(tensors, sorted(group), wanted.writes))
        except UnsupportedError:
            if not together:
                raise
            # Those that don't overlap need not be joined: only their versions are one.
            return _joined(tensors, shared, wanted, together=False)
    return found


def _has_gaps(tensor: torch.Tensor) -> bool:
    """Whether an op on a tensor gives other strides than the tensor has.

    An in-place op keeps the strides and the functional op in its place would not, so the tensor
    is written to inside its region, where strides are those of a view.
    """
    if tensor.layout is not torch.strided or tensor.numel() < 2 or is_wrapper(tensor):
        return False
    if tensor.is_contiguous() or functorch.transforms_active():
        return False
    return not is_dense(tuple(tensor.shape), tensor.stride())


def _is_part(tensor: torch.Tensor) -> bool:
    """Whether there is memory in a tensor's storage that isn't the tensor's."""
    if tensor.layout is not torch.strided:
        return False
    span = _span(tensor)
    return span.low > 0 or span.high < functorch.memory_of(tensor).untyped_storage().nbytes()


def has_room(tensor: torch.Tensor) -> bool:
    """Whether there is memory behind a tensor in its storage."""
    plain = functorch.memory_of(tensor)
    return _span(plain).high < plain.untyped_storage().nbytes()


def _span(tensor: torch.Tensor) -> _Span:
    plain = functorch.memory_of(tensor)
    low = int(plain.storage_offset()) * plain.element_size()
    return _Span(low, low + extent(tuple(plain.shape), plain.stride()) * plain.element_size())


def _base(tensor: torch.Tensor) -> torch.Tensor:
    base = tensor._base
    return tensor if base is None else base


def _components(
    tensors: Sequence[torch.Tensor], shared: Sequence[int], wanted: _Wanted, *, together: bool
) -> list[list[int]]:
    """Inputs of one storage that overlap, directly or through the regions that they need."""
    groups: list[tuple[_Span, list[int]]] = []
    for index in shared:
        groups = _merged([*groups, (_span(tensors[index]), [index])], together=together)
    # A region covers more than its inputs, and all of it is written back.
    while True:
        grown = [
            (_reach(tensors, group) if wanted.covers(group) else span, group)
            for span, group in groups
        ]
        merged = _merged(grown, together=together)
        if len(merged) == len(groups):
            break
        groups = merged
    return [sorted(group) for _, group in groups]


def _reach(tensors: Sequence[torch.Tensor], group: Sequence[int]) -> _Span:
    """The bytes of a group's region."""
    inhabitants, _ = _inhabitants(tensors, group, everything=False)
    return _Span(*_bounds(inhabitants, everything=False))


def _inhabitants(
    tensors: Sequence[torch.Tensor], group: Sequence[int], *, everything: bool
) -> tuple[list[torch.Tensor], set[int]]:
    """What a region has to hold, inputs and bases; and which inputs stand for themselves.

    Those are views that share memory with no other view of their base, if the region isn't a whole
    storage; and leaves that require grad, which are views of something that doesn't.
    """
    bases = [id(_base(tensors[index])) for index in group]
    own = {
        index
        for index, base in zip(group, bases, strict=True)
        if (bases.count(base) == 1 and not everything)
        or (tensors[index].requires_grad and tensors[index].is_leaf)
    }
    inputs = [tensors[index] for index in group]
    return inputs + [_base(tensors[index]) for index in group if index not in own], own


def _merged(
    groups: Sequence[tuple[_Span, list[int]]], *, together: bool
) -> list[tuple[_Span, list[int]]]:
    result: list[tuple[_Span, list[int]]] = []
    for span, group in sorted(groups, key=lambda item: item[0].low):
        if result and (together or result[-1][0].meets(span)):
            last_span, last = result[-1]
            result[-1] = (last_span.joined(span), [*last, *group])
        else:
            result.append((span, group))
    return result


def _region(
    tensors: Sequence[torch.Tensor], component: Sequence[int], *, everything: bool
) -> Region:
    inhabitants, own = _inhabitants(tensors, component, everything=everything)
    low, high = _bounds(inhabitants, everything=everything)
    dtypes = {tensor.dtype for tensor in inhabitants}
    dtype = dtypes.pop() if len(dtypes) == 1 else torch.uint8
    families: list[Family] = []
    bases: list[torch.Tensor] = []
    members = []
    for index in component:
        tensor = tensors[index]
        base = tensor if index in own else _base(tensor)
        known = next((k for k, other in enumerate(bases) if other is base), None)
        if known is None:
            known = len(bases)
            families.append(_family(tensor, index, base, bases, low))
            bases.append(base)
        creation = None if base is tensor else str(autograd.creation_meta(tensor)).split(".")[-1]
        members.append(Member(index, known, spec_of(tensor), _start(tensor) - low, creation))
    spec = TensorSpec(
        ((high - low) // dtype.itemsize,),
        (1,),
        dtype,
        inhabitants[0].device,
        torch.strided,
        requires_grad=False,
        is_leaf=True,
    )
    return Region(spec, tuple(families), tuple(members))


def _start(tensor: torch.Tensor) -> int:
    return int(tensor.storage_offset()) * tensor.element_size()


def _bounds(tensors: Sequence[torch.Tensor], *, everything: bool) -> tuple[int, int]:
    """First and last byte, with room for strided layouts to be rebuilt by views that compose.

    Args:
        tensors: What has to be inside.
        everything: Whether the whole storage is asked for.
    """
    spans = [_span(tensor) for tensor in tensors]
    room = max(
        (step * tensor.element_size() for tensor in tensors for step in tensor.stride()),
        default=0,
    )
    low = max(min(span.low for span in spans) - room, 0) // _ALIGNMENT * _ALIGNMENT
    available = tensors[0].untyped_storage().nbytes()
    high = min(max(span.high for span in spans) + room, available)
    if everything:
        low, high = 0, available
    largest = max(tensor.element_size() for tensor in tensors)
    return low, low + (high - low) // largest * largest


def _family(
    tensor: torch.Tensor, index: int, base: torch.Tensor, bases: Sequence[torch.Tensor], low: int
) -> Family:
    counter = next(
        (k for k, other in enumerate(bases) if autograd.shares_version(other, base)), len(bases)
    )
    return Family(index, base is not tensor, spec_of(base), _start(base) - low, counter)


# The region's tensors on a tape.


@dataclass(frozen=True, eq=False)
class TracedFamily:
    """A family's base on a tape: what the function sees, and its leaf if it requires grad."""

    tensor: torch.Tensor
    leaf: torch.Tensor


@dataclass(frozen=True, eq=False)
class TracedRegion:
    """A region on a tape.

    Attributes:
        flat: The placeholder.
        families: Bases, one per family.
        members: What the function sees, one per member.
    """

    flat: torch.Tensor
    families: tuple[TracedFamily, ...]
    members: tuple[torch.Tensor, ...]


def trace_region(tape: Tape, region: Region, name: str) -> TracedRegion:
    """Put a region on a tape: one placeholder, and its inputs as views of it."""
    flat = tape.placeholder(name, region.spec)
    with tape.recording(grad_mode=False):
        counters: dict[int, torch.Tensor] = {}
        families = []
        for family in region.families:
            root = counters.setdefault(family.counter, flat.data)
            tensor = _place(root, family.spec, family.start).detach()
            families.append(_with_grad(tape, tensor, family.spec))
    with tape.recording():
        members = tuple(
            _member(families[member.family].tensor, region.families[member.family], member)
            for member in region.members
        )
    return TracedRegion(flat, tuple(families), members)


def _with_grad(tape: Tape, tensor: torch.Tensor, spec: TensorSpec) -> TracedFamily:
    if not spec.requires_grad:
        return TracedFamily(tensor, tensor)
    if spec.is_leaf:
        return TracedFamily(tensor.requires_grad_(), tensor)
    leaf = tensor.data.requires_grad_()
    return TracedFamily(tape.attach(leaf, tensor), leaf)


def _place(flat: torch.Tensor, spec: TensorSpec, start: int) -> torch.Tensor:
    """A view of flat memory that looks like a spec."""
    if flat.dtype != spec.dtype:
        first = start // flat.element_size()
        count = (flat.shape[0] - first) * flat.element_size() // spec.dtype.itemsize
        size = spec.dtype.itemsize // flat.element_size() * count
        flat = flat.narrow(0, first, size).view(spec.dtype)
        start = 0
    view = placed(flat, spec.shape, spec.stride, start // spec.dtype.itemsize)
    if spec.flags[0]:
        view = torch.conj(view)
    return tracing.negated_view(view) if spec.flags[1] else view


def _member(base: torch.Tensor, family: Family, member: Member) -> torch.Tensor:
    """An input of a family as a view of its base, made again as autograd says it was made."""
    if member.creation is None:
        return base
    spec = family.spec
    if spec.dtype != member.spec.dtype or spec.flags != member.spec.flags:
        raise UnsupportedError(
            f"Input {member.input} is a view of another type ({member.spec}) of a tensor "
            f"({spec}) that the function also gets in another way, and one of them is written to.",
            remedy="pass one tensor and make the views of it inside the compiled function.",
        )
    order = sorted(range(len(spec.shape)), key=lambda dim: -spec.stride[dim])
    if not is_dense(spec.shape, spec.stride):
        raise UnsupportedError(
            f"Input {member.input} is a view of a tensor with gaps ({spec}) that the function also "
            "gets in another way, and one of them is written to.",
            remedy="pass one tensor and make the views of it inside the compiled function.",
        )
    offset = (member.start - family.start) // spec.dtype.itemsize
    view = placed(base.permute(order).view(-1), member.spec.shape, member.spec.stride, offset)
    if member.creation not in (None, "DEFAULT"):
        autograd.set_creation_meta(view, getattr(autograd.CreationMeta, str(member.creation)))
    return view


# The region's tensors of a call.


def real_tensors(region: Shared, inputs: Sequence[torch.Tensor]) -> list[Any]:
    """The flat memory of a call's inputs, then each family's base; nothing for what has none."""
    if not isinstance(region, Region):
        return []
    first = inputs[region.members[0].input]
    low = _start(first) - region.members[0].start
    itemsize = region.spec.dtype.itemsize
    flat = torch.empty(0, dtype=region.spec.dtype, device=first.device)
    flat.set_(first.untyped_storage(), low // itemsize, region.spec.shape, (1,))
    return [
        flat,
        *(
            _base(inputs[family.input]) if family.of_base else inputs[family.input]
            for family in region.families
        ),
    ]
