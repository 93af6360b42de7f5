"""Attentions for tests, and everything that is asked of one; the oracle is torch's MATH kernel."""

import random

import torch
import torch.autograd.forward_ad as forward_ad
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

LENGTH, FEATURES = 5, 4


def operands(dtype=torch.float64, *, heads=2, kv_heads=None, columns=LENGTH, batch=2):
    generator = torch.Generator().manual_seed(3)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    query = draw(batch, heads, LENGTH, FEATURES)
    key = draw(batch, kv_heads or heads, columns, FEATURES)
    return query, key, draw(batch, kv_heads or heads, columns, FEATURES)


def kinds(dtype=torch.float64):
    """Name, operands, keywords."""
    mask = torch.randn(LENGTH, LENGTH, generator=torch.Generator().manual_seed(5)).to(dtype)
    seen = mask > -0.5
    seen.fill_diagonal_(True)  # a row that sees nothing has no derivatives in MATH
    return {
        "plain": (operands(dtype), {}),
        "causal": (operands(dtype), {"is_causal": True}),
        "mask": (operands(dtype), {"attn_mask": mask}),
        "seen": (operands(dtype), {"attn_mask": seen}),
        "mask_of_heads": (operands(dtype), {"attn_mask": mask.expand(2, 1, -1, -1)}),
        "scale": (operands(dtype), {"scale": 0.3}),
        "grouped": (operands(dtype, heads=4, kv_heads=2), {"enable_gqa": True}),
        "other_length": (operands(dtype, columns=7), {}),
        "causal_other_length": (operands(dtype, columns=7), {"is_causal": True}),
    }


def attention(keywords):
    """Attention to a weighted sum, so that no derivative vanishes."""

    def run(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **keywords)

    return run


def loss_of(run):
    def loss(*tensors):
        return (run(*tensors) * 1.3).sin().sum()

    return loss


def leaves(tensors):
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def weights(tensor, seed):
    """Numbers of both signs, which a compiled function can make too."""
    draw = random.Random(seed).gauss
    drawn = torch.tensor([draw(0, 1) for _ in range(tensor.numel())], dtype=torch.float64)
    return drawn.reshape(tensor.shape).to(tensor.dtype)


def repeated(order):
    """Gradients of weighted gradients, by autograd."""

    def run(function, tensors):
        inputs = leaves(tensors)
        value = loss_of(function)(*inputs)
        for step in range(order):
            grads = torch.autograd.grad(value, inputs, create_graph=step < order - 1)
            value = sum((weights(g, 7 * step + i) * g).sum() for i, g in enumerate(grads))
        return grads

    return run


def jvp(function, tensors):
    tangents = tuple(weights(t, i) for i, t in enumerate(tensors))
    return torch.func.jvp(function, tuple(tensors), tangents)


def dual(function, tensors):
    with forward_ad.dual_level():
        made = [forward_ad.make_dual(t, weights(t, i)) for i, t in enumerate(tensors)]
        return tuple(forward_ad.unpack_dual(function(*made)))


def forward_over_reverse(function, tensors):
    gradient = torch.func.grad(loss_of(function), argnums=(0, 1, 2))
    tangents = tuple(weights(t, i) for i, t in enumerate(tensors))
    return torch.func.jvp(gradient, tuple(tensors), tangents)


def reverse_over_reverse(function, tensors):
    gradient = torch.func.grad(loss_of(function), argnums=(0, 1, 2))
    grads, pull = torch.func.vjp(gradient, *tensors)
    return pull(tuple(weights(g, i) for i, g in enumerate(grads)))


def reverse_over_forward(function, tensors):
    tangents = tuple(weights(t, i) for i, t in enumerate(tensors))

    def pushed(*values):
        return torch.func.jvp(loss_of(function), values, tangents)[1]

    return torch.func.grad(pushed, argnums=(0, 1, 2))(*tensors)


def forward_over_forward(function, tensors):
    tangents = tuple(weights(t, i) for i, t in enumerate(tensors))

    def pushed(*values):
        return torch.func.jvp(function, values, tangents)[1]

    return torch.func.jvp(pushed, tuple(tensors), tangents)


def dual_leaves(function, tensors):
    """Tangents and recorded gradients at one level."""
    inputs = leaves(tensors)
    with forward_ad.dual_level():
        made = [forward_ad.make_dual(t, weights(t, i)) for i, t in enumerate(inputs)]
        grads = torch.autograd.grad(loss_of(function)(*made), inputs, create_graph=True)
        return [tuple(forward_ad.unpack_dual(grad)) for grad in grads]


def gradient_of_batch(function, tensors):
    batch = [torch.stack([t, t.flip(-1)]) for t in tensors]

    def total(*values):
        return torch.func.vmap(loss_of(function))(*values).sum()

    return torch.func.grad(total, argnums=(0, 1, 2))(*batch)


def vmap(function, tensors):
    batch = [torch.stack([t, t.flip(-1), t * 0.5]) for t in tensors]
    return torch.func.vmap(function, in_dims=(0, None, 0))(batch[0], tensors[1], batch[2])


def vmap_of_grad(function, tensors):
    batch = [torch.stack([t, t.flip(-1)]) for t in tensors]
    gradient = torch.func.grad(loss_of(function), argnums=(0, 1, 2))
    return torch.func.vmap(gradient)(*batch)


def vmap_of_second(function, tensors):
    gradient = torch.func.grad(loss_of(function))

    def pulled(cotangent):
        return torch.func.vjp(gradient, *tensors)[1](cotangent)

    return torch.func.vmap(pulled)(torch.stack([weights(tensors[0], i) for i in range(3)]))


def batched_gradients(function, tensors):
    inputs = leaves(tensors)
    output = function(*inputs)
    cotangents = torch.stack([weights(output, i) for i in range(3)])
    return torch.autograd.grad(output, inputs, cotangents, is_grads_batched=True)


def third_by_func(function, tensors):
    def first(query):
        return (torch.func.grad(loss_of(function))(query, *tensors[1:]) ** 2).sum()

    def second(query):
        return (torch.func.grad(first)(query) ** 2).sum()

    return torch.func.grad(second)(tensors[0])


ASKED = {
    "first": repeated(1),
    "second": repeated(2),
    "third": repeated(3),
    "fourth": repeated(4),
    "jvp": jvp,
    "dual": dual,
    "forward_over_reverse": forward_over_reverse,
    "reverse_over_reverse": reverse_over_reverse,
    "reverse_over_forward": reverse_over_forward,
    "forward_over_forward": forward_over_forward,
    "vmap": vmap,
    "vmap_of_grad": vmap_of_grad,
    "vmap_of_second": vmap_of_second,
    "batched_gradients": batched_gradients,
    "third_by_func": third_by_func,
    "dual_leaves": dual_leaves,
    "gradient_of_batch": gradient_of_batch,
}


def expected(asked, function, tensors):
    with sdpa_kernel(SDPBackend.MATH):
        return ASKED[asked](function, tensors)
