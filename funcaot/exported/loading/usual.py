"""The short way of most calls of an artifact: ``Loaded`` tries it before it looks at everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot._torch.tensors import artifacts
from funcaot.exported import trees
from funcaot.exported.signature import ArtifactSignature, TensorSignature

# The short way found that a call isn't such a one.
UNUSUAL: Any = object()

UsualCall = Callable[[tuple[Any, ...]], Any]


def usual_call(
    signature: ArtifactSignature, run: Callable[[list[torch.Tensor], set[int]], Sequence[Any]]
) -> UsualCall | None:
    """A call by position with ordinary tensors that need no copy.

    Args:
        signature: What the artifact says of itself.
        run: Its compiled graph, on a list of tensors and the places of their memory.

    Returns:
        A function of the positional arguments that returns the result, or ``UNUSUAL`` where the
        call needs another look; nothing has run then. None for artifacts that have no such calls.
    """
    arguments, keywords = signature.arguments["items"]
    in_order = tuple(("argument", i) for i in range(len(signature.tensors)))
    if (
        keywords["items"]
        or signature.parameters
        or signature.same
        or signature.derived
        or signature.parts
        or [item["kind"] for item in arguments["items"]] != ["tensor"] * len(in_order)
        or signature.inputs != in_order
        or not all(_is_usual(tensor) for tensor in signature.tensors)
        or any(made.steps or made.start[0] not in ("output", "argument") for made in signature.made)
    ):
        return None
    is_undisturbed, is_ordinary = artifacts.is_undisturbed, artifacts.ordinary("cpu")
    count, fit = len(in_order), _sizes(signature)
    dtypes = [getattr(torch, tensor.dtype) for tensor in signature.tensors]
    # Where results are among the outputs of the graph and, after these, the arguments.
    taken = [i if kind == "output" else i - count for kind, i in (m.start for m in signature.made)]
    build = trees.builder(signature.results)

    def call(given: tuple[Any, ...]) -> Any:
        if len(given) != count or not is_undisturbed():
            return UNUSUAL
        memories = set[int]()
        for tensor, dtype in zip(given, dtypes, strict=True):
            if (
                not is_ordinary(tensor)
                or tensor.dtype is not dtype
                or tensor.requires_grad
                or not tensor.is_contiguous()
            ):
                return UNUSUAL
            memories.add(tensor.untyped_storage().data_ptr())
        sizes = fit(given)
        if sizes is None or 0 in memories:
            return UNUSUAL
        found = [*run([*given], memories), *given]
        return build([found[i] for i in taken], sizes)

    return call


def _is_usual(tensor: TensorSignature) -> bool:
    return tensor.device == "cpu" and tensor.order == tuple(range(len(tensor.order)))


def _sizes(signature: ArtifactSignature) -> Callable[[Sequence[Any]], dict[str, int] | None]:
    """The sizes of open dims in a call; None where sizes don't fit."""
    shapes = [tensor.shape for tensor in signature.tensors]
    bounds = signature.dims

    def fit(given: Sequence[torch.Tensor]) -> dict[str, int] | None:
        sizes: dict[str, int] = {}
        for tensor, wanted in zip(given, shapes, strict=True):
            shape = tensor.shape
            if len(shape) != len(wanted):
                return None
            for size, name in zip(shape, wanted, strict=True):
                if size == name:
                    continue
                if isinstance(name, int) or sizes.setdefault(name, size) != size:
                    return None
        for name, size in sizes.items():
            low, high = bounds[name]
            if not low <= size <= high:
                return None
        return sizes

    return fit
