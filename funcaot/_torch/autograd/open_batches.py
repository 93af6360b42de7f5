"""Ops under ``vmap`` whose rules in torch take sizes as numbers; the tape uses it for open sizes.

A trace with open sizes would assume those of its call. Here the batch becomes a dimension of the op
as torch makes it one, with the sizes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from funcaot._torch.autograd.op_kernels import KernelLibrary, OpOverload, torch_kernel
from funcaot._torch.autograd.zero_tangents import with_open_zeros
from funcaot._torch.levels import functorch
from funcaot._torch.patches import applied
from funcaot.base.scopes import SharedPatch

__all__ = ["with_open_transforms"]

_KEY = "FuncTorchBatched"
# Of tensors without their batch, each with the dimension of that: the result, batched along 0.
Rule: TypeAlias = Callable[..., Any]
Given: TypeAlias = tuple[Any, int | None]


class _NotTreatedError(Exception):
    """The rule is torch's."""


def _first(given: Given, size: int) -> Tensor:
    """A tensor with its batch in front; one without is the same for all."""
    tensor, batch = given
    return tensor.expand(size, *tensor.shape) if batch is None else tensor.movedim(batch, 0)


def _rank(given: Given) -> int:
    tensor, batch = given
    return tensor.dim() - (batch is not None)


def _along(given: Given, dim: int) -> int:
    """A dimension counted with a batch in front of it."""
    rank = _rank(given)
    if rank == 0:
        raise _NotTreatedError
    return dim % rank + 1


def _slice_backward(size: int, gradient: Given, shape: Given, dim: Given, *rest: Given) -> Tensor:
    along = _along((gradient[0], gradient[1]), dim[0])
    places = [value for value, _ in rest]
    return torch.ops.aten.slice_backward(_first(gradient, size), [size, *shape[0]], along, *places)


def _select_backward(size: int, gradient: Given, shape: Given, dim: Given, index: Given) -> Tensor:
    along = dim[0] % len(shape[0]) + 1
    return torch.ops.aten.select_backward(
        _first(gradient, size), [size, *shape[0]], along, index[0]
    )


def _along_shape(shape: Given, dim: int) -> int:
    """A dimension of a shape without its batch, where that comes first."""
    if not shape[0]:
        raise _NotTreatedError
    return dim % len(shape[0]) + 1


def _diagonal_backward(
    size: int, gradient: Given, shape: Given, offset: Given, *dims: Given
) -> Tensor:
    along = [_along_shape(shape, dim) for dim, _ in dims]
    return torch.ops.aten.diagonal_backward(
        _first(gradient, size), [size, *shape[0]], offset[0], *along
    )


def _diag_embed(
    size: int,
    tensor: Given,
    offset: Given = (0, None),
    dim1: Given = (-2, None),
    dim2: Given = (-1, None),
) -> Tensor:
    rank = _rank(tensor) + 1
    along = [dim % rank + 1 for dim in (dim1[0], dim2[0])]
    return torch.ops.aten.diag_embed(_first(tensor, size), offset[0], *along)


def _index_select(size: int, tensor: Given, dim: Given, index: Given) -> Tensor:
    _require_one(index)
    return _first(tensor, size).index_select(_along(tensor, dim[0]), index[0])


def _index_add(
    size: int, tensor: Given, dim: Given, index: Given, source: Given, alpha: Given = (1, None)
) -> Tensor:
    _require_one(index)
    along = _along(tensor, dim[0])
    return _first(tensor, size).index_add(along, index[0], _first(source, size), alpha=alpha[0])


def _gather(
    size: int, tensor: Given, dim: Given, index: Given, sparse_grad: Given = (False, None)
) -> Tensor:
    return torch.gather(
        _first(tensor, size),
        _along(tensor, dim[0]),
        _first(index, size),
        sparse_grad=sparse_grad[0],
    )


def _index_copy(size: int, tensor: Given, dim: Given, index: Given, source: Given) -> Tensor:
    _require_one(index)
    along = _along(tensor, dim[0])
    return _first(tensor, size).index_copy(along, index[0], _first(source, size))


def _scattering(op: OpOverload) -> Rule:
    """``op(tensor, dim, index, source)``, where the source may be a number."""

    def rule(size: int, tensor: Given, dim: Given, index: Given, source: Given) -> Tensor:
        if _rank(index) != _rank(tensor):
            raise _NotTreatedError
        target = tensor[0].movedim(tensor[1], 0) if op._schema.is_mutable else _first(tensor, size)
        given = _first(source, size) if isinstance(source[0], Tensor) else source[0]
        return op(target, _along(tensor, dim[0]), _first(index, size), given)

    return rule


