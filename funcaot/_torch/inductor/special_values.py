"""NaN, infinities, zeros of both signs and tiny numbers: where Inductor's code isn't eager's.

Three kinds of code are at fault: decompositions, passes over the graph, and the C++ that is
written for vectors. What costs next to nothing, and a wrong result, is mended always; the rest
with `config.exact_special_values`.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import fx

from funcaot import config
from funcaot._torch.dynamo.compile_lock import replaced_here
from funcaot._torch.patches import applied

__all__ = ["corrected", "exact_passes", "mended", "tag", "without_folded_zeros"]

aten = torch.ops.aten

Table = Mapping[Any, Callable[..., Any]]
Number = bool | int | float


_MAX_POOL2D = aten.max_pool2d_with_indices.default
_MAX_POOL3D = aten.max_pool3d_with_indices.default

# An op that is eager's kernel on a CPU, always: Inductor's code gives numbers for places that are
# NaN, and takes four times as long.
# Always eager's kernels: the sampler for its values, pools that no decomposition takes for indices.
_SAMPLER = aten.grid_sampler_2d.default
ALWAYS = (
    _SAMPLER,
    aten.max_pool2d_with_indices.default,
    aten.max_pool3d_with_indices.default,
)

# Gradients of means of windows. The last window may reach beyond the padding, and its mean is that
# of less than a whole one; Inductor divides by the whole one.
_MEANS = (aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)

_MEAN_OF = (
    "grad_output", "self", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad",
    "divisor_override",
)  # fmt: skip

# Ops that are eager's kernels with the option, and what is wrong with Inductor's code for them.
KERNELS = (
    # Small numbers: of vectors, it is exact to 1e-7, not relatively.
    aten.erf.default,
    aten.gelu.default,
    # Zeros of both signs, of which these choose one.
    aten.amax.default,
    aten.amin.default,
    aten.aminmax.default,
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clamp_max.default,
    aten.clamp_max.Tensor,
    aten.clamp_min.default,
    aten.clamp_min.Tensor,
    aten.elu.default,
    aten.fmax.default,
    aten.fmin.default,
    aten.hardtanh.default,
    aten.lerp.Scalar,
    aten.lerp.Tensor,
    aten.max.dim,
    aten.maximum.default,
    aten.min.dim,
    aten.minimum.default,
    aten.softshrink.default,
    # Of several NaN in a window, the last one's place.
    aten.adaptive_max_pool2d.default,
    aten.adaptive_max_pool3d.default,
    _MAX_POOL2D,
    _MAX_POOL3D,
    # Infinities, and a NaN that eager's kernel leaves out.
    aten.var_mean.correction,
    aten.multi_margin_loss.default,
)


def corrected(table: Table) -> dict[Any, Callable[..., Any]]:
    """A table of decompositions with those replaced that aren't what eager's kernels compute."""
    found: dict[Any, Callable[..., Any]] = {
        **table,
        aten.remainder.Tensor: _remainder,
        aten.remainder.Scalar: _remainder,
        aten.remainder.Scalar_Tensor: _remainder,
        aten.floor_divide.default: _rounded(aten.floor_divide.default, table),
        aten.floor_divide.Scalar: _rounded(aten.floor_divide.Scalar, table),
        aten.div.Tensor_mode: _rounded(aten.div.Tensor_mode, table),
        aten.div.Scalar_mode: _rounded(aten.div.Scalar_mode, table),
        aten.pow.Tensor_Scalar: _inverse_root(table.get(aten.pow.Tensor_Scalar)),
        aten.elu_backward.default: _elu_backward,
        aten.hardswish_backward.default: _hardswish_backward,
    }
    if aten.addmv.default in table:
        found[aten.addmv.default] = _addmv(table[aten.addmv.default])
    if aten.smooth_l1_loss_backward.default in table:
        found[aten.smooth_l1_loss_backward.default] = _smooth_l1_loss_backward(table)
    if aten.sgn.default in table:
        found[aten.sgn.default] = _without_complex(table[aten.sgn.default])
    for op, rank in ((_MAX_POOL2D, 2), (_MAX_POOL3D, 3)):
        if op in table:
            found[op] = _padded_pool(table[op], rank)
    if _SAMPLER in table:
        found[_SAMPLER] = _sampler(table[_SAMPLER])
    if config.get().exact_special_values:
        for op in KERNELS:
            found.pop(op, None)
    return found


def _are_floats(x: Any, y: Any) -> bool:
    return torch.result_type(x, y).is_floating_point


def _remainder(x: Any, y: Any) -> Any:
    """By `fmod`, which is exact; ``x - floor(x / y) * y`` rounds three times."""
    if not _are_floats(x, y):
        return NotImplemented
    rest = torch.fmod(x, y) if isinstance(x, torch.Tensor) else torch.fmod(torch.as_tensor(x), y)
    other_sign = _is_negative(y, rest) ^ (rest < 0)
    return torch.where((rest != 0) & other_sign, rest + y, rest)


def _is_negative(y: Any, like: torch.Tensor) -> Any:
    """Whether a tensor or number is; as a tensor, so that it can be compared with another."""
    return y < 0 if isinstance(y, torch.Tensor) else torch.full_like(like, y < 0, dtype=torch.bool)


def _rounded(op: Any, table: Table) -> Callable[..., Any]:
    decomposed = table.get(op)

    def divide(x: torch.Tensor, y: Any, *, rounding_mode: str | None = "floor") -> Any:
        if rounding_mode == "floor" and _are_floats(x, y):
            return _floor_divided(x, y)
        if decomposed is None:
            return NotImplemented
        settings = (
            {} if op.overloadpacket is aten.floor_divide else {"rounding_mode": rounding_mode}
        )
        return decomposed(x, y, **settings)

    return divide


def _floor_divided(x: torch.Tensor, y: Any) -> torch.Tensor:
    """By `fmod` too: the floor of a quotient that was rounded up to an integer is one too large."""
    x = torch.as_tensor(x)
    rest, quotient = torch.fmod(x, y), torch.div(x, y)
    # What `fmod` of vectors says there isn't a remainder.
    overflows = quotient.isinf() & ~x.isinf()
    whole = torch.where(overflows, x, x - rest) / y
    other_sign = _is_negative(y, rest) ^ (rest < 0)
    whole = torch.where((rest != 0) & other_sign, whole - 1, whole)
    below = torch.floor(whole)
    found = torch.where(whole - below > 0.5, below + 1, below)
    zero = torch.copysign(torch.zeros_like(quotient), quotient)
    found = torch.where(whole != 0, found, zero)
    return torch.where(_is_zero(y, rest), quotient, found)


def _is_zero(y: Any, like: torch.Tensor) -> Any:
    return (
        y == 0 if isinstance(y, torch.Tensor) else torch.full_like(like, y == 0, dtype=torch.bool)
    )


def _inverse_root(decomposed: Callable[..., Any] | None) -> Callable[..., Any]:
    """Eager takes the -0.5th power by `rsqrt`, which has no number for -inf and -inf for -0.0."""

    def power(x: torch.Tensor, exponent: Number) -> Any:
        if x.is_floating_point() and exponent == -0.5:
            return torch.rsqrt(x)
        return NotImplemented if decomposed is None else decomposed(x, exponent)

    return power


def _addmv(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """No times a product is nothing, whatever the product is."""

    def addmv(
        x: torch.Tensor,
        matrix: torch.Tensor,
        vector: torch.Tensor,
        *,
        beta: Number = 1,
        alpha: Number = 1,
    ) -> Any:
        if alpha != 0:
            return decomposed(x, matrix, vector, beta=beta, alpha=alpha)
        shown = x.expand(matrix.shape[0])
        return torch.zeros_like(shown) if beta == 0 else shown * beta

    return addmv


def _elu_backward(
    gradient: torch.Tensor,
    alpha: Number,
    scale: Number,
    input_scale: Number,
    is_result: bool,
    x: torch.Tensor,
) -> torch.Tensor:
    """A NaN isn't positive, and stays one."""
    if is_result:
        negative = gradient * input_scale * (x + alpha * scale)
    else:
        negative = gradient * input_scale * (alpha * scale) * torch.exp(x * input_scale)
    return torch.where(x > 0, gradient * scale, negative)


