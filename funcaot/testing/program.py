"""A program under test with its oracle: what every transform maps to another such pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.tensors.pytree import tree_flatten, tree_unflatten
from funcaot.testing.derivatives import Derivatives
from funcaot.testing.records import FunctionInfo, Sample

TensorFunction = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True)
class Program:
    """Two functions of the same tensors that should agree.

    Attributes:
        run: What is tested, under the transforms so far.
        expected: The oracle; never uses funcaot's rules.
        primals: The tensors to call both with; none requires grad.
        argnums: Which primals are differentiated.
        derivatives: How the oracle differentiates.
        example: The oracle's outputs on the primals: their shapes are needed to make cotangents.

    Example:
        >>> import torch
        >>> from funcaot.testing import Sample, opinfo
        >>> from funcaot.testing.derivatives import FiniteDifferences
        >>> from funcaot.testing.program import program_of
        >>> x = torch.ones(2, dtype=torch.float64, requires_grad=True)
        >>> program = program_of(opinfo(torch.sin, [x]), Sample(x), FiniteDifferences())
        >>> program.argnums, torch.equal(program.run(*program.primals)[0], x.sin())
        ((0,), True)
    """

    run: TensorFunction
    expected: TensorFunction
    primals: tuple[Tensor, ...]
    argnums: tuple[int, ...]
    derivatives: Derivatives
    example: tuple[Tensor, ...]

    def then(
        self,
        run: TensorFunction,
        expected: TensorFunction,
        primals: tuple[Tensor, ...] | None = None,
    ) -> Program:
        """The transformed pair, on the same primals or on others.

        Extra primals (cotangents, tangents) come last and are not differentiated.
        """
        primals = self.primals if primals is None else primals
        example = detached(expected(*primals))
        return Program(run, expected, primals, self.argnums, self.derivatives, example)


def program_of(info: FunctionInfo, sample: Sample, derivatives: Derivatives) -> Program:
    """The untransformed program of a sample.

    Args:
        info: The Function and its reference.
        sample: One call; its non-tensor arguments are closed over.
        derivatives: How the oracle differentiates.

    Returns:
        A program of the sample's tensors that returns a tuple of tensors.
    """
    leaves, structure = tree_flatten((sample.values, sample.kwargs))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
    tensors = [leaves[index] for index in places]
    argnums = tuple(index for index, tensor in enumerate(tensors) if tensor.requires_grad)

    def call(operation: Callable[..., Any], *primals: Tensor) -> tuple[Tensor, ...]:
        filled = list(leaves)
        for place, primal in zip(places, primals, strict=True):
            filled[place] = primal
        args, kwargs = tree_unflatten(filled, structure)
        return tensor_leaves(operation(*args, **kwargs))

    reference = info.ref if info.ref is not None else info.op

    def run(*primals: Tensor) -> tuple[Tensor, ...]:
        return call(info.op, *primals)

    def expected(*primals: Tensor) -> tuple[Tensor, ...]:
        return call(reference, *primals)

    primals = tuple(tensor.detach() for tensor in tensors)
    example = detached(expected(*primals))
    return Program(run, expected, primals, argnums, derivatives, example)


def tensor_leaves(result: Any) -> tuple[Tensor, ...]:
    """The tensors of a result, in order; numbers and None are left out."""
    return tuple(leaf for leaf in tree_flatten(result)[0] if isinstance(leaf, Tensor))


def detached(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The same values outside of every graph."""
    return tuple(tensor.detach() for tensor in tensors)


def is_differentiable(tensor: Tensor) -> bool:
    """Whether the dtype can carry a derivative."""
    return tensor.is_floating_point() or tensor.is_complex()


def weights_like(tensor: Tensor, phase: float = 0.0) -> Tensor:
    """Fixed, unequal weights of a tensor's shape, so that no error cancels in a sum.

    They are computed without random numbers: a transform may run this any number of times.
    """
    count = torch.arange(tensor.numel(), dtype=torch.float64, device=tensor.device)
    values = torch.cos(1.3 * count + 0.4 + phase).reshape(tensor.shape)
    if tensor.is_complex():
        values = torch.complex(values, torch.sin(0.7 * count + phase).reshape(tensor.shape))
    return values.to(tensor.dtype)


def weighted_sum(outputs: tuple[Tensor, ...]) -> Tensor:
    """A real scalar that every differentiable output contributes to."""
    terms = []
    for output in outputs:
        if is_differentiable(output):
            term = (output * weights_like(output)).sum()
            terms.append(term.real if term.is_complex() else term)
    return sum(terms[1:], terms[0])
