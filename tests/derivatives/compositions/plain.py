"""Fused operators written out in ops that eager torch differentiates to any order."""

import math

import torch
import torch.nn.functional as F


def attention(query, key, value, mask=None, *, causal=False, scale=None):
    scores = query @ key.mT * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = torch.where(seen, scores, torch.full((), -math.inf, dtype=scores.dtype))
    if mask is not None and mask.dtype == torch.bool:
        scores = torch.where(mask, scores, torch.full((), -math.inf, dtype=scores.dtype))
    elif mask is not None:
        scores = scores + mask
    scores = (scores - scores.amax(-1, keepdim=True).detach()).exp()
    return scores / scores.sum(-1, keepdim=True) @ value


def normed(x, dims, eps):
    centered = x - x.mean(dims, keepdim=True)
    return centered * (centered.square().mean(dims, keepdim=True) + eps).rsqrt()


def rms_normed(x, dims, eps):
    return x * (x.square().mean(dims, keepdim=True) + eps).rsqrt()


def distances(x, y, p):
    apart = x.unsqueeze(-2) - y.unsqueeze(-3)
    if p == 2.0:
        return apart.square().sum(-1).sqrt()
    if p == math.inf:
        return apart.abs().amax(-1)
    return apart.abs().pow(p).sum(-1).pow(1 / p)


def sampled(picture, places, *, border, aligned):
    """``grid_sample``, bilinear, of a picture (N, C, H, W)."""
    batch, _, height, width = picture.shape
    sizes = torch.tensor([width, height], dtype=picture.dtype)
    if aligned:
        at = (places + 1) / 2 * (sizes - 1)
    else:
        at = ((places + 1) * sizes - 1) / 2
    if border:
        at = torch.minimum(at.clamp(min=0), sizes - 1)
    low = at.detach().floor()
    rest = at - low
    total = 0
    rows = torch.arange(batch).reshape(-1, 1, 1)
    for down in (0, 1):
        for right in (0, 1):
            x, y = (low[..., 0] + right).long(), (low[..., 1] + down).long()
            inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            weight_x = rest[..., 0] if right else 1 - rest[..., 0]
            weight_y = rest[..., 1] if down else 1 - rest[..., 1]
            weight = torch.where(inside, weight_x * weight_y, torch.zeros_like(weight_x))
            seen = picture[rows, :, y.clamp(0, height - 1), x.clamp(0, width - 1)]
            total = total + seen * weight.unsqueeze(-1)
    return total.permute(0, 3, 1, 2)


def ctc(log_probs, targets):
    """The losses of ``ctc_loss`` (T, N, C), blank 0, all lengths full."""
    steps, batch, _ = log_probs.shape
    losses = []
    for row in range(batch):
        labels = [0]
        for target in targets[row].tolist():
            labels += [target, 0]
        one = log_probs[:, row]
        paths = [one[0, labels[0]], one[0, labels[1]]] + [None] * (len(labels) - 2)
        for step in range(1, steps):
            following = []
            for place, label in enumerate(labels):
                before = [paths[place]]
                before += [paths[place - 1]] if place else []
                skips = place > 1 and label != 0 and label != labels[place - 2]
                before += [paths[place - 2]] if skips else []
                known = [value for value in before if value is not None]
                reached = torch.stack(known).logsumexp(0) if known else None
                following.append(None if reached is None else reached + one[step, label])
            paths = following
        losses.append(-torch.stack(paths[-2:]).logsumexp(0))
    return torch.stack(losses)


def cell(kind, x, state, weights):
    w, u, b, c = weights
    given, kept = x @ w.T + b, state[0] @ u.T + c
    if kind == "GRU":
        (r, z, n), (hr, hz, hn) = given.chunk(3, -1), kept.chunk(3, -1)
        gate = (z + hz).sigmoid()
        new = (n + (r + hr).sigmoid() * hn).tanh()
        return ((1 - gate) * new + gate * state[0],)
    if kind == "RNN":
        return ((given + kept).tanh(),)
    i, f, g, o = (given + kept).chunk(4, -1)
    long = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * long.tanh(), long


def recurrent(kind, x, hidden, weights):
    """Over the first dimension; both the outputs and the last state."""
    state, outputs = (hidden, hidden * 0.5) if kind == "LSTM" else (hidden,), []
    for step in x.unbind(0):
        state = cell(kind, step, state, weights)
        outputs.append(state[0])
    return torch.cat([torch.stack(outputs).reshape(-1), *[s.reshape(-1) for s in state]])


def gammainc(a, x):
    """The lower one, by its series; for ``x`` below 3."""
    total, term = 0, torch.ones_like(a * x) / a
    for step in range(1, 45):
        total = total + term
        term = term * x / (a + step)
    return total * (a * x.log() - x - torch.lgamma(a)).exp()


def zeta(s, q):
    """Hurwitz's, by Euler and Maclaurin."""
    end = 14
    total = sum((q + k) ** -s for k in range(end))
    at, bernoulli = q + end, (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730)
    total = total + at ** (1 - s) / (s - 1) + at**-s / 2
    rising = s
    for place, number in enumerate(bernoulli, start=1):
        total = total + number / math.factorial(2 * place) * rising * at ** (-s - 2 * place + 1)
        rising = rising * (s + 2 * place - 1) * (s + 2 * place)
    return total


def cross_entropy(logits, target, weight, smoothing):
    """The mean, with classes weighted."""
    logged = logits - logits.logsumexp(-1, keepdim=True)
    rows = torch.arange(len(target))
    right = -(logged[rows, target] * weight[target]).sum()
    smooth = -(logged * weight).sum()
    total = (1 - smoothing) * right + smoothing / logits.shape[-1] * smooth
    return total / weight[target].sum()


def det3(m):
    a, b, c = m.unbind(-2)
    return (a * torch.linalg.cross(b, c)).sum(-1)


def cholesky3(m):
    a = m[..., 0, 0].sqrt()
    b, c = m[..., 1, 0] / a, m[..., 2, 0] / a
    d = (m[..., 1, 1] - b * b).sqrt()
    e = (m[..., 2, 1] - b * c) / d
    f = (m[..., 2, 2] - c * c - e * e).sqrt()
    return torch.stack([a, b, c, d, e, f], -1)


def cumulated(x, dim):
    products = []
    for part in x.unbind(dim):
        products.append(part if not products else products[-1] * part)
    return torch.stack(products, dim)


def pooled(x, size, stride):
    return x.unfold(-1, size, stride).amax(-1)


def margins(x, target, p):
    right = x.gather(1, target.unsqueeze(1))
    others = F.one_hot(target, x.shape[1]) == 0
    return ((1 - right + x).clamp(min=0) ** p * others).sum(1) / x.shape[1]
