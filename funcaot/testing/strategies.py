"""Hypothesis strategies: tensors of every layout, and pytrees of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from funcaot.errors import FuncaotError

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

try:
    from hypothesis import strategies
except ImportError as error:
    raise FuncaotError(
        "funcaot.testing.strategies needs hypothesis.",
        remedy="pip install 'funcaot[test]'",
    ) from error

__all__ = ["call_arguments", "shapes", "tensors", "trees"]

LAYOUTS = ("contiguous", "transposed", "strided", "expanded", "offset")


def shapes(
    max_dims: int = 3, max_side: int = 3, min_side: int = 0
) -> SearchStrategy[tuple[int, ...]]:
    """Shapes, from a scalar up; sides of zero are among them.

    Args:
        max_dims: The largest number of dimensions.
        max_side: The largest size of one.
        min_side: The smallest; 1 leaves out empty tensors.

    Example:
        >>> from funcaot.testing.strategies import shapes
        >>> len(shapes(max_dims=2).example()) <= 2
        True
    """
    return strategies.lists(strategies.integers(min_side, max_side), max_size=max_dims).map(tuple)


@strategies.composite
def tensors(
    draw: Any,
    shape: tuple[int, ...] | SearchStrategy[tuple[int, ...]] | None = None,
    dtypes: Sequence[torch.dtype] = (torch.float64,),
    layouts: Sequence[str] = LAYOUTS,
    requires_grad: bool | None = None,
    bounds: tuple[float, float] = (-2.0, 2.0),
) -> Tensor:
    """Tensors of some shape, dtype and layout; simpler ones first when hypothesis shrinks.

    Args:
        draw: Given by hypothesis.
        shape: A shape or a strategy of shapes.
        dtypes: Among which to choose.
        layouts: Among contiguous, transposed, strided, expanded (stride zero) and offset.
        requires_grad: Whether; None draws it.
        bounds: Of the values.

    Returns:
        A tensor with the drawn strides.

    Example:
        >>> import torch
        >>> from funcaot.testing.strategies import tensors
        >>> tensors(shape=(2, 3), dtypes=[torch.float64]).example().shape
        torch.Size([2, 3])
    """
    wanted = shapes() if shape is None else shape
    size = wanted if isinstance(wanted, tuple) else draw(wanted)
    dtype = draw(strategies.sampled_from(list(dtypes)))
    layout = draw(strategies.sampled_from(list(layouts)))
    seed = draw(strategies.integers(0, 2**16))
    made = in_layout(uniform(size, dtype, seed, bounds), layout)
    differentiable = dtype.is_floating_point or dtype.is_complex
    grad = draw(strategies.booleans()) if requires_grad is None else requires_grad
    return made.requires_grad_(bool(grad and differentiable))


def uniform(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int, bounds: tuple[float, float]
) -> Tensor:
    """Values between the bounds; a seed instead of drawn elements keeps examples small."""
    generator = torch.Generator().manual_seed(seed)
    low, high = bounds
    values = low + (high - low) * torch.rand(shape, generator=generator, dtype=torch.float64)
    return values.to(dtype)


def in_layout(values: Tensor, layout: str) -> Tensor:
    """The values in other strides."""
    if values.dim() == 0 or layout == "contiguous":
        return values
    if layout == "transposed":
        order = tuple(reversed(range(values.dim())))
        return values.permute(order).contiguous().permute(order)
    if layout == "strided":
        return torch.stack([values, values], -1)[..., 0]
    if layout == "expanded":
        return values[:1].expand(values.shape) if values.shape[0] else values
    padded = torch.cat([values.new_zeros(3), values.reshape(-1)])
    return padded[3:].reshape(values.shape)


def trees(leaves: SearchStrategy[Any] | None = None, max_leaves: int = 5) -> SearchStrategy[Any]:
    """Nested tuples, lists and dictionaries of tensors and Python numbers.

    Args:
        leaves: What is at the leaves; by default tensors and small integers.
        max_leaves: About how many.

    Example:
        >>> from funcaot.testing.strategies import trees
        >>> tree = trees(max_leaves=3).example()
    """
    base = leaves if leaves is not None else strategies.one_of(tensors(), strategies.integers(0, 3))
    return strategies.recursive(
        base,
        lambda children: strategies.one_of(
            strategies.lists(children, max_size=3),
            strategies.tuples(children, children),
            strategies.dictionaries(strategies.sampled_from("abc"), children, max_size=3),
        ),
        max_leaves=max_leaves,
    )


@strategies.composite
def call_arguments(draw: Any, count: int = 2, max_dims: int = 2) -> tuple[Tensor, ...]:
    """Tensors whose shapes broadcast together, at least one of which requires grad.

    Args:
        draw: Given by hypothesis.
        count: How many.
        max_dims: Of the broadcast shape.

    Example:
        >>> import torch
        >>> from funcaot.testing.strategies import call_arguments
        >>> x, y = call_arguments().example()
        >>> x.requires_grad, (x + y).shape == x.shape
        (True, True)
    """
    full = draw(shapes(max_dims=max_dims, min_side=1))
    made = []
    for position in range(count):
        kept = draw(strategies.integers(0, len(full))) if position else len(full)
        shape = tuple(
            1 if draw(strategies.booleans()) and position else side
            for side in full[len(full) - kept :]
        )
        grad = True if position == 0 else None
        made.append(draw(tensors(shape=shape, requires_grad=grad)))
    return tuple(made)
