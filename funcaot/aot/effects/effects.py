"""Effects: what a captured function does besides computing fresh tensors, as one frozen record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import fx

from funcaot.aot.closure.look import written
from funcaot.aot.tape import views


@dataclass(frozen=True)
class Layout:
    """Metadata that an input is given in place.

    Attributes:
        shape: Its new sizes.
        stride: Its new strides.
        offset: Its new storage offset, relative to the old one.
        resized: Whether it was resized, so that its storage may have to grow.
        with_grad: Whether autograd records the change.
        of_view: Whether only a view of it was changed, which nobody has.
        calls: The methods that the function changed it by, with their arguments, if these say it
            all (``t_`` and the like); a batch can't be given strides, but these.
    """

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    resized: bool
    with_grad: bool
    of_view: bool = False
    calls: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    def __str__(self) -> str:
        """``shape [3, 2] stride [1, 3]`` style."""
        text = f"shape {list(self.shape)} stride {list(self.stride)}"
        if self.offset:
            text += f" offset {self.offset:+d}"
        return text + (" resized" if self.resized else "")


@dataclass(frozen=True)
class Mutation:
    """What happens to one input, in the order of the attributes.

    Attributes:
        index: The input.
        attributes_before: ``requires_grad_`` if the input starts to require grad as a leaf.
        value: Result that holds its new data, in the shape that it has; autograd doesn't see it.
        detached: Whether all of that was written through tensors detached from it, so that it
            keeps the tangent that it has.
        source: Where its new storage comes from (``set_``).
        layout: Its new metadata.
        graded: Result that it becomes for autograd, in the shape that it has by then.
        versions: In-place changes that its version counts; None if it counts none, as for
            writes through ``.data``.
        attributes_after: ``detach_`` or ``requires_grad_(False)``.
    """

    index: int
    attributes_before: str | None = None
    value: int | None = None
    detached: bool = False
    source: Origin | None = None
    layout: Layout | None = None
    graded: int | None = None
    versions: int | None = None
    attributes_after: str | None = None

    @property
    def writes(self) -> bool:
        """Whether memory of the input is overwritten."""
        return self.value is not None or self.graded is not None

    @property
    def is_copy(self) -> bool:
        """Whether the input gets new data and nothing else after the call."""
        others = (self.source, self.layout, self.graded, self.attributes_after)
        return self.value is not None and others == (None,) * 4 and not self.detached

    def __str__(self) -> str:
        """One line of the plan."""
        parts = []
        if self.attributes_before:
            parts.append(f"{self.attributes_before} before the call")
        if self.value is not None:
            how = " by .data" if self.versions is None else " by detach" if self.detached else ""
            parts.append(f"= result {self.value}{how}")
        if self.source is not None:
            parts.append(f"set to {self.source}")
        if self.layout is not None:
            parts.append(str(self.layout))
        if self.graded is not None:
            parts.append(f"= result {self.graded} with its gradient")
        if self.versions is not None:
            parts.append(f"version +{self.versions}")
        if self.attributes_after:
            parts.append(f"{self.attributes_after} after the call")
        return ", ".join(parts)


@dataclass(frozen=True, eq=False)
class Watched:
    """A tensor of the caller that must not be written to before a backward reads what it holds.

    Attributes:
        input: The input that it is, or None.
        result: The result that it is, or None.
        root: The tape's node of its memory.
    """

    input: int | None
    result: int | None
    root: fx.Node


@dataclass(frozen=True, eq=False)
class Origin:
    """How the epilogue makes a tensor out of others; one object, one tensor.

    Attributes:
        source: The input that it starts from, or None.
        result: The result that it starts from, or None.
        parent: Another tensor that the epilogue makes, if it starts from neither.
        kind: ``detach`` or ``data`` if it shares memory with its start, but not autograd's graph.
        view: The chain of views from there.
        graft: Result whose place in autograd's graph it takes.
        leaf: Whether it is made a leaf that requires grad.
    """

    source: int | None = None
    result: int | None = None
    parent: Origin | None = None
    kind: str | None = None
    view: views.View | None = None
    graft: int | None = None
    leaf: bool = False

    def __str__(self) -> str:
        """``input 1.detach().select(0, 1)`` style."""
        if self.parent is not None:
            text = f"({self.parent})"
        else:
            text = f"result {self.result}" if self.source is None else f"input {self.source}"
        if self.kind:
            text += f".{self.kind}"
        if self.view is not None:
            text += f".{self.view}"
        if self.graft is not None:
            text += f" with the gradient of result {self.graft}"
        return text + (" as a leaf" if self.leaf else "")


@dataclass(frozen=True)
class Output:
    """Where one flat output of the function comes from.

    Attributes:
        value: A non-tensor, returned as it is.
        result: Position among the graph's results.
        source: Position of the input that it is or is a view of.
        view: The chain of views from the input or the result; None for the thing itself.
        origin: For anything else, how it is made; then the others are None.
    """

    value: Any = None
    result: int | None = None
    source: int | None = None
    view: views.View | None = None
    origin: Origin | None = None

    def __str__(self) -> str:
        """``result 0``, ``input 1`` or ``input 1.t()`` style."""
        if self.origin is not None:
            return str(self.origin)
        if self.result is None and self.source is None:
            return written(self.value)
        return str(Origin(self.source, self.result, view=self.view))


@dataclass(frozen=True)
class Effects:
    """A function's outputs and mutations in terms of its functional graph.

    Inputs are counted as ``Capture.slots`` counts them: the call's own, then what regions add.

    Attributes:
        results: The tape's tensors that the functional graph computes.
        mutations: Inputs that are changed.
        outputs: One entry per flat output.
        flats: For each region with new data: the slot of its memory and the result that holds it.
        regions: Memory that inputs share, one line each; empty in the usual case.
    """

    results: tuple[torch.Tensor, ...]
    mutations: tuple[Mutation, ...]
    outputs: tuple[Output, ...]
    flats: tuple[tuple[int, int], ...] = ()
    regions: tuple[str, ...] = ()

    @cached_property
    def shown(self) -> frozenset[int]:
        """Results that the caller gets; the others are only copied from."""
        found = {output.result for output in self.outputs}
        origins = [output.origin for output in self.outputs]
        origins += [mutation.source for mutation in self.mutations]
        for origin in origins:
            while origin is not None:
                found.add(origin.result)
                origin = origin.parent
        return frozenset(position for position in found if position is not None)

    def __str__(self) -> str:
        """The epilogue's plan, a line each."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from self.regions
        for slot, value in self.flats:
            yield f"shared memory {slot}: = result {value}"
        for mutation in self.mutations:
            yield f"input {mutation.index}: {mutation}"
        for index, output in enumerate(self.outputs):
            yield f"output {index}: {output}"
