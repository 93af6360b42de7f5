"""Fused attention to every order, against torch's MATH kernel."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

import funcaot
from tests.derivatives.attention import (
    ASKED,
    LENGTH,
    attention,
    expected,
    kinds,
    operands,
    repeated,
)

TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-5, torch.bfloat16: 3e-2}
FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
# What a fast run compiles; uncompiled code is asked for everything.
COMPILED = {
    ("causal", "second"), ("plain", "third"), ("mask", "jvp"), ("grouped", "second"),
    ("plain", "forward_over_reverse"), ("scale", "reverse_over_reverse"),
    ("causal", "vmap_of_grad"), ("plain", "batched_gradients"), ("plain", "vmap"),
}  # fmt: skip
# What a long run compiles by Inductor besides: the forms that people ask for.
FORMS = set(
    itertools.product(
        ("plain", "causal", "mask", "scale"),
        (
            *("first", "second", "third", "jvp", "forward_over_reverse"),
            *("reverse_over_reverse", "vmap_of_grad"),
        ),
    )
)


def leaves(tree):
    return [tree] if isinstance(tree, torch.Tensor) else [x for part in tree for x in leaves(part)]


def agree(actual, wanted, dtype):
    for one, other in zip(leaves(actual), leaves(wanted), strict=True):
        scale = 1 + other.abs().max().item()
        torch.testing.assert_close(one / scale, other / scale, rtol=0, atol=TOLERANCE[dtype])


def cases(backend):
    for kind in kinds():
        for asked in ASKED:
            fast = backend is None or (backend == "eager" and (kind, asked) in COMPILED)
            marks = [] if fast else [pytest.mark.slow]
            if backend == "inductor" and (kind, asked) not in COMPILED | FORMS:
                continue
            if backend == "eager" and kind in ("mask_of_heads", "scale", "seen") and not fast:
                marks = [pytest.mark.slow, pytest.mark.long]
            yield pytest.param(kind, asked, marks=marks, id=f"{kind}-{asked}")


@pytest.mark.parametrize(("kind", "asked"), list(cases(None)))
def test_uncompiled(kind, asked):
    tensors, keywords = kinds()[kind]
    with funcaot.install():
        actual = ASKED[asked](attention(keywords), tensors)
    agree(actual, expected(asked, attention(keywords), tensors), torch.float64)


@pytest.mark.parametrize(("kind", "asked"), list(cases("eager")))
def test_compiled(kind, asked):
    tensors, keywords = kinds()[kind]
    actual = ASKED[asked](funcaot.compile(attention(keywords), backend="eager"), tensors)
    agree(actual, expected(asked, attention(keywords), tensors), torch.float64)


@pytest.mark.parametrize("how", [
    "uncompiled", pytest.param("compiled", marks=pytest.mark.slow)
])  # fmt: skip
@pytest.mark.parametrize("asked", ASKED)
def test_mask_that_moves(asked, how):
    """Gradients and tangents of the mask, which torch's kernels take by keyword."""
    query, key, value = operands()
    mask = torch.randn(2, 1, LENGTH, LENGTH, generator=torch.Generator().manual_seed(7))

    def run(query, key, mask):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    tensors = (query, key, mask.double())
    if how == "compiled":
        actual = ASKED[asked](funcaot.compile(run, backend="eager"), tensors)
    else:
        with funcaot.install():
            actual = ASKED[asked](run, tensors)
    agree(actual, expected(asked, run, tensors), torch.float64)


@pytest.mark.long
@pytest.mark.parametrize("asked", ["first", "second", "third", "jvp", "forward_over_reverse"])
def test_dropout_on_inductor(asked):
    """The numbers are eager's, in every order."""
    tensors = operands(torch.float32)

    def run(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.4)

    torch.manual_seed(4)
    actual = ASKED[asked](funcaot.compile(run), tensors)
    torch.manual_seed(4)
    agree(actual, expected(asked, run, tensors), torch.float32)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "asked"), list(cases("inductor")))
