"""Rules for torch's fused kernels of attention; registered in the table, one per kernel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from funcaot._torch.autograd.op_kernels import OpOverload, op_name, schema_of
from funcaot.derivatives.attention.folding import folded
from funcaot.derivatives.attention.operators import (
    attention_backward,
    attention_backward_pushforward,
    attention_pushforward,
    backward_vjp,
)
from funcaot.derivatives.attention.rows import Maybe
from funcaot.derivatives.table import Derivative, register
from funcaot.errors import UnsupportedError

aten = torch.ops.aten

_ARRIVING = ("grad_out", "grad_out_")
_BIAS = ("attn_mask", "attn_bias")


@dataclass(frozen=True)
class _Kernel:
    """A fused forward or backward, read by the names of its schema.

    Attributes:
        op: The op.
        names: Its arguments in order.
        outputs: How many results it has.
    """

    op: OpOverload
    names: tuple[str, ...]
    outputs: int

    def read(self, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by name, with the defaults of what wasn't given."""
        values = dict(zip(self.names, args, strict=False))
        for argument in schema_of(self.op).arguments:
            if argument.has_default_value():
                values.setdefault(argument.name, argument.default_value)
        return {**values, **kwargs}

    def operands(self, given: dict[str, Any]) -> tuple[Any, ...]:
        """What funcaot's own ops take first."""
        if given.get("dropout_p"):
            raise UnsupportedError(
                f"{op_name(self.op)} drops weights at random and doesn't say which, so its result "
                "can't be differentiated once more.",
                remedy="choose the MATH kernel for this call, with torch.nn.attention.sdpa_kernel.",
            )
        query, scale = given["query"], given.get("scale")
        scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
        return query, given["key"], given["value"], self.bias(given), given["is_causal"], scale

    def bias(self, given: dict[str, Any]) -> Maybe:
        """What is added to the scores."""
        return next((given[name] for name in _BIAS if name in given), None)

    def arriving(self, given: dict[str, Any]) -> Tensor:
        """What arrives at the output of a backward."""
        return next(given[name] for name in _ARRIVING if name in given)

    def along(self, tangents: Sequence[Any]) -> dict[str, Maybe]:
        """The tangents by name; of keywords they come as a dictionary at the end."""
        tangents = list(tangents)
        last = tangents.pop() if tangents and isinstance(tangents[-1], dict) else {}
        return {**dict(zip(self.names, tangents, strict=False)), **last}


def _kernel(op: OpOverload) -> _Kernel:
    schema = schema_of(op)
    return _Kernel(op, tuple(a.name for a in schema.arguments), len(schema.returns))


def _forward_jvp(kernel: _Kernel) -> Callable[..., Any]:
    def jvp(tangents: Sequence[Any], *args: Any, **kwargs: Any) -> Tensor:
        moved = kernel.along(tangents)
        operands = kernel.operands(kernel.read(args, kwargs))
        return attention_pushforward(
            *operands, moved.get("query"), moved.get("key"), moved.get("value"), kernel.bias(moved)
        )

    return jvp


