"""Strides of results, for the ops whose symbolic version gives others than eager does.

Of a transposed tensor, ``copysign`` and ``roll`` are transposed in eager and contiguous on fake
tensors, and everything that follows would be computed for that. The strides are asked of eager
itself, on tensors of ones or zeros, where an argument isn't contiguous; the result is laid out like
them. So they are for every op on tensors with a dimension of size 1 that aren't laid out as new
ones, for elementwise ops on expanded tensors that are cast, and on tensors without elements.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._prims_common import make_contiguous_strides_for
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only

from funcaot._torch.tensors.seeding import drawing_nothing
from funcaot._torch.tracing.functional_values import outside_only

__all__ = [
    "dims_of_like",
    "laid_out_as_in_eager",
    "lies_as_in_eager",
    "of_nothing",
    "present_number",
]

aten = torch.ops.aten

# Found by tests/opinfo/strides.py, which compares symbolic and real results in many layouts.
_OPS = {
    # Elementwise, of tensors that lie in different orders.
    aten.addr.default,
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_backward.default,
    aten.copysign.Tensor,
    aten.div.Tensor_mode,
    aten.elu_backward.default,
    aten.floor_divide.default,
    aten.glu_backward.default,
    aten.hardsigmoid_backward.default,
    aten.hardswish_backward.default,
    aten.hardtanh_backward.default,
    aten.heaviside.default,
    aten.huber_loss_backward.default,
    aten.isin.Tensor_Tensor,
    aten.ldexp.Tensor,
    aten.leaky_relu_backward.default,
    aten.log_sigmoid_backward.default,
    aten.log_sigmoid_forward.default,
    aten.logaddexp.default,
    aten.logaddexp2.default,
    aten.logical_and.default,
    aten.logical_or.default,
    aten.logical_xor.default,
    aten.logit_backward.default,
    aten.mse_loss_backward.default,
    aten.native_dropout_backward.default,
    aten.pow.Scalar,
    aten._prelu_kernel_backward.default,
    aten.rrelu_with_noise_backward.default,
    aten.smooth_l1_loss_backward.default,
    aten.soft_margin_loss_backward.default,
    aten.softplus_backward.default,
    aten.special_xlog1py.default,
    aten.threshold_backward.default,
    aten.xlogy.Tensor,
    # The others, of tensors that aren't contiguous.
    aten._batch_norm_with_update.default,
    aten.batch_norm_backward.default,
    aten.channel_shuffle.default,
    aten._fft_c2c.default,
    aten._fft_r2c.default,
    aten._log_softmax_backward_data.default,
    aten.max_unpool2d.default,
    aten.native_batch_norm.default,
    aten._native_batch_norm_legit.default,
    aten.native_batch_norm_backward.default,
    aten.native_channel_shuffle.default,
    aten.native_group_norm_backward.default,
    aten.native_layer_norm_backward.default,
    aten.nll_loss2d_forward.default,
    aten.normal.Tensor_Tensor,
    aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d.default,
    aten.reflection_pad3d_backward.default,
    aten.replication_pad2d_backward.default,
    aten.replication_pad3d.default,
    aten.replication_pad3d_backward.default,
    aten.roll.default,
}
# What the symbolic versions of elementwise ops compute in another dtype.
_NARROW = frozenset({torch.float16, torch.bfloat16})
# With more elements, what eager would do isn't worth its time.
_LARGE = 1 << 20

_PLAIN = (
    *(bool, int, float, complex, str),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format),
)

# They lie as their operands do; as with views, it would be for nothing to write numbers first.
_OF_ANY_NUMBERS = frozenset(
    {aten.add.Tensor, aten.div.Tensor, aten.mul.Tensor, aten.sub.Tensor},
)

# What eager answered, without memory; see ``_by_eager``.
_MOST_ANSWERS = 1 << 12
_answers: dict[Any, Any] = {}


def laid_out_as_in_eager(
    mode: FunctionalTensorMode,
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    result: Any,
) -> Any:
    """An op's result, whose tensors have eager's layout.

    Args:
        mode: The functionalization that ran the op, which isn't active.
        func: The op.
        args: Its arguments, functional tensors among them.
        kwargs: Its keywords.
        result: What it returned.
    """
    asked, hollow = _is_asked(func, args, kwargs, result)
    if not asked:
        return result
    shows = any(returned.alias_info is not None for returned in func._schema.returns)
    like_eager = _by_eager(func, args, kwargs, hollow=hollow)
    if like_eager is None:
        _refuse_nothing(func, args, kwargs)
        return result

    def laid_out(value: Any, like: Any) -> Any:
        if not (isinstance(value, torch.Tensor) and isinstance(like, torch.Tensor)):
            return value
        if shows:
            return _seen_from_outside(value, like)
        if 0 in like.shape:
            if tuple(map(present_number, value.shape)) != like.shape:
                return _empty(mode, like)
            return _restrided(mode, value, like.stride())
        order, strides = _order(like)
        if order is None or tuple(map(present_number, value.stride())) == strides:
            return value
        torch._sync(value)
        inner = torch._from_functional_tensor(value.elem)  # type: ignore[attr-defined]
        dense = aten.clone.default(
            aten.permute.default(inner, order), memory_format=torch.contiguous_format
        )
        back = [order.index(dim) for dim in range(len(order))]
        restored = aten.permute.default(dense, back)
        if tuple(map(present_number, restored.stride())) != strides:  # of a dimension of size 1
            exact = [
                own if size != 1 else stride
                for own, size, stride in zip(restored.stride(), like.shape, strides, strict=True)
            ]
            restored = aten.as_strided.default(restored, list(restored.shape), exact)
        with mode:
            return FunctionalTensor.to_functional(restored)

    return tree_map(laid_out, result, like_eager)


def lies_as_in_eager(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: torch.Tensor
) -> bool:
    """Whether ``laid_out_as_in_eager`` would leave an op's one result as it is."""
    asked, hollow = _is_asked(func, args, kwargs, result)
    if not asked:
        return True
    like = _by_eager(func, args, kwargs, hollow=hollow)
    return isinstance(like, torch.Tensor) and (
        (result.shape, result.stride()) == (like.shape, like.stride())
    )