def _unfold_backward(
    size: int, gradient: Given, shape: Given, dim: Given, length: Given, step: Given
) -> Tensor:
    along = _along_shape(shape, dim[0])
    return torch.ops.aten.unfold_backward(
        _first(gradient, size), [size, *shape[0]], along, length[0], step[0]
    )


def _value_selecting_reduction_backward(
    size: int, gradient: Given, dim: Given, index: Given, shape: Given, keepdim: Given
) -> Tensor:
    along = _along_shape(shape, dim[0])
    return torch.ops.aten.value_selecting_reduction_backward(
        _first(gradient, size), along, _first(index, size), [size, *shape[0]], keepdim[0]
    )


def _cummaxmin_backward(
    size: int, gradient: Given, tensor: Given, index: Given, dim: Given
) -> Tensor:
    along = _along(tensor, dim[0])
    firsts = [_first(each, size) for each in (gradient, tensor, index)]
    return torch.ops.aten.cummaxmin_backward(*firsts, along)


def _convolution(size: int, tensor: Given, weight: Given, bias: Given, *rest: Given) -> Tensor:
    """Images of all examples are one batch of images; where each has weights, a group each."""
    if weight[1] is not None:
        return _grouped_convolution(size, tensor, weight, bias, *rest)
    _require_one(bias)
    folded = _folded(tensor, size)
    found = torch.ops.aten.convolution(folded, weight[0], bias[0], *(value for value, _ in rest))
    return found.unflatten(0, (size, -1))


def _grouped_convolution(
    size: int, tensor: Given, weight: Given, bias: Given, *rest: Given
) -> Tensor:
    *options, groups = (value for value, _ in rest)
    images = _first(tensor, size).movedim(0, 1)
    folded = images.reshape(images.shape[0], size * images.shape[2], *images.shape[3:])
    shifts = None if bias[0] is None else _folded(bias, size)
    found = torch.ops.aten.convolution(
        folded, _folded(weight, size), shifts, *options, size * groups
    )
    return found.unflatten(1, (size, -1)).movedim(1, 0)


def _layer_norm(size: int, tensor: Given, shape: Given, *rest: Given) -> tuple[Tensor, ...]:
    _require_one(*rest)
    return torch.ops.aten.native_layer_norm(
        _first(tensor, size), shape[0], *(value for value, _ in rest)
    )


def _layer_norm_backward(
    size: int, gradient: Given, tensor: Given, shape: Given, mean: Given, scale: Given, *rest: Given
) -> tuple[Tensor | None, ...]:
    """The gradient by what is normalized."""
    _require_one(*rest)
    if list(rest[-1][0]) != [True, False, False]:
        raise _NotTreatedError
    gradient_, tensor_, mean_, scale_ = (
        _first(each, size) for each in (gradient, tensor, mean, scale)
    )
    found = torch.ops.aten.native_layer_norm_backward(
        gradient_, tensor_, shape[0], mean_, scale_, *(value for value, _ in rest)
    )
    return found[0], None, None


def _cat(size: int, tensors: Given, dim: Given = (0, None)) -> Tensor:
    given: list[Given] = tensors[0]
    return torch.cat([_first(each, size) for each in given], _along(given[0], dim[0]))


def _of_images(op: OpOverload, rank: int = 4) -> Rule:
    """An op on images, or signals, each by itself: those of all examples are one batch."""

    def rule(size: int, *given: Given) -> Any:
        images = [isinstance(value, Tensor) for value, _ in given]
        if any(_rank(each) != rank for each in given if isinstance(each[0], Tensor)):
            raise _NotTreatedError
        found = op(
            *(
                _folded(each, size) if is_image else each[0]
                for each, is_image in zip(given, images, strict=True)
            )
        )
        if isinstance(found, Tensor):
            return found.unflatten(0, (size, -1))
        return tuple(each.unflatten(0, (size, -1)) for each in found)

    return rule


def _elementwise(op: OpOverload) -> Rule:
    """An op on tensors of one shape."""

    def rule(size: int, *given: Given, **named: Given) -> Tensor:
        tensors = [each for each in given if isinstance(each[0], Tensor)]
        if len({_rank(each) for each in tensors}) > 1:
            raise _NotTreatedError
        operands = [
            _first(each, size) if isinstance(each[0], Tensor) else each[0] for each in given
        ]
        return op(*operands, **{name: value for name, (value, _) in named.items()})

    return rule


def _convolution_backward(
    size: int, gradient: Given, tensor: Given, weight: Given, *rest: Given
) -> tuple[Tensor | None, ...]:
    """The gradient by the images, likewise."""
    *options, (mask, _) = rest
    _require_one(weight)
    if list(mask) != [True, False, False]:
        raise _NotTreatedError
    folded = _folded(gradient, size), _folded(tensor, size)
    found = torch.ops.aten.convolution_backward(
        *folded, weight[0], *(value for value, _ in options), mask
    )
    return found[0].unflatten(0, (size, -1)), None, None


