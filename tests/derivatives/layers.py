"""Small layers from rows to rows of the same shape, each beside itself in elementary ops.

Eager can't differentiate, push forward or batch many of the fused forms, so what is compiled is
compared with the elementary form, to which eager applies every transform.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

ROWS, COLUMNS = 3, 4
SHAPE = (ROWS, COLUMNS)
Rows = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Layer:
    """``fused`` is what users write; ``plain`` computes the same of ops without gaps."""

    fused: Rows
    plain: Rows


def fixed(x: torch.Tensor, *shape: int, seed: int = 0) -> torch.Tensor:
    """A constant of the dtype of ``x``, that needs no random numbers when it is captured."""
    count = torch.Size(shape).numel()
    steps = torch.arange(count, dtype=x.dtype) + (1.7 * seed + 0.3)
    return (steps * 1.37).sin().reshape(shape) * 0.6


# --- recurrent ---------------------------------------------------------------------------------


def _weights(x, gates):
    return [fixed(x, gates * COLUMNS, COLUMNS, seed=seed) for seed in range(2)]


def _recurrent(name, gates):
    def fused(x):
        state = fixed(x, 1, 1, COLUMNS, seed=5)
        states = (state, state * 0.5) if name == "lstm" else state
        run = getattr(torch, name)
        return run(x[None], states, _weights(x, gates), False, 1, 0.0, False, False, True)[0][0]

    def plain(x):
        hidden = fixed(x, 1, 1, COLUMNS, seed=5)[0, 0]
        cell, rows = hidden * 0.5, []
        for row in x.unbind(0):
            hidden, cell = _STEPS[name](row, hidden, cell, *_weights(x, gates))
            rows.append(hidden)
        return torch.stack(rows)

    return Layer(fused, plain)


def _lstm_step(row, hidden, cell, w, u):
    gate, forget, new, out = (w @ row + u @ hidden).chunk(4)
    cell = forget.sigmoid() * cell + gate.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def _gru_step(row, hidden, cell, w, u):
    reset, update, new = (w @ row).chunk(3)
    old_reset, old_update, old = (u @ hidden).chunk(3)
    update = (update + old_update).sigmoid()
    new = (new + (reset + old_reset).sigmoid() * old).tanh()
    return new + update * (hidden - new), cell


_STEPS = {
    "rnn_tanh": lambda row, hidden, cell, w, u: ((w @ row + u @ hidden).tanh(), cell),
    "rnn_relu": lambda row, hidden, cell, w, u: ((w @ row + u @ hidden).relu(), cell),
    "lstm": _lstm_step,
    "gru": _gru_step,
}

# --- attention ---------------------------------------------------------------------------------


def _attention(causal=False, masked=False, heads=1):
    def parts(x):
        halves = x.reshape(ROWS, heads, COLUMNS // heads).transpose(0, 1)[None]
        return halves, halves.cos(), halves * 1.3

    def mask(x):
        return fixed(x, ROWS, ROWS, seed=3) if masked else None

    def fused(x):
        found = F.scaled_dot_product_attention(*parts(x), attn_mask=mask(x), is_causal=causal)
        return found[0].transpose(0, 1).reshape(SHAPE)

    def plain(x):
        query, key, value = parts(x)
        scores = query @ key.transpose(-1, -2) * (COLUMNS // heads) ** -0.5
        if masked:
            scores = scores + mask(x)
        if causal:
            hidden = torch.ones(ROWS, ROWS, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ value)[0].transpose(0, 1).reshape(SHAPE)

    return Layer(fused, plain)


# --- the others --------------------------------------------------------------------------------


def _cdist(p, points=COLUMNS):
    def fused(x):
        return torch.cdist(x, fixed(x, points, COLUMNS, seed=2) * 3, p=p)[:, :COLUMNS]

    def plain(x):
        distances = (x[:, None] - fixed(x, points, COLUMNS, seed=2) * 3).abs()
        found = distances.sum(-1) if p == 1 else (distances**p).sum(-1) ** (1 / p)
        return found[:, :COLUMNS]

    return Layer(fused, plain)


def _standardized(x, dims):
    centered = x - x.mean(dims, keepdim=True)
    return centered * (centered.square().mean(dims, keepdim=True) + 1e-5).rsqrt()


def _rolled(x, run):
    """Products along rows."""
    made = [x[0]]
    for row in x[1:]:
        made.append(run(made[-1], row))
    return torch.stack(made)


def _bag(x):
    indices, starts = torch.tensor([0, 2, 2, 1, 0]), torch.tensor([0, 2, 3])
    return F.embedding_bag(indices, x, starts, mode="mean")


def _weight_norm(x):
    return torch._weight_norm(x, fixed(x, ROWS, 1, seed=4), 0)


def _grid(x):
    grid = fixed(x, 1, ROWS, COLUMNS, 2, seed=6)
    return F.grid_sample(x[None, None], grid, align_corners=True)[0, 0]


def _plain_grid(x):
    grid = fixed(x, ROWS, COLUMNS, 2, seed=6)
    across, down = (grid[..., 0] + 1) * (COLUMNS - 1) / 2, (grid[..., 1] + 1) * (ROWS - 1) / 2
    near = (1 - (down[..., None] - torch.arange(ROWS)).abs()).relu()
    beside = (1 - (across[..., None] - torch.arange(COLUMNS)).abs()).relu()
    return torch.einsum("ijr,ijc,rc->ij", near, beside, x)


def _pool(x):
    return F.max_pool1d(x[None], 3, stride=1, padding=1)[0]


def _plain_pool(x):
    padded = F.pad(x, (1, 1), value=-100.0)
    return torch.stack([padded[:, i : i + COLUMNS] for i in range(3)]).amax(0)


def _conv(x):
    return F.conv1d(x[None], fixed(x, ROWS, ROWS, 3, seed=7), padding=1)[0]


def _plain_conv(x):
    padded = F.pad(x, (1, 1))
    windows = torch.stack([padded[:, i : i + COLUMNS] for i in range(3)], -1)
    return torch.einsum("oik,ijk->oj", fixed(x, ROWS, ROWS, 3, seed=7), windows)


def _solved(x):
    return torch.linalg.solve(torch.eye(ROWS, dtype=x.dtype) * 3 + 0.1 * x @ x.T, x)


def _plain_solved(x):
    return torch.linalg.inv(torch.eye(ROWS, dtype=x.dtype) * 3 + 0.1 * x @ x.T) @ x


def _batch_norm(x):
    return F.batch_norm(x, None, None, training=True)


def _cross_entropy(x):
    classes = torch.tensor([0, 3, 1])
    return x * F.cross_entropy(x, classes, reduction="none")[:, None]


def _plain_cross_entropy(x):
    picked = torch.nn.functional.one_hot(torch.tensor([0, 3, 1]), COLUMNS).to(x.dtype)
    return x * (x.logsumexp(-1) - (picked * x).sum(-1))[:, None]


LAYERS: dict[str, Layer] = {
    "rnn_tanh": _recurrent("rnn_tanh", 1),
    "rnn_relu": _recurrent("rnn_relu", 1),
    "lstm": _recurrent("lstm", 4),
    "gru": _recurrent("gru", 3),
    "attention": _attention(),
    "attention_causal": _attention(causal=True),
    "attention_masked": _attention(masked=True),
    "attention_of_heads": _attention(causal=True, heads=2),
    "cdist": _cdist(2.0),
    "cdist_of_many": _cdist(2.0, points=30),
    "cdist_absolute": _cdist(1.0),
    "cdist_cubed": _cdist(3.0),
    "layer_norm": Layer(lambda x: F.layer_norm(x, (COLUMNS,)), lambda x: _standardized(x, -1)),
    "group_norm": Layer(lambda x: F.group_norm(x[None], 1)[0], lambda x: _standardized(x, (0, 1))),
    "batch_norm": Layer(_batch_norm, lambda x: _standardized(x, 0)),
    "embedding_bag": Layer(
        _bag, lambda x: torch.stack([(x[0] + x[2]) / 2, x[2], (x[1] + x[0]) / 2])
    ),
    "weight_norm": Layer(
        _weight_norm, lambda x: x / x.square().sum(-1, True).sqrt() * fixed(x, ROWS, 1, seed=4)
    ),
    "grid_sample": Layer(_grid, _plain_grid),
    "max_pool": Layer(_pool, _plain_pool),
    "conv": Layer(_conv, _plain_conv),
    "solve": Layer(_solved, _plain_solved),
    "cross_entropy": Layer(_cross_entropy, _plain_cross_entropy),
    "cumprod": Layer(lambda x: x.cumprod(0), lambda x: _rolled(x, torch.mul)),
    "logcumsumexp": Layer(lambda x: x.logcumsumexp(0), lambda x: _rolled(x, torch.logaddexp)),
    "glu": Layer(lambda x: F.glu(torch.cat([x, x.sin()], -1)), lambda x: x * x.sin().sigmoid()),
    "softmax": Layer(lambda x: x.softmax(-1), lambda x: x.exp() / x.exp().sum(-1, True)),
    "gelu": Layer(F.gelu, lambda x: x * 0.5 * (1 + torch.erf(x * 0.5**0.5))),
}
