"""Ready-made sample inputs: shapes, layouts, broadcasting, which arguments require grad."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from funcaot.testing.records import Sample, SampleSource

# The pytest plugin sets the variable from --funcaot-seed before this is imported.
SEED = int(os.environ.get("FUNCAOT_TEST_SEED", "20240"))


class TensorMaker:
    """Makes reproducible tensors of one device and dtype.

    Args:
        device: The device of every tensor.
        dtype: The dtype of every tensor, unless one is given.
        seed: Equal seeds give equal tensors.

    Example:
        >>> import torch
        >>> from funcaot.testing.samples import TensorMaker
        >>> TensorMaker("cpu", torch.float64)(2, 3).shape
        torch.Size([2, 3])
    """

    def __init__(self, device: str, dtype: torch.dtype, seed: int = SEED) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator().manual_seed(seed)

    def __call__(
        self, *shape: int, low: float = -2.0, high: float = 2.0, requires_grad: bool = True
    ) -> Tensor:
        """A tensor with entries between low and high."""
        values = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        values = low + (high - low) * values
        if self.dtype.is_complex:
            phase = torch.rand(shape, generator=self.generator, dtype=torch.float64)
            values = torch.complex(values, 2 * phase - 1)
        made = values.to(device=self.device, dtype=self.dtype)
        return made.requires_grad_(requires_grad)

    def integers(self, *shape: int, below: int) -> Tensor:
        """An int64 tensor with entries in ``range(below)``."""
        drawn = torch.randint(below, shape, generator=self.generator)
        return drawn.to(self.device)

    def transposed(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Tensor:
        """A non-contiguous tensor: the last dimension has the largest stride."""
        made = self(*reversed(shape), low=low, high=high, requires_grad=False)
        return made.permute(*reversed(range(len(shape)))).requires_grad_()

    def strided(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Tensor:
        """Every second element of a tensor that is twice as long, at an offset of one."""
        made = self(*shape[:-1], 2 * shape[-1] + 1, low=low, high=high, requires_grad=False)
        return made[..., 1::2].requires_grad_()

    def expanded(self, *shape: int, low: float = -2.0, high: float = 2.0) -> Tensor:
        """A tensor whose first dimension has stride zero."""
        made = self(1, *shape[1:], low=low, high=high, requires_grad=False)
        return made.expand(shape).requires_grad_()


def from_maker(build: Callable[[TensorMaker], Iterable[Sample]]) -> SampleSource:
    """A sample source from a function of a ``TensorMaker``."""

    def source(device: str, dtype: torch.dtype) -> Iterable[Sample]:
        return build(TensorMaker(device, dtype))

    return source


def unary(low: float = -2.0, high: float = 2.0, *extra: object) -> SampleSource:
    """One tensor of every layout; ``extra`` follows it as non-tensor arguments."""

    def build(make: TensorMaker) -> Iterator[Sample]:
        shapes = (
            ("matrix", make(2, 3, low=low, high=high)),
            ("scalar", make(low=low, high=high)),
            ("transposed", make.transposed(3, 2, low=low, high=high)),
            ("strided", make.strided(2, 3, low=low, high=high)),
            ("expanded", make.expanded(2, 3, low=low, high=high)),
            ("empty", make(0, 3, low=low, high=high)),
        )
        for name, tensor in shapes:
            yield Sample(tensor, extra, name=name)

    return from_maker(build)


def rowwise(
    low: float = -2.0, high: float = 2.0, *extra: object, empty: bool = True
) -> SampleSource:
    """One tensor of at least one dimension, for Functions that reduce over one of them."""

    def build(make: TensorMaker) -> Iterator[Sample]:
        shapes = (
            ("matrix", make(2, 3, low=low, high=high)),
            ("vector", make(4, low=low, high=high)),
            ("transposed", make.transposed(2, 3, low=low, high=high)),
            ("cube", make(2, 1, 3, low=low, high=high)),
            ("empty", make(0, 3, low=low, high=high)),
        )
        for name, tensor in shapes if empty else shapes[:-1]:
            yield Sample(tensor, extra, name=name)

    return from_maker(build)


def binary(low: float = -2.0, high: float = 2.0) -> SampleSource:
    """Two tensors of one shape, with every pattern of which requires grad."""

    def build(make: TensorMaker) -> Iterator[Sample]:
        def pair(name: str, first: Tensor, second: Tensor) -> Sample:
            return Sample(first, (second,), name=name)

        yield pair("both", make(2, 3, low=low, high=high), make(2, 3, low=low, high=high))
        yield pair(
            "first", make(3, low=low, high=high), make(3, low=low, high=high, requires_grad=False)
        )
        yield pair(
            "second", make(3, low=low, high=high, requires_grad=False), make(3, low=low, high=high)
        )
        yield pair(
            "layouts",
            make.transposed(2, 3, low=low, high=high),
            make.strided(2, 3, low=low, high=high),
        )
        yield pair("scalars", make(low=low, high=high), make(low=low, high=high))
        yield pair("empty", make(0, low=low, high=high), make(0, low=low, high=high))

    return from_maker(build)


def broadcasting(low: float = -2.0, high: float = 2.0) -> SampleSource:
    """Two tensors whose shapes broadcast, also by inserted dimensions."""

    def build(make: TensorMaker) -> Iterator[Sample]:
        shapes = {
            "outer": ((3, 1), (2,)),
            "same": ((2, 3), (2, 3)),
            "scalar": ((2, 2), ()),
            "empty": ((0, 1), (2,)),
        }
        for name, (first, second) in shapes.items():
            tensors = make(*first, low=low, high=high), make(*second, low=low, high=high)
            yield Sample(tensors[0], tensors[1:], name=name)

    return from_maker(build)
