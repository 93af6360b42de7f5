"""The second order of attention in blocks: memory that grows with the length, values of MATH."""

import weakref

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import funcaot
from funcaot.derivatives.attention.operators import attention_backward_pullback


class Peak(TorchDispatchMode):
    """The most bytes that lived at once in storages that ops made inside."""

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self.known = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.note(tensor.untyped_storage())
        return result

    def note(self, storage):
        key = storage._cdata
        if key in self.known:
            return
        self.known.add(key)
        size = storage.nbytes()
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self.forget, key, size)

    def forget(self, key, size):
        self.known.discard(key)
        self.now -= size


def operands(length):
    return [torch.randn(1, 1, length, 8) for _ in range(7)]


def peak_of_blocks(length):
    query, key, value, *rest = operands(length)
    wanted = [True] * 4 + [False]
    # As the op runs, so that what it makes inside is seen.
    from funcaot.derivatives.attention import blocks
    from funcaot.derivatives.attention.blocks import ROWS, Problem

    with Peak() as peak:
        problem = Problem(query, key, value, None, False, 0.3, ROWS)
        made = blocks.backward_pullback(problem, rest[0], rest[1:], None, wanted)
    op = attention_backward_pullback(
        query, key, value, None, False, 0.3, rest[0], *rest[1:], None, wanted
    )
    for one, other in zip(made, op, strict=True):
        torch.testing.assert_close(one, other)
    return peak.most


def peak_of_math(length):
    tensors = [tensor.requires_grad_() for tensor in operands(length)[:3]]
    with sdpa_kernel(SDPBackend.MATH):
        output = F.scaled_dot_product_attention(*tensors)
    with Peak() as peak:
        grads = torch.autograd.grad(output.sum(), tensors, create_graph=True)
        torch.autograd.grad(sum(g.square().sum() for g in grads), tensors)
    return peak.most


def test_memory_grows_with_the_length():
    small, large = peak_of_blocks(512), peak_of_blocks(1024)
    assert large < 2.3 * small
    assert large < 0.25 * peak_of_math(1024)


@pytest.mark.parametrize("causal", [False, True])
def test_blocks_agree_with_math(causal):
    """More rows than a block has."""
    tensors = [torch.randn(1, 2, 300, 4, dtype=torch.float64) for _ in range(3)]

    def second():
        inputs = [tensor.requires_grad_() for tensor in tensors]
        output = F.scaled_dot_product_attention(*inputs, is_causal=causal)
        grads = torch.autograd.grad(output.sin().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum((g * g).sum() for g in grads), inputs)

    with funcaot.install():
        actual = second()
    with sdpa_kernel(SDPBackend.MATH):
        wanted = second()
    for one, other in zip(actual, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)
