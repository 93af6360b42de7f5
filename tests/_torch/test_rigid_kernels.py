"""Kernels that read operands as if they lay as in eager get them so, in any compiler's layout."""

import pytest
import torch

import funcaot
from funcaot._torch.inductor.rigid_kernels import RIGID_KERNELS
from tests.hostile import Freedoms, hostile

aten = torch.ops.aten


def attention():
    torch.manual_seed(0)
    return torch.nn.MultiheadAttention(4, 2, batch_first=True).double()


def layer(**options):
    torch.manual_seed(0)
    return torch.nn.TransformerEncoderLayer(4, 2, 16, 0.0, batch_first=True, **options).double()


CASES = {
    "attention": lambda module: lambda x: module(x, x, x, need_weights=False)[0],
    "layer": lambda module: module,
}
MODULES = {"attention": attention, "layer": layer}


def gradients(call, module, x):
    x = x.clone().requires_grad_()
    result = call(x)
    weights = torch.arange(1.0, 1 + result.numel(), dtype=result.dtype).view(result.shape)
    return torch.autograd.grad((result * weights).sum(), (x, *module.parameters()))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("case", CASES)
def test_attention_in_any_layout(case, seed):
    module = MODULES[case]()
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    call = CASES[case](module)
    compiled = funcaot.compile(call, backend=hostile(Freedoms(seed=seed)))
    torch.testing.assert_close(gradients(compiled, module, x), gradients(call, module, x))


def test_a_kernel_of_attention_is_rigid():
    """What the list is for: the same numbers in another order give other gradients.

    torch 2.15 has mended it.
    """
    torch.manual_seed(0)
    q, k, v, tangent = torch.randn(4, 2, 2, 3, 4, dtype=torch.float64)
    kernel = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    assert kernel in RIGID_KERNELS
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(q, k, v)
    right = kernel(tangent, q, k, v, out, sums, 0.0, False)
    laid_out = q.transpose(2, 3).contiguous().transpose(2, 3)
    other = kernel(tangent, laid_out, k, v, out, sums, 0.0, False)
    assert all(map(torch.allclose, other, right)) == (torch.__version__ >= (2, 15))
