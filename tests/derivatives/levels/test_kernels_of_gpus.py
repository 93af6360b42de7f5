"""Rules for the fused kernels of attention that only GPUs and other devices have.

Written-out kernels stand for them on the CPU, so what is tested is how funcaot reads their
schemas, at every order and level; ``tests/cuda`` has the kernels themselves. Also every name that
torch gives a fused kernel, against torch's MATH kernel.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch.library import Library

import funcaot
from funcaot.errors import UnsupportedError
from tests.derivatives.attention import ASKED, attention, expected, kinds
from tests.derivatives.test_attention import agree

aten = torch.ops.aten
NAMES = ("flash_attention", "efficient_attention", "cudnn_attention",
         "fused_attention_overrideable")  # fmt: skip
PREFIX = "_scaled_dot_product_"
FAST = {("causal", "second"), ("mask", "forward_over_reverse"), ("scale", "vmap_of_grad"),
        ("mask", "vmap")}  # fmt: skip


def weights_of(given):
    query, key, bias = given["query"], given["key"], given.get("attn_bias")
    scale = given["scale"] if given["scale"] is not None else 1 / math.sqrt(query.shape[-1])
    scores = query @ key.mT * scale
    if bias is not None:
        scores = scores + bias
    if given["is_causal"]:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1), scale


def forward_of(given):
    weights, _ = weights_of(given)
    return [weights @ given["value"]]


def backward_of(given):
    arriving = next(given[name] for name in ("grad_out", "grad_out_") if name in given)
    weights, scale = weights_of(given)
    sent = arriving @ given["value"].mT
    scores = weights * (sent - (weights * sent).sum(-1, keepdim=True))
    found = [scores @ given["key"] * scale, scores.mT @ given["query"] * scale]
    return [*found, weights.mT @ arriving, scores]


def kernel_of(op, compute):
    """A kernel for the CPU, whose results lie as torch says that they do on a device."""
    names = [argument.name for argument in op._schema.arguments]

    def on(device, value):
        return value.to(device) if isinstance(value, torch.Tensor) else value

    def run(*args, **kwargs):
        given = {a.name: a.default_value for a in op._schema.arguments if a.has_default_value()}
        given |= {**dict(zip(names, args, strict=False)), **kwargs}
        places = op(*(on("meta", a) for a in args), **{k: on("meta", v) for k, v in kwargs.items()})
        made = []
        values = [*compute(given), *[None] * len(places)]
        for place, value in zip(places, values, strict=False):
            if not isinstance(place, torch.Tensor):
                made.append(place)
                continue
            made.append(torch.empty_strided(place.shape, place.stride(), dtype=place.dtype).zero_())
            if value is not None and value.shape == place.shape:
                made[-1].copy_(value)
        return tuple(made)

    return run


@pytest.fixture(scope="module", autouse=True)
def kernels():
    library = Library("aten", "IMPL")
    for name in NAMES:
        for suffix, compute in (("", forward_of), ("_backward", backward_of)):
            op = getattr(aten, f"{PREFIX}{name}{suffix}").default
            library.impl(op, kernel_of(op, compute), "CPU")
    yield
    library._destroy()


def called(name, keywords):
    """The kernel of that name, called as torch's function calls it."""
    op = getattr(aten, f"{PREFIX}{name}").default
    names = {argument.name for argument in op._schema.arguments}
    options = {"is_causal": keywords.get("is_causal", False), "scale": keywords.get("scale")}
    if "compute_log_sumexp" in names:
        options["compute_log_sumexp"] = True

    def run(query, key, value):
        mask = keywords.get("attn_mask")
        if "attn_bias" in names:
            shape = (*query.shape[:3], key.shape[2])
            bias = None if mask is None else mask.expand(shape)
            return op(query, key, value, attn_bias=bias, **options)[0]
        return op(query, key, value, **options)[0]

    return run


def cases():
    for name in NAMES:
        for kind in ("plain", "causal", "scale", "mask", "other_length"):
            if kind == "mask" and name == "flash_attention":
                continue  # takes none
            for asked in ASKED:
                marks = [] if (kind, asked) in FAST else [pytest.mark.slow, pytest.mark.long]
                yield pytest.param(name, kind, asked, marks=marks, id=f"{name}-{kind}-{asked}")


@pytest.mark.parametrize(("name", "kind", "asked"), list(cases()))
def test_every_name(name, kind, asked):
    tensors, keywords = kinds()[kind]
    wanted = expected(asked, attention(keywords), tensors)
    with funcaot.install():
        agree(ASKED[asked](called(name, keywords), tensors), wanted, torch.float64)
    compiled = funcaot.compile(called(name, keywords), backend="eager")
    agree(ASKED[asked](compiled, tensors), wanted, torch.float64)


@pytest.mark.parametrize("name", ["efficient_attention", "fused_attention_overrideable"])
@pytest.mark.parametrize("asked", ["first", "second", "third", "jvp", "reverse_over_reverse"])
def test_a_bias_that_moves(name, asked):
    query, key, value = kinds()["plain"][0]
    bias = torch.randn(2, 2, 5, 5, generator=torch.Generator().manual_seed(4)).double()

    def run(query, key, bias):
        return called(name, {"attn_mask": bias})(query, key, value)

    def plain(query, key, bias):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias)

    with funcaot.install():
        found = ASKED[asked](run, (query, key, bias))
    agree(found, expected(asked, plain, (query, key, bias)), torch.float64)


@pytest.mark.parametrize("name", NAMES)
def test_weights_that_a_kernel_drops_are_refused(name):
    op = getattr(aten, f"{PREFIX}{name}").default
    query = kinds()["plain"][0][0].requires_grad_()
    given = {"compute_log_sumexp": True, "attn_bias": None}
    names = {argument.name for argument in op._schema.arguments}
    options = {key: value for key, value in given.items() if key in names}
    with funcaot.install():
        output = op(query, query, query, dropout_p=0.3, **options)[0]
        (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
        with pytest.raises(UnsupportedError, match="at random"):
            torch.autograd.grad(first.sum(), query)