def _is_asked(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any
) -> tuple[bool, bool]:
    """Whether eager is asked how a result lies, and whether for tensors without memory."""
    tensors = [value for value in tree_leaves((args, kwargs)) if _is_strided(value)]
    laid = func in _OPS and not all(value.is_contiguous() for value in tensors)
    made = [value for value in tree_leaves(result) if _is_strided(value)]
    odd = any(map(_has_odd_strides, (*tensors, *made)))
    cast = _casts_copies(func, (args, kwargs), result)
    asked = laid or cast or (odd and not func._schema.is_mutable and _is_torchs(func))
    return asked, cast and (not tensors or max(map(_elements, tensors)) > _LARGE)


def _refuse_nothing(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raise what eager raises where no argument has elements, whose values could be the reason."""
    tensors = [value for value in tree_leaves((args, kwargs)) if _is_strided(value)]
    if tensors and all(0 in value.shape for value in tensors):
        with _disable_current_modes(), torch.no_grad(), _drawing_nothing(func, args, kwargs):
            func(*tree_map(_zeros, list(args)), **tree_map(_zeros, dict(kwargs)))


def of_nothing(
    mode: FunctionalTensorMode, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """What eager returns where its arguments have no elements, and its results have none.

    Some symbolic versions fail there, of which eager returns something: they divide by the number
    of elements. The arguments are those of ``laid_out_as_in_eager``.

    Returns:
        Functional tensors, or ``NotImplemented`` if eager fails too or there are elements.
    """
    tensors = [value for value in tree_leaves((args, kwargs)) if _is_strided(value)]
    sizes = [size for value in tensors for size in value.shape]
    if 0 not in sizes or not all(type(size) is int for size in sizes):
        return NotImplemented
    if func._schema.is_mutable or not _is_torchs(func):
        return NotImplemented
    like_eager = _by_eager(func, args, kwargs)
    made = [value for value in tree_leaves(like_eager) if isinstance(value, torch.Tensor)]
    if not made or not all(_is_strided(value) and 0 in value.shape for value in made):
        return NotImplemented
    return tree_map_only(torch.Tensor, functools.partial(_empty, mode), like_eager)


def _empty(mode: FunctionalTensorMode, like: torch.Tensor) -> torch.Tensor:
    """A new tensor without elements."""
    with mode:
        return aten.empty_strided.default(  # type: ignore[no-any-return]
            like.shape, like.stride(), dtype=like.dtype, device=like.device
        )


def _restrided(mode: FunctionalTensorMode, value: Any, strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor without elements, with these strides."""
    if tuple(map(present_number, value.stride())) == strides:
        return value
    torch._sync(value)
    inner = torch._from_functional_tensor(value.elem)
    restored = aten.as_strided.default(inner, list(inner.shape), _at_any_size(value, strides))
    with mode:
        return FunctionalTensor.to_functional(restored)


def _order(like: torch.Tensor) -> tuple[list[int] | None, tuple[int, ...]]:
    """A dense tensor's dimensions as they lie in memory, None for another; and its strides."""
    stride = like.stride()
    order = _dims(like)
    step = 1
    for dim in reversed(order):
        if like.shape[dim] > 1 and stride[dim] != step:
            return None, stride
        step *= like.shape[dim]
    return (order if step else None), stride


def dims_of_like(tensor: torch.Tensor) -> list[int]:
    """Dimensions as they lie in a new tensor like this one, from the outermost to the innermost."""
    shape, stride = map(present_number, tensor.shape), map(present_number, tensor.stride())
    with _disable_current_modes():
        return _dims(torch.empty_like(torch.empty_strided([*shape], [*stride], device="meta")))


def _dims(tensor: torch.Tensor) -> list[int]:
    stride = tensor.stride()
    return sorted(range(tensor.dim()), key=lambda dim: (-stride[dim], dim))


def _is_strided(value: Any) -> bool:
    return _lies_in_memory(value) and value.device.type == "cpu"


def _is_torchs(func: Any) -> bool:
    return func.namespace in ("aten", "prims")


def _seen_from_outside(view: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A view whose outside has a like one's strides, if only those that say nothing differ.

    Symbolic views keep strides that eager's don't (``x.view_as(x)``); ops on the view are laid out
    by its outside, and each call makes its own view by the op itself.
    """
    found = tuple(map(present_number, view.stride()))
    shape = tuple(map(present_number, view.shape))
    if found == like.stride() or shape != like.shape or not isinstance(view, FunctionalTensor):
        return view
    dims = zip(shape, found, like.stride(), strict=True)
    if 0 in shape or all(own == wanted or size == 1 for size, own, wanted in dims):
        with outside_only():
            aten.as_strided_.default(view, view.shape, _at_any_size(view, like.stride()))
    return view


def _at_any_size(view: torch.Tensor, wanted: Sequence[int]) -> list[Any]:
    """Strides as a view's own sizes make them, which may be open; a number where none does."""
    own, shape = view.stride(), view.shape
    made = [*own, *(step * size for step, size in zip(own, shape, strict=True))]
    known = {present_number(stride): stride for stride in reversed(made)}
    return [
        kept if present_number(kept) == stride else known.get(stride, stride)
        for kept, stride in zip(own, wanted, strict=True)
    ]


def _drawing_nothing(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> contextlib.AbstractContextManager[None]:
    """Random numbers go on as before when an op that draws some was run."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return contextlib.nullcontext()
    return drawing_nothing((*args, *kwargs.values()))


def _has_odd_strides(value: torch.Tensor) -> bool:
    """Whether there are strides that say nothing: eager keeps them in some ops and not in others.

    They are those of a tensor without elements, and that of a dimension of size 1 among others that
    aren't laid out as in a new tensor.
    """
    shape = list(map(present_number, value.shape))
    if 0 in shape:
        return len(shape) > 1 or value.stride() != (1,)
    if 1 not in shape or math.prod(shape) > _LARGE:
        return False
    return tuple(map(present_number, value.stride())) != make_contiguous_strides_for(shape)


def _casts_copies(func: Any, given: Any, result: Any) -> bool:
    """Whether the symbolic version of an elementwise op casts operands that are expanded.

    It computes in another dtype then (in float32 for half, or where dtypes differ), and a copy of
    an expanded tensor is contiguous. Eager goes by how the operands themselves lie.
    """
    if torch.Tag.pointwise not in func.tags or func._schema.is_mutable:
        return False
    tensors = [value for value in tree_leaves(given) if _lies_in_memory(value)]
    made = [value for value in tree_leaves(result) if _lies_in_memory(value)]
    dtypes = {value.dtype for value in (*tensors, *made)}
    if len(dtypes) == 1 and dtypes.isdisjoint(_NARROW):
        return False
    return any(value.dim() > 1 and 0 in value.stride() for value in tensors)


def _lies_in_memory(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _elements(value: torch.Tensor) -> int:
    return math.prod(map(present_number, value.shape))


def _by_eager(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, hollow: bool = False
) -> Any:
    """What eager returns for ones, or for zeros where 1 is no index; None if it can't say.

    Of ``hollow`` tensors, which have no memory, the symbolic version says how the result lies. A
    model asks the same of each of its layers, and again for each graph: answers are kept.
    """
    key = _key_of(func, args, kwargs, hollow)
    if key is not None and key in _answers:
        return _answers[key]
    found = _asked_of_eager(func, args, kwargs, hollow)
    made = [value for value in tree_leaves(found) if isinstance(value, torch.Tensor)]
    if key is not None and all(_is_strided(value) and value.numel() for value in made):
        if len(_answers) >= _MOST_ANSWERS:
            _answers.clear()
        # What a mode sees is recorded, and a fake answer would keep all of its capture.
        with _disable_current_modes():
            _answers[key] = found = tree_map_only(torch.Tensor, _without_memory, found)
    return found


def _key_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], hollow: bool) -> Any:
    """What an op is asked; None if that can't be told by looking."""
    leaves, structure = tree_flatten((list(args), dict(kwargs)))
    seen: list[Any] = []
    for value in leaves:
        if isinstance(value, torch.Tensor):
            if not _is_strided(value):
                return None
            sizes = tuple(map(present_number, (*value.shape, *value.stride())))
            seen.append((value.dtype, sizes, value.is_conj(), value.is_neg()))
        elif isinstance(value, torch.SymInt):
            seen.append((int, present_number(value)))
        elif value is None or isinstance(value, _PLAIN):
            seen.append((type(value), value))
        else:
            return None
    settings = (
        torch.get_default_dtype(),
        torch.backends.mkldnn.enabled,
        torch.are_deterministic_algorithms_enabled(),
    )
    return func, hollow, settings, structure, tuple(seen)


def _without_memory(tensor: torch.Tensor) -> torch.Tensor:
    return _filled(tensor, "meta", lambda dtype: dtype)


def _asked_of_eager(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], hollow: bool) -> Any:
    shown = not hollow and (func.is_view or func in _OF_ANY_NUMBERS)
    ways: Sequence[Any] = (_empty_like, _zeros) if shown else (_ones, _zeros)
    for filled in _hollow_ways((args, kwargs)) if hollow else ways:
        try:
            with _disable_current_modes(), torch.no_grad(), _drawing_nothing(func, args, kwargs):
                return func(*tree_map(filled, list(args)), **tree_map(filled, dict(kwargs)))
        except (RuntimeError, IndexError, ValueError):
            continue
    return None


def _filled(value: Any, device: str, dtype: Callable[[torch.dtype], torch.dtype]) -> Any:
    """A tensor that lies like another one, on another device."""
    if isinstance(value, torch.SymInt):
        return present_number(value)
    if not isinstance(value, torch.Tensor):
        return value
    shape, stride = map(present_number, value.shape), map(present_number, value.stride())
    return torch.empty_strided(tuple(shape), tuple(stride), dtype=dtype(value.dtype), device=device)


def _empty_like(value: Any) -> Any:
    return _filled(value, "cpu", lambda dtype: dtype)


def _ones(value: Any) -> Any:
    made = _empty_like(value)
    return made.fill_(1) if isinstance(made, torch.Tensor) else made


def _zeros(value: Any) -> Any:
    made = _empty_like(value)
    return made.zero_() if isinstance(made, torch.Tensor) else made


def _hollow_ways(given: Any) -> tuple[Callable[[Any], Any], ...]:
    """How to make tensors without memory, of dtypes for which the symbolic version is right.

    It casts copies wherever dtypes differ, and half precision always. Eager's kernels for CPUs cast
    copies where dtypes differ; those of other devices read each operand where it lies.
    """
    tensors = [value for value in tree_leaves(given) if _lies_in_memory(value)]
    if all(value.device.type == "cpu" for value in tensors):
        floating = {value.dtype for value in tensors if value.dtype.is_floating_point}
        wide = {} if len(floating) > 1 else dict.fromkeys(_NARROW, torch.float32)
        return (lambda value: _filled(value, "meta", lambda dtype: wide.get(dtype, dtype)),)
    return (
        lambda value: _filled(value, "meta", lambda _: torch.float32),
        lambda value: _filled(
            value, "meta", lambda dtype: dtype if dtype is torch.bool else torch.float32
        ),
    )


def present_number(size: Any) -> int:
    """A size, or that of the call that is traced where it is open."""
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.shape_env.at_present(size.node.expr))
