"""Operators to compose: each as it is called, and written out for eager.

A piece takes what came before it, ``h``, and a parameter ``p``, both of shape (n, 3, 4), and gives
a tensor of any shape. A maker draws a piece's form.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tests.derivatives.compositions import plain
from tests.derivatives.compositions.ordinary import (
    losses,
    matrices,
    ordinary,
    pools,
    products,
    random_ops,
    resampled,
    specials,
)
from tests.derivatives.compositions.piece import TARGET, made


def _masks(kind, p):
    if kind == "mask":
        return p[:, :, :3] * 1.5
    if kind == "seen":
        return torch.ones(3, 3, dtype=torch.bool).tril(1)
    return None


def attention(rng):
    kind = rng.choice(["plain", "causal", "mask", "seen", "scale", "longer", "grouped"])
    kernel = rng.choice([None, SDPBackend.FLASH_ATTENTION, SDPBackend.MATH])
    options = {"is_causal": kind == "causal", "scale": 0.3 if kind == "scale" else None}

    def parts(h, p):
        query, key, value = h, p, h * p
        if kind == "longer":
            key, value = torch.cat([p, h], 1), torch.cat([value, p], 1)
        return query, key, value, _masks(kind, p)

    def fused(h, p):
        query, key, value, mask = parts(h, p)
        mask = mask if mask is None or mask.dim() == 2 else mask.unsqueeze(1)
        query = torch.stack([query, query * 0.5], 1)
        if kind == "grouped":
            key, value = key.unsqueeze(1), value.unsqueeze(1)
        else:
            key, value = torch.stack([key, key], 1), torch.stack([value, value.sin()], 1)

        def run():
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=mask, enable_gqa=kind == "grouped", **options
            )

        if kernel is None:
            return run()
        with sdpa_kernel([kernel, SDPBackend.MATH]):
            return run()

    def written(h, p):
        query, key, value, mask = parts(h, p)
        causal, scale = options["is_causal"], options["scale"]
        second = value if kind == "grouped" else value.sin()
        one = plain.attention(query, key, value, mask, causal=causal, scale=scale)
        two = plain.attention(query * 0.5, key, second, mask, causal=causal, scale=scale)
        return torch.stack([one, two], 1)

    return made(f"attention_{kind}", fused, written)


def attention_dropout(rng):
    def fused(h, p):
        q, k, v = (t.unsqueeze(1) for t in (h, p, h * p))
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.4)

    def written(h, p):
        with sdpa_kernel(SDPBackend.MATH):
            return fused(h, p)

    return made("attention_dropout", fused, written, draws=True, batches=False)


def norms(rng):
    kind = rng.choice(["layer", "rms", "group", "batch", "stats", "instance"])
    affine = rng.random() < 0.7
    eps = rng.choice([1e-5, 0.1])

    def fused(h, p):
        w, b = (p[0, 0], p[0, 1]) if affine else (None, None)
        if kind == "layer":
            return F.layer_norm(h, (4,), w, b, eps)
        if kind == "rms":
            return F.rms_norm(h, (4,), w, eps)
        w, b = (p[0, :, 0], p[0, :, 1]) if affine else (None, None)
        if kind == "group":
            return F.group_norm(h, 1, w, b, eps)
        if kind == "instance":
            return F.instance_norm(h, weight=w, bias=b, eps=eps)
        mean, var = (h.new_zeros(3), h.new_ones(3)) if kind == "stats" else (None, None)
        return F.batch_norm(h, mean, var, w, b, training=True, eps=eps)

    def written(h, p):
        dims = {"layer": (2,), "rms": (2,), "group": (1, 2), "instance": (2,)}.get(kind, (0, 2))
        found = plain.rms_normed(h, dims, eps) if kind == "rms" else plain.normed(h, dims, eps)
        if not affine:
            return found
        if kind in ("layer", "rms"):
            return found * p[0, 0] + (p[0, 1] if kind == "layer" else 0)
        return found * p[0, :, :1] + p[0, :, 1:2]

    return made(f"norm_{kind}", fused, written, batches=kind != "stats")


def distances(rng):
    p_norm = rng.choice([1.0, 1.5, 2.0, 3.0, float("inf")])
    many = rng.random() < 0.3

    def other(h, p):
        y = p * 2 + 0.3
        return torch.cat([y + k for k in range(9)], 1) if many else y

    return made(
        f"cdist_{p_norm}",
        lambda h, p: torch.cdist(h, other(h, p), p=p_norm),
        lambda h, p: plain.distances(h, other(h, p), p_norm),
    )


def pdist(rng):
    p_norm = rng.choice([1.0, 2.0, 3.0])

    def written(h, p):
        rows = h[0] + p[0]
        found = [
            plain.distances(rows[i : i + 1], rows[j : j + 1], p_norm).reshape(())
            for i in range(3)
            for j in range(i + 1, 3)
        ]
        return torch.stack(found)

    return made("pdist", lambda h, p: F.pdist(h[0] + p[0], p=p_norm), written)


def grid(rng):
    border, aligned = rng.random() < 0.5, rng.random() < 0.5

    def parts(h, p):
        return h.unsqueeze(1) * p.unsqueeze(1).cos(), (p * 0.9).sin().reshape(len(p), 3, 2, 2)

    def fused(h, p):
        mode = "border" if border else "zeros"
        return F.grid_sample(*parts(h, p), padding_mode=mode, align_corners=aligned)

    def written(h, p):
        return plain.sampled(*parts(h, p), border=border, aligned=aligned)

    return made("grid_sample", fused, written)


def ctc(rng):
    targets = torch.tensor(rng.choice([[[1], [2], [3]], [[1, 2], [3, 3], [2, 1]]]))

    def logits(h, p):
        return torch.cat([h, p, h * p], 0)[:6].log_softmax(-1)

    def fused(h, p):
        lengths = torch.full((3,), targets.shape[1])
        return F.ctc_loss(logits(h, p), targets, torch.full((3,), 6), lengths, reduction="none")

    return made("ctc", fused, lambda h, p: plain.ctc(logits(h, p), targets), batches=False)


def weight_norm(rng):
    dim = rng.choice([0, 1])

    def written(h, p):
        v, g = h[0], _magnitude(p)
        return v * (g / v.square().sum(1 - dim, keepdim=True).sqrt())

    def _magnitude(p):
        return p[0].sum(1 - dim, keepdim=True)

    return made("weight_norm", lambda h, p: torch._weight_norm(h[0], _magnitude(p), dim), written)


def recurrent(rng):
    kind = rng.choice(["LSTM", "GRU", "RNN"])
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]

    def weights(p):
        flat = torch.cat([p.reshape(-1), p.reshape(-1).sin()])
        w = torch.cat([flat * (0.3 + 0.1 * k) for k in range(4)])
        return (
            w[: 8 * gates].reshape(2 * gates, 4),
            w[1 : 1 + 4 * gates].reshape(2 * gates, 2),
            w[2 : 2 + 2 * gates],
            w[3 : 3 + 2 * gates],
        )

    def fused(h, p):
        hidden = p[:1, :, :2]
        if kind == "LSTM":
            given = (hidden, hidden * 0.5)
            found = torch.lstm(h, given, weights(p), True, 1, 0.0, True, False, False)
        else:
            op = torch.gru if kind == "GRU" else torch.rnn_tanh
            found = op(h, hidden, weights(p), True, 1, 0.0, True, False, False)
        return torch.cat([t.reshape(-1) for t in found])

    return made(kind, fused, lambda h, p: plain.recurrent(kind, h, p[0, :, :2], weights(p)))


def bag(rng):
    mode = rng.choice(["sum", "mean", "max", "weighted"])
    indices, starts = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([0, 2])

    def fused(h, p):
        weights = p.reshape(-1)[:5] if mode == "weighted" else None
        kind = "sum" if mode == "weighted" else mode
        return F.embedding_bag(indices, h[0], starts, mode=kind, per_sample_weights=weights)

    def written(h, p):
        rows = h[0][indices]
        rows = rows * p.reshape(-1)[:5, None] if mode == "weighted" else rows
        bags = rows[:2], rows[2:]
        how = {"mean": lambda r: r.mean(0), "max": lambda r: r.amax(0)}.get(mode)
        if mode == "max":  # a row that is there twice would share its gradient
            return torch.stack([h[0][[0, 2]].amax(0), h[0][[2, 1, 0]].amax(0)])
        return torch.stack([how(r) if how else r.sum(0) for r in bags])

    return made(f"bag_{mode}", fused, written, batches=False)


def entropies(rng):
    smoothing, linear = rng.choice([0.0, 0.2]), rng.random() < 0.4
    chunked = rng.random() < 0.6

    def fused(h, p):
        weight = torch.tensor([0.5, 1.0, 2.0, 0.7], dtype=h.dtype)
        if not linear:
            return F.cross_entropy(h[0], TARGET, weight=weight, label_smoothing=smoothing)
        options = None
        if chunked:
            options = torch.nn.LinearCrossEntropyOptions(
                batch_chunk_size=2, allow_retain_graph=True
            )
        layer = torch.cat([p[0], p[1, :1]])
        return F.linear_cross_entropy(
            h[0], layer, TARGET, weight=weight, reduction="mean", options=options
        )

    def written(h, p):
        weight = torch.tensor([0.5, 1.0, 2.0, 0.7], dtype=h.dtype)
        logits = h[0] @ torch.cat([p[0], p[1, :1]]).T if linear else h[0]
        return plain.cross_entropy(logits, TARGET, weight, 0.0 if linear else smoothing)

    return made("linear_cross_entropy" if linear else "cross_entropy", fused, written)


def checkpointed(rng):
    inner = rng.choice([attention, norms, distances, recurrent, matrices, specials])(rng)

    def fused(h, p):
        return checkpoint(inner.fused, h, p, use_reentrant=False)

    return made(f"checkpoint:{inner.name}", fused, inner.plain, batches=inner.batches)


MAKERS = (
    attention, attention, attention, attention_dropout, norms, norms, distances, pdist, grid, ctc,
    weight_norm, recurrent, bag, entropies, losses, pools, resampled, matrices, specials, products,
    ordinary, ordinary, random_ops, checkpointed,
)  # fmt: skip