def _require_one(*given: Given) -> None:
    if any(batch is not None for _, batch in given):
        raise _NotTreatedError


def _folded(given: Given, size: int) -> Tensor:
    tensor = _first(given, size)
    return tensor.reshape(size * tensor.shape[1], *tensor.shape[2:])


_aten = torch.ops.aten
_ON_IMAGES = (
    _aten._adaptive_avg_pool2d.default,
    _aten._adaptive_avg_pool2d_backward.default,
    _aten.avg_pool2d.default,
    _aten.avg_pool2d_backward.default,
    _aten.max_pool2d_with_indices.default,
    _aten.max_pool2d_with_indices_backward.default,
    _aten.reflection_pad2d.default,
    _aten.reflection_pad2d_backward.default,
    _aten.replication_pad2d.default,
    _aten.replication_pad2d_backward.default,
    _aten.upsample_bilinear2d.default,
    _aten.upsample_nearest2d.default,
)
_ON_SIGNALS = (
    _aten.reflection_pad1d.default,
    _aten.reflection_pad1d_backward.default,
    _aten.replication_pad1d.default,
    _aten.replication_pad1d_backward.default,
)
_SCATTERING = (
    _aten.scatter.src,
    _aten.scatter.value,
    _aten.scatter_.src,
    _aten.scatter_.value,
    _aten.scatter_add.default,
    _aten.scatter_add_.default,
)
_RULES: dict[OpOverload, Rule] = {
    _aten.cat.default: _cat,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.gather.default: _gather,
    _aten.cummaxmin_backward.default: _cummaxmin_backward,
    _aten.diag_embed.default: _diag_embed,
    _aten.diagonal_backward.default: _diagonal_backward,
    _aten.gelu_backward.default: _elementwise(_aten.gelu_backward.default),
    _aten.index_add.default: _index_add,
    _aten.index_copy.default: _index_copy,
    _aten.index_select.default: _index_select,
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_layer_norm_backward.default: _layer_norm_backward,
    _aten.select_backward.default: _select_backward,
    _aten.slice_backward.default: _slice_backward,
    _aten.value_selecting_reduction_backward.default: _value_selecting_reduction_backward,
    _aten.unfold_backward.default: _unfold_backward,
    **{op: _of_images(op) for op in _ON_IMAGES},
    **{op: _of_images(op, rank=3) for op in _ON_SIGNALS},
    **{op: _scattering(op) for op in _SCATTERING},
}


def _has_open_sizes(values: Any) -> bool:
    return any(any(type(size) is not int for size in value.shape) for value in _tensors(values))


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _kernel(rule: Rule, original: Callable[..., Any], *, is_write: bool) -> Callable[..., Any]:
    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        if not _has_open_sizes((*args, *kwargs.values())):
            return original(keyset, *args, **kwargs)
        interpreter: Any = functorch.coerce_cinterpreter(functorch.peek_interpreter_stack())
        level, size = interpreter.level(), interpreter.batch_size()

        def inner(value: Any) -> Given:
            if isinstance(value, Tensor):
                return functorch.unwrap_batch_dimension(value, level)
            if isinstance(value, list) and any(isinstance(each, Tensor) for each in value):
                return list(map(inner, value)), None
            return value, None

        given = list(map(inner, args))
        named = {name: inner(value) for name, value in kwargs.items()}
        if is_write and given[0][1] is None:  # Torch says that it can't be written to.
            return original(keyset, *args, **kwargs)
        try:
            with functorch.below_this_vmap():
                found = rule(size, *given, **named)
        except _NotTreatedError:
            return original(keyset, *args, **kwargs)
        if is_write:  # The caller returns what was written to.
            return args[0]
        if isinstance(found, Tensor):
            return functorch.add_batch_dimension(found, 0, level)
        return tuple(
            each if each is None else functorch.add_batch_dimension(each, 0, level)
            for each in found
        )

    return kernel


_library = KernelLibrary()


def _install() -> None:
    if _library.is_installed:
        return
    kernels = {}
    for op, rule in _RULES.items():
        original = torch_kernel(op, _KEY)
        if original is not None:
            is_write = op._schema.is_mutable
            kernels[op] = {_KEY: _kernel(rule, original, is_write=is_write)}
    _library.install(kernels)


_patch = SharedPatch(_install, _library.remove)


def with_open_batches() -> AbstractContextManager[None]:
    """Ops under ``vmap`` leave sizes open inside, if the patch isn't switched off."""
    return applied("open batches", _patch.used, None)


@contextmanager
def with_open_transforms() -> Iterator[None]:
    """Batches and tangents leave sizes open inside."""
    with with_open_zeros(), with_open_batches():
        yield
