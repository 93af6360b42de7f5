"""Whether sparse results in a capture are coalesced, as eager's are; tapes ask here.

A symbolic sparse tensor has no elements, and torch's ops take one with fewer than two for
coalesced. Then a ``coalesce()`` that follows would be left out of the program.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.utils._pytree import tree_leaves

from funcaot._torch.autograd.compressed import refuse_recorded_compressed

__all__ = ["look_at_sparse"]

_COALESCING = {"_coalesce", "_sparse_sparse_matmul", "_sparse_sum", "_to_sparse"}
# Pointwise ops that don't coalesce what they are given; the others with one operand do.
_AS_GIVEN = {"add", "clone", "div", "mul", "neg", "sub"}
# These say that they don't know.
_MIXING = {"cat", "permute", "t", "transpose"}


def look_at_sparse(func: OpOverload, given: Any, made: Any) -> None:
    """Say of an op's sparse results whether they are coalesced, as eager's are.

    What is made of tensors that aren't is taken for as little coalesced, if nothing else is known.

    Args:
        func: The op.
        given: Its arguments.
        made: What it returned, which is changed.

    Raises:
        UnsupportedError: If a result is in a compressed layout and autograd is to record it.
    """
    refuse_recorded_compressed(made, given)
    results = [value for value in tree_leaves(made) if _is_sparse(value)]
    if not results or func._schema.is_mutable:
        return
    operands = [_inner(value) for value in tree_leaves(given) if _is_sparse(value)]
    if not operands:
        return
    pointwise, name = torch.Tag.pointwise in func.tags, func._opname
    answer = None
    if name in _COALESCING:
        answer = True
    elif name in _MIXING:
        answer = False
    elif not (pointwise and name not in _AS_GIVEN and len(operands) == 1):
        answer = None if all(value.is_coalesced() for value in operands) else False
    if answer is not None:
        with disable_proxy_modes_tracing():
            for value in map(_inner, results):
                if isinstance(value, FakeTensor):
                    value._coalesced_(answer)


def _inner(value: torch.Tensor) -> torch.Tensor:
    """What a functional tensor stands for, which alone can be asked below all modes."""
    is_functional = isinstance(value, FunctionalTensor)
    return torch._from_functional_tensor(value.elem) if is_functional else value


def _is_sparse(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.sparse_coo
