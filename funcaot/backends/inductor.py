"""Inductor, the default backend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from funcaot._torch.inductor import inductor, value_patches
from funcaot.backends import eager
from funcaot.backends.compiler import Compiler
from funcaot.backends.overlapping import with_targets_apart
from funcaot.backends.reinterpreted import with_dense_operands
from funcaot.backends.shuffled import with_unchecked_permutations


def prepared(module: fx.GraphModule) -> fx.GraphModule:
    """The graph without what Inductor computes other values for."""
    return with_dense_operands(with_targets_apart(with_unchecked_permutations(module)))


def _compile(module: fx.GraphModule, examples: Sequence[Any], kind: str) -> Callable[..., Any]:
    module = prepared(module)
    if not value_patches.are_usable(module):
        return eager.COMPILER.compile(module, examples, kind)
    return inductor.compile_graph(
        module, examples, is_backward=kind == "backward", is_inference=kind == "inference"
    )


def _is_dense(value: Any) -> bool:
    """Inductor takes plain strided tensors; its kernels know nothing of lazy conjugation.

    On the meta device there is nothing to compute, and it drops products that other ops read.
    """
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided
        and not value.is_conj()
        and not value.is_neg()
        and value.device.type != "meta"
    )


COMPILER = Compiler(
    name="inductor",
    compile=_compile,
    decompositions=inductor.decompositions,
    accepts=_is_dense,
    checks_layouts=False,
    writes_inputs=True,
    chooses_layouts=True,
    settles=True,
)
