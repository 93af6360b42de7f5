"""A Triton kernel is refused by its operator's name, at every level, without Triton at hand."""

import pytest
import torch
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)

import funcaot
from funcaot.errors import UnsupportedError


class Kernel:
    """Stands for one of Triton's."""


def arguments(x, out):
    return {
        "kernel_idx": kernel_side_table.add_kernel(Kernel()),
        "constant_args_idx": kernel_side_table.add_constant_args({"n": 4}),
        "grid": [(1, 1, 1)],
        "tma_descriptor_metadata": {},
        "kwargs": {"x": x, "out": out},
    }


def written(x):
    out = torch.empty_like(x)
    triton_kernel_wrapper_mutation(**arguments(x, out))
    return out


def functional(x):
    return triton_kernel_wrapper_functional(**arguments(x, x * 2), tensors_to_clone=["out"])["out"]


INSIDE = {
    "plain": lambda f, x: f(x),
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,))[1],
    "vmap": lambda f, x: torch.func.vmap(f)(x),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("function", [written, functional])
def test_refused_by_name(function, inside, backend):
    compiled = funcaot.compile(lambda x: INSIDE[inside](function, x), backend=backend)
    name = "mutation" if function is written else "functional"
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=f"operator triton_kernel_wrapper_{name}"):
            compiled(torch.ones(2, 4))