def test_on_inductor(kind, asked):
    tensors, keywords = kinds(torch.float32)[kind]
    actual = ASKED[asked](funcaot.compile(attention(keywords)), tensors)
    agree(actual, expected(asked, attention(keywords), tensors), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("asked", ["second", "third", "jvp", "forward_over_reverse"])
def test_dtypes(dtype, asked):
    tensors, keywords = kinds(dtype)["causal"]
    with funcaot.install():
        actual = ASKED[asked](attention(keywords), tensors)
    agree(actual, expected(asked, attention(keywords), tensors), dtype)


@pytest.mark.parametrize("asked", ["reverse_over_reverse", "reverse_over_forward", "vmap_of_grad"])
def test_transforms_inside_of_a_compiled_function(asked):
    tensors, keywords = kinds()["causal"]
    compiled = funcaot.compile(lambda *t: ASKED[asked](attention(keywords), t), backend="eager")
    agree(compiled(*tensors), expected(asked, attention(keywords), tensors), torch.float64)


def test_the_kernel_stays():
    """Forward and first backward are the fused kernels, also where more is asked for."""
    graphs = []

    def keep(graph, examples):
        graphs.append({node.target for node in graph.graph.nodes})
        return graph

    tensors = operands()
    compiled = funcaot.compile(attention({}), backend=keep)
    repeated(2)(compiled, tensors)
    aten = torch.ops.aten
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    own = torch.ops.funcaot.attention_backward_pullback.default
    assert FLASH in graphs[0] and backward not in graphs[0]
    assert backward in graphs[1] and own not in graphs[1]
    assert own in graphs[2] and backward not in graphs[2]


def test_graphs_of_first_order_are_those_without_rules(monkeypatch):
    def graphs():
        found = []

        def keep(graph, examples):
            found.append(graph.code)
            return graph

        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
        compiled = funcaot.compile(layer, backend=keep)
        inputs = torch.randn(2, 5, 8, dtype=torch.float64, requires_grad=True)
        compiled(inputs).sum().backward()
        with torch.no_grad():
            compiled(inputs.detach())
        return found

    ruled = graphs()
    monkeypatch.setattr("funcaot.derivatives.kernels._installed._kernels", {})
    assert graphs() == ruled
    assert any("flash" in code for code in ruled)


def test_dropout_is_the_same_in_all_orders():
    query, key, value = operands()

    def run(query):
        return F.scaled_dot_product_attention(query, key, value, dropout_p=0.4)

    compiled = funcaot.compile(run, backend="eager")
    query.requires_grad_()

    def orders(function):
        torch.manual_seed(4)
        output = function(query)
        (first,) = torch.autograd.grad(output.sin().sum(), query, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), query, create_graph=True)
        (third,) = torch.autograd.grad(second.square().sum(), query)
        return output, first, second, third

    with sdpa_kernel(SDPBackend.MATH):
        wanted = orders(run)
    agree(orders(compiled), wanted, torch.float64)


def test_mask_with_a_gradient():
    tensors, mask = operands(), torch.randn(2, 1, 5, 5, dtype=torch.float64)

    def run(query, mask):
        return F.scaled_dot_product_attention(query, *tensors[1:], attn_mask=mask)

    compiled = funcaot.compile(run, backend="eager")
    agree(
        repeated(3)(compiled, (tensors[0], mask)),
        repeated(3)(run, (tensors[0], mask)),
        torch.float64,
    )


def test_open_sizes():
    compiled = funcaot.compile(attention({"is_causal": True}), backend="eager", dynamic=True)
    for length in (5, 6, 7):
        tensors = [torch.randn(2, 2, length, 4, dtype=torch.float64) for _ in range(3)]
        wanted = expected("second", attention({"is_causal": True}), tensors)
        agree(repeated(2)(compiled, tensors), wanted, torch.float64)


def test_modules_that_use_attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    inputs = torch.randn(2, 5, 8, dtype=torch.float64)
    direction = torch.randn_like(inputs)

    def product(function):
        gradient = torch.func.grad(lambda x: function(x).sin().sum())
        return torch.func.jvp(gradient, (inputs,), (direction,))[1]

    with sdpa_kernel(SDPBackend.MATH):
        wanted = product(layer)
    agree(product(funcaot.compile(layer, backend="eager")), wanted, torch.float64)
    with funcaot.install():
        agree(product(layer), wanted, torch.float64)


def test_nothing_stays_behind():
    query = operands()[0].requires_grad_()

    def second():
        output = F.scaled_dot_product_attention(query, query, query)
        (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
        torch.autograd.grad(first.sum(), query)

    with funcaot.install():
        second()
    with pytest.raises(RuntimeError, match="is not implemented"):
        second()
    with pytest.raises(ZeroDivisionError), funcaot.install():
        raise ZeroDivisionError
    with pytest.raises(RuntimeError, match="is not implemented"):
        second()
