"""Policies: what a backward may compute again, so that it needn't be kept."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import fx

from funcaot._torch.tensors.ops import HigherOrderOperator, OpOverload
from funcaot.aot.graph import graphs
from funcaot.aot.graph.location import Location
from funcaot.errors import FuncaotError

aten = torch.ops.aten


@dataclass(frozen=True)
class Candidate:
    """A value of the forward that could be kept, as a user's policy sees it.

    Attributes:
        name: The graph's name of it.
        op: The op that makes it, like ``aten.gelu.default``.
        shape: Sizes.
        dtype: Element type.
        bytes: Size of its elements.
        source: Line of the user's code that called the op, if known.

    Example:
        >>> import torch, funcaot
        >>> seen = set()
        >>> def keep_large(candidate):
        ...     seen.add(candidate.op)
        ...     return candidate.bytes > 1_000_000 or None
        >>> f = funcaot.compile(lambda x: x.sin().exp(), backend="eager", policy=keep_large)
        >>> f(torch.ones(3, requires_grad=True)).sum().backward()
        >>> sorted(seen)
        ['aten.exp.default', 'aten.sin.default']
    """

    name: str
    op: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    bytes: int
    source: Location | None


Choice = Callable[[Candidate], bool | None]


@dataclass(frozen=True)
class Policy:
    """What may be recomputed.

    Attributes:
        name: Shown by the report.
        recomputes: Whether an op is worth running again; views, constants and checkpointed
            regions always are, random ops and user Functions never.
        depth: How many recomputable ops in a row may be run again to get one value.
        everything: Keep exactly what autograd saved: run nothing again but checkpointed regions.
        choice: A user's function; where it gives None, the rest of the policy decides.
    """

    name: str
    recomputes: Callable[[fx.Node], bool]
    depth: int | None = None
    everything: bool = False
    choice: Choice | None = None


def resolve(policy: str | Choice | Policy) -> Policy:
    """The policy that a user's ``policy`` argument means.

    Raises:
        FuncaotError: If there is none of that name.
    """
    if isinstance(policy, Policy):
        return policy
    if isinstance(policy, str) and policy in POLICIES:
        return POLICIES[policy]
    if callable(policy):
        name = getattr(policy, "__name__", type(policy).__name__)
        return Policy(name, is_pointwise, _DEPTH, choice=policy)
    raise FuncaotError(
        f"There is no policy {policy!r}.",
        expected=f"one of {sorted(POLICIES)}, or a function of a Candidate that returns True to "
        "keep it, False to recompute it, None for the balanced choice",
        got=repr(policy),
        remedy='leave it out for "balanced".',
    )


# Without a tag of their own, but one kernel over the elements like those that have it.
_LIKE_POINTWISE = {
    aten._to_copy.default,
    aten.copy.default,
    aten.fill.Scalar,
    aten.zeros_like.default,
    aten.ones_like.default,
    aten.full_like.default,
    aten.empty_like.default,
    aten.tril.default,
    aten.triu.default,
}

# Several passes over the elements or an indirection, still far from a matrix product.
_CHEAP = {
    "_softmax", "_log_softmax", "native_layer_norm", "native_group_norm", "native_batch_norm",
    "_native_batch_norm_legit", "_native_batch_norm_legit_functional", "cudnn_batch_norm",
    "_batch_norm_with_update_functional", "_fused_rms_norm", "cat", "stack", "index",
    "index_select", "gather", "embedding", "constant_pad_nd", "flip", "roll", "repeat",
    "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_copy",
    "upsample_nearest2d", "avg_pool2d", "_adaptive_avg_pool2d", "max_pool2d_with_indices",
    "linalg_vector_norm", "pixel_shuffle", "one_hot", "masked_fill",
}  # fmt: skip


def is_pointwise(node: fx.Node) -> bool:
    """Whether an op computes each element from the elements at the same place."""
    target = _op_of(node)
    return target is not None and (torch.Tag.pointwise in target.tags or target in _LIKE_POINTWISE)


def makes_alike(node: fx.Node) -> bool:
    """Whether an op only looks at the shape of its inputs (``zeros_like``, ``new_ones``)."""
    target = _op_of(node)
    if target is None:
        return False
    name = target._schema.name.removeprefix("aten::")
    return name.endswith("_like") or name.startswith("new_")


def is_cheap(node: fx.Node) -> bool:
    """Whether an op takes time in proportion to what it reads and writes."""
    target = _op_of(node)
    return target is not None and (
        is_pointwise(node)
        or torch.Tag.reduction in target.tags
        or target._schema.name.removeprefix("aten::") in _CHEAP
    )


def _op_of(node: fx.Node) -> OpOverload | None:
    if node.target is operator.getitem:
        node = node.args[0]  # type: ignore[assignment]
    return node.target if isinstance(node.target, OpOverload) else None


def is_pinned(node: fx.Node) -> bool:
    """Whether a node must never run twice: random ops, collectives, user Functions and the like."""
    if node.op != "call_function":
        return False
    if graphs.is_random(node) or graphs.runs_alone(node) or graphs.is_function_node(node):
        return True
    if graphs.is_collective(node):
        return not node.meta.get("again")
    if node.target is operator.getitem:
        return is_pinned(node.args[0])  # type: ignore[arg-type]
    return isinstance(node.target, HigherOrderOperator)


_DEPTH = 12

POLICIES = {
    "balanced": Policy("balanced", is_pointwise, depth=_DEPTH),
    "memory": Policy("memory", is_cheap),
    "save_all": Policy("save_all", is_pointwise, everything=True),
}
