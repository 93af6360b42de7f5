"""Operators to compose: each as it is called, and written out for eager.

A piece takes what came before it, ``h``, and a parameter ``p``, both of shape (n, 3, 4), and returns
a tensor of any shape. A maker draws a piece's form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from tests.derivatives.compositions import plain


@dataclass(frozen=True)
class Piece:
    name: str
    fused: Any
    plain: Any
    draws: bool = False
    batches: bool = True


def made(name, fused, written=None, **options):
    return Piece(name, fused, written or fused, **options)


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


TARGET = torch.tensor([0, 2, 1])


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


def losses(rng):
    kind = rng.choice(["huber", "soft_margin", "multi_margin", "smooth_l1", "nll", "gaussian"])
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0])

    def fused(h, p):
        if kind == "huber":
            return F.huber_loss(h * 2, p, delta=0.7, reduction="none")
        if kind == "soft_margin":
            return F.soft_margin_loss(h, signs.to(h.dtype).expand_as(h), reduction="none")
        if kind == "multi_margin":
            return F.multi_margin_loss(h[0] * p[0], TARGET, p=2, reduction="none")
        if kind == "smooth_l1":
            return F.smooth_l1_loss(h * 2, p, beta=0.7)
        if kind == "gaussian":
            return F.gaussian_nll_loss(h, p, p.square() + 0.3, reduction="none")
        return F.nll_loss(h[0].log_softmax(-1), TARGET)

    def written(h, p):
        if kind in ("huber", "smooth_l1"):
            apart = h * 2 - p
            near = apart.square() / 2
            far = 0.7 * (apart.abs() - 0.35)
            found = torch.where(apart.abs() < 0.7, near, far)
            return found if kind == "huber" else (found / 0.7).mean()
        if kind == "soft_margin":
            return F.softplus(-signs.to(h.dtype) * h)
        if kind == "multi_margin":
            return plain.margins(h[0] * p[0], TARGET, 2)
        if kind == "gaussian":
            var = p.square() + 0.3
            return (var.log() + (h - p).square() / var) / 2
        return -h[0].log_softmax(-1)[torch.arange(3), TARGET].mean()

    return made(kind, fused, written, batches=kind != "gaussian")


def pools(rng):
    kind = rng.choice(["max1", "max2", "adaptive", "average", "lp", "unpool"])

    def fused(h, p):
        if kind == "max1":
            return F.max_pool1d(h, 2, 1)
        if kind == "max2":
            return F.max_pool2d((h * p).unsqueeze(1), 2, 1)
        if kind == "adaptive":
            return F.adaptive_max_pool1d(h, 2)
        if kind == "lp":
            return F.lp_pool1d(h.exp(), 3.0, 2)
        if kind == "unpool":
            return F.max_unpool1d(*F.max_pool1d(h, 2, return_indices=True), 2) * p
        return F.avg_pool1d(h, 2, 1)

    def written(h, p):
        if kind == "max1":
            return plain.pooled(h, 2, 1)
        if kind == "max2":
            return (h * p).unsqueeze(1).unfold(2, 2, 1).unfold(3, 2, 1).flatten(4).amax(-1)
        if kind == "adaptive":
            return plain.pooled(h, 2, 2)
        if kind == "lp":
            return h.exp().unfold(-1, 2, 2).pow(3).sum(-1).pow(1 / 3)
        if kind == "unpool":
            pairs = h.unfold(-1, 2, 2)
            kept = pairs == pairs.amax(-1, keepdim=True)
            return (pairs * kept).flatten(2) * p
        return h.unfold(-1, 2, 1).mean(-1)

    return made(f"pool_{kind}", fused, written)


def resampled(rng):
    kind = rng.choice(["linear", "bilinear", "bicubic", "area", "unfold", "fold", "pixels", "pad"])

    def run(h, p):
        picture = (h * p).unsqueeze(1)
        if kind == "linear":
            return F.interpolate(h, size=7, mode="linear", align_corners=True)
        if kind in ("bilinear", "bicubic"):
            return F.interpolate(picture, scale_factor=1.5, mode=kind, antialias=True)
        if kind == "area":
            return F.interpolate(picture, size=(2, 3), mode="area")
        if kind == "unfold":
            return F.unfold(picture, 2, padding=1)
        if kind == "fold":
            return F.fold(F.unfold(picture, 2).sin(), (3, 4), 2)
        if kind == "pad":
            return F.pad(h, (2, 1), mode="reflect")
        return F.pixel_shuffle(h.reshape(len(h), 4, 3, 1), 2)

    return made(kind, run)


def _square(h, p):
    m = h[:, :, :3] * 0.4 + p[:, :, :3]
    return m @ m.mT + torch.eye(3, dtype=h.dtype) * 1.5 + 0.3 * h[:, :, 1:]


def matrices(rng):
    kind = rng.choice(["solve", "det", "slogdet", "cholesky", "inv", "qr", "lu", "exp", "eigvalsh"])

    def fused(h, p):
        m = _square(h, p)
        if kind == "solve":
            return torch.linalg.solve(m, p)
        if kind == "det":
            return torch.linalg.det(m)
        if kind == "slogdet":
            return torch.linalg.slogdet(m)[1]
        if kind == "cholesky":
            half = torch.linalg.cholesky((m + m.mT) / 2)
            rows, columns = torch.tensor([0, 1, 2, 1, 2, 2]), torch.tensor([0, 0, 0, 1, 1, 2])
            return half[:, rows, columns]
        if kind == "qr":
            return torch.linalg.qr(m)[1]
        if kind == "lu":
            return torch.linalg.lu_solve(*torch.linalg.lu_factor(m), p)
        if kind == "exp":
            return torch.linalg.matrix_exp(m * 0.2)
        if kind == "eigvalsh":
            return torch.linalg.eigvalsh((m + m.mT) / 2)
        return torch.linalg.inv(m)

    def written(h, p):
        m = _square(h, p)
        if kind in ("solve", "lu"):
            return torch.linalg.inv(m) @ p
        if kind == "det":
            return plain.det3(m)
        if kind == "slogdet":
            return plain.det3(m).abs().log()
        if kind == "cholesky":
            return plain.cholesky3((m + m.mT) / 2)
        return fused(h, p)

    return made(kind, fused, written)


def specials(rng):
    kind = rng.choice(["gammainc", "gammaincc", "zeta", "hardsigmoid", "glu", "mixed"])

    def fused(h, p):
        a, x = p.sigmoid() + 0.6, h.sigmoid() * 2 + 0.2
        if kind == "gammainc":
            return torch.special.gammainc(a, x)
        if kind == "gammaincc":
            return torch.special.gammaincc(a, x)
        if kind == "zeta":
            return torch.special.zeta(a + 1.2, x)
        if kind == "glu":
            return F.glu(h * p, -1)
        if kind == "mixed":
            return torch.special.xlog1py(a, x) * torch.special.erfcx(x) * torch.special.i0e(h)
        return F.hardsigmoid(h * 4)

    def written(h, p):
        a, x = p.sigmoid() + 0.6, h.sigmoid() * 2 + 0.2
        if kind == "gammainc":
            return plain.gammainc(a, x)
        if kind == "gammaincc":
            return 1 - plain.gammainc(a, x)
        if kind == "zeta":
            return plain.zeta(a + 1.2, x)
        if kind == "glu":
            one, two = (h * p).chunk(2, -1)
            return one * two.sigmoid()
        if kind == "mixed":
            return fused(h, p)
        return (h * 4 / 6 + 0.5).clamp(0, 1)

    return made(kind, fused, written)


def products(rng):
    kind = rng.choice(["prod", "cumprod", "amax", "scatter", "index", "segment", "cat", "rfft"])

    def fused(h, p):
        if kind == "prod":
            return (h + p).prod(-1)
        if kind == "cumprod":
            return (h + p).cumprod(1)
        if kind == "amax":
            return torch.cat([(h + p).amax(-1), h.median(1).values, h.kthvalue(2, 1).values], -1)
        if kind == "scatter":
            places = torch.tensor([[0, 1, 1, 0]]).expand(3, 4)
            return p[0].scatter_reduce(0, places, h[0], "prod", include_self=True)
        if kind == "index":
            return p[0].index_reduce(0, torch.tensor([0, 2]), h[0, :2], "mean")
        if kind == "segment":
            return torch.segment_reduce(h[0], "mean", lengths=torch.tensor([1, 2]))
        if kind == "cat":
            return torch._chunk_cat([h[0], p[0]], 0, 2)
        return torch.fft.irfft(torch.fft.rfft(h * p) * 0.5, n=5).abs()

    def written(h, p):
        if kind == "prod":
            a, b, c, d = (h + p).unbind(-1)
            return a * b * c * d
        if kind == "cumprod":
            return plain.cumulated(h + p, 1)
        if kind == "scatter":
            rows = [p[0, 0], p[0, 1], p[0, 2]]
            low = h[0, 0] * h[0, 1] * h[0, 2]
            ones = torch.ones_like(low)
            at = torch.tensor([True, False, False, True])
            return torch.stack(
                [
                    rows[0] * torch.where(at, low, ones),
                    rows[1] * torch.where(at, ones, low),
                    rows[2],
                ]
            )
        if kind == "index":
            return torch.stack([(p[0, 0] + h[0, 0]) / 2, p[0, 1], (p[0, 2] + h[0, 1]) / 2])
        if kind == "segment":
            return torch.stack([h[0, 0], (h[0, 1] + h[0, 2]) / 2])
        if kind == "cat":
            pad = torch.zeros(1, 4, dtype=h.dtype)
            one, two = torch.cat([h[0], pad]), torch.cat([p[0], pad])
            return torch.cat([one.reshape(2, -1), two.reshape(2, -1)], 1)
        return fused(h, p)

    return made(kind, fused, written, batches=kind != "segment")


class Cube(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])
        ctx.save_for_forward(inputs[0])

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad

    @staticmethod
    def jvp(ctx, tangent):
        return 3 * ctx.saved_tensors[0] ** 2 * tangent


def ordinary(rng):
    kind = rng.choice(
        ["matmul", "inplace", "views", "function", "detach", "softmax", "where", "conv"]
    )

    def fused(h, p):
        if kind == "matmul":
            return h @ p.mT
        if kind == "inplace":
            made_here = h * 1.1
            made_here[:, 0].mul_(p[:, 1])
            made_here.transpose(1, 2)[:, 1].add_(p[:, :, 2]).sin_()
            return made_here
        if kind == "views":
            return h.transpose(0, 2).flip(1).as_strided((4, 3), (1, 4)) * p[0].mT.expand(4, 3)
        if kind == "function":
            return Cube.apply(h * p)
        if kind == "detach":
            return h * (p * h).detach() + p
        if kind == "softmax":
            return (h * p).softmax(1).cumsum(-1)
        if kind == "conv":
            return F.conv1d(h, p[:2, :, :2], padding=1)
        return torch.where(h > p, h.exp(), p * h)

    def written(h, p):
        if kind == "inplace":
            x = h * 1.1
            x = torch.cat([(x[:, :1] * p[:, 1:2]), x[:, 1:]], 1)
            middle = (x[:, :, 1:2] + p[:, :, 2:3]).sin()
            return torch.cat([x[:, :, :1], middle, x[:, :, 2:]], 2)
        if kind == "function":
            return (h * p) ** 3
        return fused(h, p)

    return made(kind, fused, written, batches=kind != "views")


def random_ops(rng):
    kind = rng.choice(["dropout", "noise", "alpha"])

    def run(h, p):
        if kind == "dropout":
            return F.dropout(h, 0.4) * p
        if kind == "alpha":
            return F.alpha_dropout(h * p, 0.3)
        return h * torch.randn_like(h) + p

    return made(kind, run, draws=True, batches=False)


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