def _backward_jvp(kernel: _Kernel) -> Callable[..., Any]:
    def jvp(tangents: Sequence[Any], *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        given, moved = kernel.read(args, kwargs), kernel.along(tangents)
        pushed = attention_backward_pushforward(
            *kernel.operands(given),
            kernel.arriving(given),
            next((moved[name] for name in _ARRIVING if name in moved), None),
            moved.get("query"),
            moved.get("key"),
            moved.get("value"),
            kernel.bias(moved),
        )
        return tuple(pushed)[: 3 if kernel.bias(given) is None else kernel.outputs]

    return jvp


def _backward_vjp(kernel: _Kernel) -> Callable[..., Any]:
    """Gradients for what arrives, query, key, value and bias, by recomputing the weights.

    Output and log-sum-exp of the forward are functions of these, so they get none of their own.
    """

    def vjp(
        cotangents: Sequence[Maybe], *args: Any, wanted: Sequence[bool], **kwargs: Any
    ) -> tuple[Maybe, ...]:
        given = kernel.read(args, kwargs)
        bias = kernel.bias(given)
        four = (*cotangents, None, None)[:4]
        places = [
            next((index for index, name in enumerate(kernel.names) if name in names), None)
            for names in (_ARRIVING, ("query",), ("key",), ("value",), _BIAS)
        ]
        asked = [place is not None and place < len(wanted) and wanted[place] for place in places]
        of_results = (*four[:3], None if bias is None else four[3])
        found = backward_vjp(kernel.operands(given), kernel.arriving(given), of_results, asked)
        by_place = {
            place: gradient
            for place, is_asked, gradient in zip(places, asked, found, strict=True)
            if is_asked and place is not None
        }
        return _by_argument(kernel, by_place, len(args))

    return vjp


def _by_argument(kernel: _Kernel, by_place: dict[int, Maybe], positional: int) -> tuple[Any, ...]:
    """Gradients as the table wants them: of positional arguments, and by name of the others."""
    named = {kernel.names[i]: gradient for i, gradient in by_place.items() if i >= positional}
    return (*(by_place.get(index) for index in range(positional)), named)


def _forward_vjp(kernel: _Kernel) -> Callable[..., Any]:
    """Gradients for query, key, value and bias, where torch's kernel has none for the bias."""

    def vjp(
        cotangents: Sequence[Maybe], *args: Any, wanted: Sequence[bool], **kwargs: Any
    ) -> tuple[Any, ...]:
        if cotangents[0] is None:
            return (None,) * len(args)
        found = attention_backward(*kernel.operands(kernel.read(args, kwargs)), cotangents[0])
        by_place: dict[int, Maybe] = {}
        for names, gradient in zip((("query",), ("key",), ("value",), _BIAS), found, strict=True):
            place = next((i for i, name in enumerate(kernel.names) if name in names), None)
            if place is not None and wanted[place]:
                by_place[place] = gradient
        return _by_argument(kernel, by_place, len(args))

    return vjp


def _of_a_shared_bias(op: OpOverload) -> Callable[..., Any]:
    """Torch's rule for ``vmap`` gives the kernel fewer biases than batches if examples share one.

    Some kernels read beyond the memory of the bias then.
    """
    fold, place = folded(op), _kernel(op).names.index("attn_bias")

    def run(size: int, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        values, dims = (*args, *[None] * place)[: place + 1], (*in_dims[0], *[None] * place)
        bias = kwargs.get("attn_bias", values[place])
        dim = in_dims[1].get("attn_bias", dims[place])
        if bias is None or dim is not None:
            return NotImplemented
        return fold(size, in_dims, *args, **kwargs)

    return run


def _register(
    forward: OpOverload,
    backward: OpOverload,
    batched: Callable[[OpOverload], Callable[..., Any]] | None = None,
) -> None:
    """Register both ops of a kernel; ``batched`` makes what ``vmap`` calls for the forward."""
    kernel = _kernel(forward)
    register(
        Derivative(
            forward,
            vjp=_forward_vjp(kernel),
            jvp=_forward_jvp(kernel),
            reverse=False,
            lacking=frozenset({"attn_mask"}),
            selective=True,
            batched=None if batched is None else batched(forward),
        )
    )
    kernel = _kernel(backward)
    register(
        Derivative(
            backward,
            vjp=_backward_vjp(kernel),
            jvp=_backward_jvp(kernel),
            selective=True,
            constant=frozenset({"out", "logsumexp"}),
            batched=folded(backward),
        )
    )


_register(
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    batched=folded,
)
_register(
    aten._scaled_dot_product_flash_attention.default,
    aten._scaled_dot_product_flash_attention_backward.default,
)
_register(
    aten._scaled_dot_product_efficient_attention.default,
    aten._scaled_dot_product_efficient_attention_backward.default,
    batched=_of_a_shared_bias,
)
_register(
    aten._scaled_dot_product_cudnn_attention.default,
    aten._scaled_dot_product_cudnn_attention_backward.default,
    batched=_of_a_shared_bias,
)
_register(
    aten._scaled_dot_product_fused_attention_overrideable.default,
    aten._scaled_dot_product_fused_attention_overrideable_backward.default,
    batched=folded,
)