def _hardswish_backward(gradient: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    middle = torch.where(x >= 3, gradient, gradient * (x / 3 + 0.5))
    return torch.where(x <= -3, 0.0, middle)


def _smooth_l1_loss_backward(table: Table) -> Callable[..., Any]:
    """A difference that is NaN isn't larger than ``beta``, and has no sign."""
    decomposed = table[aten.smooth_l1_loss_backward.default]

    def backward(
        gradient: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float
    ) -> Any:
        found = decomposed(gradient, x, target, reduction, beta)
        return torch.where((x - target).isnan(), gradient * (x - target), found)

    return backward


def _without_complex(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    """Divisions of complex numbers by their absolute values lose zeros; eager's kernel doesn't."""

    def sign(x: torch.Tensor) -> Any:
        return NotImplemented if x.is_complex() else decomposed(x)

    return sign


def _sampler(decomposed: Callable[..., Any]) -> Callable[..., Any]:
    def sample(x: torch.Tensor, *rest: Any) -> Any:
        return NotImplemented if x.device.type == "cpu" else decomposed(x, *rest)

    return sample


def _padded_pool(decomposed: Callable[..., Any], rank: int) -> Callable[..., Any]:
    """Of a window that is -inf throughout, the first place in the input, not in its padding."""

    def pool(
        x: torch.Tensor,
        kernel_size: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        found = decomposed(x, kernel_size, stride, padding, dilation, ceil_mode)
        pads = _for_each(padding, rank)
        if found is NotImplemented or not any(pads) or not x.is_floating_point():
            return found
        values, indices = found
        steps, gaps = _for_each(stride or kernel_size, rank), _for_each(dilation, rank)
        place: Any = 0
        for size, out, step, pad, gap in zip(
            x.shape[-rank:], values.shape[-rank:], steps, pads, gaps, strict=True
        ):
            start = torch.arange(out, device=x.device) * step - pad
            if gap == 1:
                start = start.clamp(min=0)
            for _ in range(-(-pad // gap) if gap > 1 else 0):
                start = torch.where(start < 0, start + gap, start)
            place = (place * size).unsqueeze(-1) + start if torch.is_tensor(place) else start
        return values, torch.where(values == -math.inf, place, indices)

    return pool


def _for_each(given: Any, rank: int) -> list[int]:
    values = [given] if isinstance(given, int) else list(given)
    return values * rank if len(values) == 1 else values


def without_folded_zeros(module: fx.GraphModule) -> None:
    """Write ``x * 0`` of floating point as ``x * 0.0``, which Inductor doesn't take for zeros."""
    for op in (aten.mul.Tensor, aten.mul.Scalar):
        for node in module.graph.find_nodes(op="call_function", target=op):
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor) and not _counts(value):
                node.args = tuple(
                    0.0 if isinstance(arg, int) and arg == 0 else arg for arg in node.args
                )


def _counts(value: torch.Tensor) -> bool:
    return not (value.is_floating_point() or value.is_complex())


def tag() -> str:
    """What tells modules made with this from others in Inductor's caches."""
    return " special 2" + (" exact" if config.get().exact_special_values else "")


@contextlib.contextmanager
def mended() -> Iterator[str]:
    """Let Inductor write C++ that keeps eager's values.

    Yields:
        What tells such modules from others in Inductor's caches, beside `tag`.
    """
    with (
        applied("exact vectors", _vectors, "") as vectors,
        exact_passes(),
        applied("exact kernels", _eager_kernels, "") as kernels,
    ):
        yield vectors + kernels


@contextlib.contextmanager
def exact_passes() -> Iterator[None]:
    """With the option, Inductor adds constant zeros as written."""
    if not config.get().exact_special_values:
        yield
        return
    from torch._inductor.fx_passes import joint_graph

    remove: Any = joint_graph.remove_no_ops

    def remove_no_ops(module: Any, zeros: Any, ones: Any) -> Any:
        return remove(module, type(zeros)(), ones)

    replaced = replaced_here(joint_graph, "remove_no_ops", remove_no_ops)
    with applied("exact zeros", lambda: replaced, None):
        yield


@contextlib.contextmanager
def _eager_kernels() -> Iterator[str]:
    """What Inductor has no exact code for are eager's kernels.

    For other threads, which may read the table meanwhile, that is slower and not less right.
    """
    from torch._inductor import lowering

    lowerings: dict[Any, Any] = lowering.lowerings
    ops = {*ALWAYS, *(KERNELS if config.get().exact_special_values else ())}
    usual = {op: lowerings[op] for op in ops if op in lowerings}
    kernels = {op: lowering.fallback_handler(op, add_to_fallback_set=False) for op in ops}
    for op in _MEANS:
        if op in lowerings:
            usual[op] = lowerings[op]
            kernel = lowering.fallback_handler(op, add_to_fallback_set=False)
            kernels[op] = _mean_of_clipped_windows(usual[op], kernel)
    lowerings.update(kernels)
    try:
        yield " kernels 2"
    finally:
        for op in kernels:
            del lowerings[op]
        lowerings.update(usual)


def _mean_of_clipped_windows(usual: Callable[..., Any], kernel: Callable[..., Any]) -> Any:
    """A lowering that takes eager's kernel where the last windows may be cut off."""

    def lowered(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(_MEAN_OF, args, strict=False)) | kwargs
        clipped = given["ceil_mode"] and given["count_include_pad"]
        return (kernel if clipped else usual)(*args, **kwargs)

    return lowered


# As eager's kernels compute them. Inductor's shorter formulas lose small numbers and signs.
def _expm1(x: Any) -> str:
    return f"{x}.expm1()"


def _atanh(x: Any) -> str:
    return f"{x}.atanh()"


def _acosh(x: Any) -> str:
    """SLEEF's overflows where the square of a number does."""
    large = f"({x}.log() + decltype({x})(0.693147180559945309))"
    return f"decltype({x})::blendv({x}.acosh(), {large}, {x} > decltype({x})(1e9))"


@contextlib.contextmanager
def _vectors() -> Iterator[str]:
    """Have these functions of vectors written so by this thread."""
    from torch._inductor.codegen.cpp import CppVecOverrides

    functions = {"expm1": _expm1, "atanh": _atanh, "acosh": _acosh}
    before = {name: vars(CppVecOverrides)[name] for name in functions}
    here = threading.get_ident()

    def chosen(name: str) -> Any:
        usual, ours = before[name].__func__, functions[name]

        @functools.wraps(usual)  # of numbers, Inductor calls the other table's by its name
        def function(x: Any) -> Any:
            return ours(x) if threading.get_ident() == here else usual(x)

        return staticmethod(function)

    try:
        for name in functions:
            setattr(CppVecOverrides, name, chosen(name))
        yield " vectors"
    finally:
        for name, function in before.items():
            setattr(CppVecOverrides, name, function)
