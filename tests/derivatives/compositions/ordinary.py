"""More operators to compose: losses, pools, matrices, special functions and ordinary ones."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from tests.derivatives.compositions import plain
from tests.derivatives.compositions.piece import TARGET, made


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
