"""Operators whose kernels call a compiled function, inside of a compiled function and outside."""

import pytest
import torch

import funcaot
from tests.hostile import COMPILER


@pytest.mark.parametrize("key", ["CompositeExplicitAutograd", "CPU"])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_kernel_may_be_compiled(key, is_known):
    inner = funcaot.compile(lambda x: x.sin().cos(), backend=COMPILER)
    with torch.library._scoped_library("funcaot_kernels", "FRAGMENT") as library:
        library.define("wave(Tensor x) -> Tensor")
        library.impl("wave", lambda x: inner(x), key)
        if key == "CPU":
            library.impl("wave", torch.empty_like, "Meta")
        operator = torch.ops.funcaot_kernels.wave
        if is_known:
            inner(torch.ones(3))
        outer = funcaot.compile(lambda x: operator(x) * 2, backend=COMPILER)
        for number in range(3):
            x = torch.ones(3) * number
            torch.testing.assert_close(outer(x), x.sin().cos() * 2)
            torch.testing.assert_close(operator(x), x.sin().cos())
