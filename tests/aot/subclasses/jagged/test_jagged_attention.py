"""Attention of jagged batches, against eager and against each row by itself."""

import random
import re

import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
F = torch.nn.functional
HEADS, FEATURES = 2, 8
WIDTH = HEADS * FEATURES


def batch(seed, rows=None, *, known=False, dtype=torch.float64, least=1):
    draw = random.Random(seed)
    lengths = [draw.randint(least, 6) for _ in range(rows or draw.randint(2, 5))]
    lengths[0] += 2
    values = torch.randn(
        sum(lengths), WIDTH, generator=torch.Generator().manual_seed(seed), dtype=dtype
    )
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    limits = {"min_seqlen": min(lengths), "max_seqlen": max(lengths)} if known else {}
    jagged = torch.nested.nested_tensor_from_jagged(values, offsets, **limits)
    return jagged.requires_grad_(), lengths


def heads(x):
    return x.view(x.shape[0], -1, HEADS, FEATURES).transpose(1, 2)


def attend(x, z):
    found = F.scaled_dot_product_attention(heads(x), heads(z).sin(), heads(z) * 2, scale=0.3)
    return found.transpose(1, 2).flatten(-2)


class Block(torch.nn.Module):
    """A block of a transformer, as people write it."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = torch.nn.Linear(WIDTH, WIDTH)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 32), torch.nn.GELU(), torch.nn.Linear(32, WIDTH)
        )

    def forward(self, x):
        entering = self.norm(x)
        query, key, value = (heads(part(entering)) for part in self.parts)
        found = F.scaled_dot_product_attention(query, key, value)
        x = x + self.out(found.transpose(1, 2).flatten(-2))
        return x + self.network(x)


def values(tensors):
    return [each.values() if each.is_nested else each for each in tensors]


def alike(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        assert (one.is_nested, one.requires_grad) == (other.is_nested, other.requires_grad)
        one, other = values((one, other))
        assert one.stride() == other.stride()
        assert_close(one, other)


def first_order(function, *arguments):
    result = function(*arguments)
    return result, *torch.autograd.grad(result, arguments, torch.ones_like(result))


@pytest.mark.parametrize(
    ("known", "batches"),
    [(False, 5), (True, 5), *(pytest.param(known, 20, marks=pytest.mark.slow) for known in (0, 1))],
)
def test_one_program_for_all_batches(known, batches):
    compiled = funcaot.compile(attend, backend=COMPILER, fullgraph=True)
    for seed in range(batches):
        x, lengths = batch(seed, known=known)
        z, _ = batch(seed + 50, len(lengths), known=known, least=1 if known else 0)
        found = first_order(compiled, x, z)
        alike(found, first_order(attend, x, z))
        assert found[0].offsets() is x.offsets()
        assert found[0]._max_seqlen_tensor is x._max_seqlen_tensor
        with torch.no_grad():
            assert_close(compiled(x, z).values(), attend(x, z).values())
    assert len(compiled.entries) == 4


def by_rows(lengths, others):
    def function(x, z):
        found = []
        for row, other in zip(x.split(lengths), z.split(others), strict=True):
            query, key = (v.unflatten(-1, (HEADS, FEATURES)).transpose(0, 1) for v in (row, other))
            weights = torch.softmax(query @ key.sin().mT * 0.3, -1)
            found.append((weights @ (key * 2)).transpose(0, 1).flatten(1))
        return torch.cat(found)

    return function


def orders(function, x, z):
    """Three orders, where torch has one for jagged tensors."""
    found = [function(x, z)]
    for create in (True, True, False):
        last = found[-1]
        weights = torch.ones_like(last)
        found.append(torch.autograd.grad(last, x, weights, create_graph=create)[0])
    return found


def test_derivatives_that_eager_lacks():
    compiled = funcaot.compile(attend, backend="eager", fullgraph=True)
    for seed in (0, 2, 3):
        x, lengths = batch(seed, 3)
        z, others = batch(seed + 50, 3, least=0)
        found = values(orders(compiled, x, z))
        plain = [each.values().detach().requires_grad_() for each in (x, z)]
        for one, other in zip(found, orders(by_rows(lengths, others), *plain), strict=True):
            assert_close(one, other)
    assert len(compiled.entries) == 2


@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_block_of_a_transformer(backend):
    torch.manual_seed(0)
    block = Block()
    compiled = funcaot.compile(lambda x: block(x), backend=backend, fullgraph=True)
    for seed in range(3):
        both = []
        for function in (compiled, block):
            x, _ = batch(seed, dtype=torch.float32)
            block.zero_grad()
            result = function(x)
            result.values().sin().sum().backward()
            both.append([result, x.grad, *(each.grad.clone() for each in block.parameters())])
        for one, other in zip(*map(values, both), strict=True):
            assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert len(compiled.entries) == 2


def test_under_autocast():
    def function(x, z):
        with torch.autocast("cpu", torch.bfloat16):
            return attend(x, z)

    compiled = funcaot.compile(function, backend=COMPILER, fullgraph=True)
    x, z = (batch(seed, 3, dtype=torch.float32)[0] for seed in (0, 1))
    alike([compiled(x, z)], [function(x, z)])


def test_lengths_that_dont_fit_are_refused_as_in_eager():
    compiled = funcaot.compile(attend, backend=COMPILER)
    for seed in range(2):
        x, _ = batch(seed, 3)
        compiled(x, x)
        offsets = x.offsets().clone()
        offsets[-1] -= 1
        short = torch.nested.nested_tensor_from_jagged(x.values().detach(), offsets)
        with pytest.raises(RuntimeError, match="split_sizes") as ours:
            compiled(short, short)
        with pytest.raises(RuntimeError, match="split_sizes") as theirs:
            attend(short, short)
        assert str(ours.value) == str(theirs.value)


def test_dropped_weights_are_refused():
    def function(x):
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), dropout_p=0.5)

    compiled = funcaot.compile(function, backend=COMPILER)
    with pytest.raises(UnsupportedError, match="drops weights at random in the attention of"):
        compiled(batch(0)[0])


def test_what_eager_refuses_is_refused():
    def causal(x):
        return F.scaled_dot_product_attention(heads(x), heads(x), heads(x), is_causal=True)

    with pytest.raises(RuntimeError) as expected:
        causal(batch(0)[0])
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value)[:40])):
        funcaot.compile(causal, backend=COMPILER)(batch(0)[0])
