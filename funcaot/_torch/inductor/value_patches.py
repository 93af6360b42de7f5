"""Patches that a graph's values depend on: without one, the backend runs it op by op."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import fx

from funcaot import config
from funcaot._torch.inductor.rigid_kernels import RIGID_KERNELS
from funcaot._torch.inductor.special_values import ALWAYS, KERNELS
from funcaot._torch.patches import is_usable
from funcaot._torch.tensors.complex_constants import has_odd_constants
from funcaot._torch.tensors.ops import OpOverload

__all__ = ["are_usable", "concerned"]

aten = torch.ops.aten

# Packets of ops that Inductor may run in the memory of an operand; so may any operator of a user.
_WRITING = frozenset(
    """
    index_put _unsafe_index_put index_copy index_add index_fill masked_scatter put scatter
    scatter_add scatter_reduce slice_scatter select_scatter diagonal_scatter as_strided_scatter
    """.split()  # noqa: SIM905 - a list of words
)
# Ops whose code for vectors calls these, by themselves or after a decomposition.
_VECTORS = frozenset({"expm1", "atanh", "acosh", "elu", "celu", "selu", "sinh", "tanh"})


def concerned(module: fx.GraphModule) -> Iterator[str]:
    """Names of the patches without which a graph's values may be wrong."""
    ops = [node.target for node in module.graph.nodes if node.op == "call_function"]
    names = {_packet(op) for op in ops}
    if any(_is_narrow(node.meta.get("val")) for node in module.graph.nodes):
        yield "casts"
        yield "stored apart"  # Else the C++ doesn't compile.
    if names & _WRITING or None in names:
        yield "apart"
    if not RIGID_KERNELS.isdisjoint(ops):
        yield "rigid kernels"
    if any(_is_open_elsewhere(node.meta.get("val")) for node in module.graph.nodes):
        yield "quotients"
    exact = config.get().exact_special_values
    if not {*ALWAYS, *(KERNELS if exact else ())}.isdisjoint(ops):
        yield "exact kernels"
    if names & _VECTORS:
        yield "exact vectors"
    if exact:
        yield "exact zeros"
    if config.get().fallback_random and "bernoulli" in names:
        yield "eager bernoulli"


def _packet(op: Any) -> str | None:
    """The name of an aten or prims op without its overload; None for other operators."""
    if not isinstance(op, OpOverload):
        return None if hasattr(op, "_schema") or not hasattr(op, "__self__") else ""
    return op.overloadpacket.__name__ if op.namespace in ("aten", "prims") else None


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype in (torch.float16, torch.bfloat16)


def _is_open_elsewhere(value: Any) -> bool:
    """Whether it is a tensor with an open size, on another device than the CPU."""
    if not isinstance(value, torch.Tensor) or value.device.type == "cpu":
        return False
    return any(isinstance(size, torch.SymInt) for size in value.shape)


def are_usable(module: fx.GraphModule) -> bool:
    """Whether every patch that a graph's values depend on can be used.

    Of complex numbers that ``repr`` doesn't write as code, Inductor's code has the ``repr``.
    """
    return not has_odd_constants(module) and all(map(is_usable, concerned(module)))
