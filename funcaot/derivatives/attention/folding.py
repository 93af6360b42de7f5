"""Ops of attention under ``vmap``: the batch joins that of the attention; a rule for the table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.autograd.op_kernels import OpOverload, schema_of
from funcaot.errors import UnsupportedError

__all__ = ["folded"]

# What a kernel of GPUs says of a whole call: where its random numbers begin, where rows end.
_SHARED = frozenset({"philox_seed", "philox_offset", "cum_seq_q", "cum_seq_k"})
# What is added to the scores, by the name in an op's schema; the last is that of GPUs' kernels.
_BIASES = ("bias", "attn_mask", "attn_bias")
_ALIGNED = _BIASES[-1]


def folded(op: OpOverload) -> Callable[..., Any]:
    """How ``vmap`` calls an op whose tensors begin with batch and heads.

    What the op's schema calls a bias or a mask may lack dimensions or have a size of one. It
    becomes one per batch where it differs among the examples, and so do gradients for it.
    """
    names = [argument.name for argument in schema_of(op).arguments]
    biased = {name for name in names if name.endswith(("bias", "mask")) and "grad" not in name}
    results = schema_of(op).returns
    returned = [
        result.name.endswith("bias") or (not result.name and index == 3 == len(results) - 1)
        for index, result in enumerate(results)
    ]

    def run(size: int, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        dims = {**dict(zip(names, in_dims[0], strict=False)), **in_dims[1]}
        query = given["query"]
        batch = query.movedim(dims["query"], 0).shape[1] if _is(dims["query"]) else query.shape[0]
        called = next((name for name in _BIASES if given.get(name) is not None), None)
        shape = None if called is None else _example_shape(given[called], dims[called])
        whole = any(returned) or called == _ALIGNED
        call = {
            name: _bias(value, dims[name], size, batch, whole=whole)
            if name in biased
            else _operand(name, value, dims[name], size)
            for name, value in given.items()
        }
        if called == _ALIGNED:
            call[called] = _aligned(call[called])
        positional = [call[name] for name in names[: len(args)]]
        outputs = op(*positional, **{name: call[name] for name in kwargs})
        outputs = outputs if isinstance(outputs, tuple | list) else (outputs,)
        pairs = [
            _apart(output, size, batch, shape if of_bias else None)
            for output, of_bias in zip(outputs, returned, strict=True)
        ]
        return tuple(value for value, _ in pairs), tuple(dim for _, dim in pairs)

    return run


def _operand(name: str, value: Any, dim: int | None, size: int) -> Any:
    """What all examples share, or a tensor whose first dimension is that of all together."""
    if name not in _SHARED:
        return _joined(value, dim, size)
    if dim is not None:
        raise UnsupportedError(
            "A fused kernel of attention drops other weights for each example of a vmap, so its "
            "gradient can't be batched.",
            remedy="choose the MATH kernel for this call, with torch.nn.attention.sdpa_kernel.",
        )
    return value


def _aligned(bias: Tensor) -> Tensor:
    """The same numbers in rows that begin where kernels of GPUs can load eight at once."""
    columns = bias.shape[-1]
    return torch.nn.functional.pad(bias, (0, -columns % 8))[..., :columns]


def _is(dim: int | None) -> bool:
    return dim is not None


def _example_shape(tensor: Tensor, dim: int | None) -> tuple[int, ...]:
    shape = list(tensor.shape)
    if dim is not None:
        del shape[dim]
    return tuple(shape)


def _in_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    if dim is not None:
        return tensor.movedim(dim, 0)
    return tensor.unsqueeze(0).expand(size, *tensor.shape)


def _joined(value: Any, dim: int | None, size: int) -> Any:
    """A tensor whose first dimension is that of all examples together."""
    if not isinstance(value, Tensor) or value.dim() == 0:
        return value
    return _in_front(value, dim, size).flatten(0, 1)


def _bias(value: Any, dim: int | None, size: int, batch: int, *, whole: bool) -> Any:
    """A bias for all examples together."""
    if not isinstance(value, Tensor):
        return value
    rank = value.dim() - (dim is not None)
    if dim is None and not whole and (rank < 4 or value.shape[0] == 1):
        return value
    found = _in_front(value, dim, size)
    found = found[(slice(None), *[None] * (4 - rank))]
    return found.expand(size, batch, *found.shape[2:]).flatten(0, 1)


def _apart(
    output: Any, size: int, batch: int, of_bias: tuple[int, ...] | None
) -> tuple[Any, int | None]:
    """A result for each example."""
    if not isinstance(output, Tensor) or output.dim() < 3:
        return output, None  # nothing, for what wasn't asked for
    output = output.unflatten(0, (size, batch))
    if of_bias is None:
        return output, 0
    if len(of_bias) < 4 or of_bias[0] == 1:
        output = output.sum(1, keepdim=True)
    return output.reshape(size, *of_bias), 0
