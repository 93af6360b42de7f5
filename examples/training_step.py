"""A whole training step as one compiled function: forward, backward and optimizer.

Networks for digits, with and without convolutions, and a small GPT. Each runs eagerly, with
``torch.compile`` of the forward and of the optimizer's step, and with ``jax.jit`` if JAX is there.

    python examples/training_step.py [--network digits|convolutions|gpt] [--threads 1]
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import funcaot
from side_by_side import Makers, Step, command_line, compare_as_told, with_jax

WIDTH, HEADS, LAYERS, LENGTH, BATCH = 64, 4, 2, 32, 8
Network = tuple[Callable[[], nn.Module], list[tuple[Tensor, Tensor]]]


class Block(nn.Module):
    """Attention and a network, each with a norm before and a connection around."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("mask", torch.ones(LENGTH, LENGTH).tril().bool())

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.project(self.norm(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1)) * (width // HEADS) ** -0.5
        mixed = scores.masked_fill(~self.mask, float("-inf")).softmax(-1) @ v
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x)), approximate="tanh"))


class GPT(nn.Module):
    """A character model."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions))).flatten(0, 1)


def images() -> list[tuple[Tensor, Tensor]]:
    """Batches of scikit-learn's digits."""
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x, dtype=torch.float32) / 16, torch.tensor(y)
    return [(x[i : i + 128], y[i : i + 128]) for i in range(0, 1664, 128)]


def digits() -> Network:
    """Linear layers."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)
        )

    return make, images()


class Convolutions(nn.Module):
    """The demo's network for digits, without its quantizer."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.last = nn.Linear(channels * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.second(self.first(x.view(-1, 1, 8, 8)).relu()).relu()
        return self.last(F.max_pool2d(hidden, 2).flatten(1))


def convolutions() -> Network:
    return Convolutions, images()


def text() -> Network:
    """The GPT on the text of this file, and batches."""
    characters = Path(__file__).read_text()
    known = sorted(set(characters))
    codes = torch.tensor([known.index(c) for c in characters])
    starts = torch.randint(
        0, len(codes) - LENGTH - 1, (20, BATCH), generator=torch.Generator().manual_seed(0)
    )
    cut = [[codes[s : s + LENGTH + 1] for s in row] for row in starts]
    rows = [torch.stack(row) for row in cut]
    batches = [(row[:, :-1].contiguous(), row[:, 1:].flatten()) for row in rows]
    return functools.partial(GPT, len(known)), batches


def make(way: str, network: Network, backend: str) -> Step:
    """A training step with AdamW, from the same start."""
    torch.manual_seed(0)
    model, batches = network[0](), network[1]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    forward, update = model, optimizer.step
    if way == "torch.compile":
        forward, update = torch.compile(model), torch.compile(optimizer.step)
    elif way == "funcaot: forward":
        forward = funcaot.compile(model, backend=backend)

    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(forward(x), y)
        optimizer.zero_grad()
        loss.backward()
        update()
        return loss.detach()

    if way == "funcaot: whole step":
        step = funcaot.compile(step, backend=backend)
    return lambda index: step(*batches[index % len(batches)])


def make_jax(name: str, network: Network) -> Step:
    """The same step for ``jax.jit``, from the same start."""
    import jax
    import jax.numpy as jnp

    from jax_step import TrainingStep, linear

    mask = jnp.tril(jnp.ones((LENGTH, LENGTH), bool))

    def norm(p, at, x):
        centered = x - x.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5)
        return centered * scale * p[f"{at}.weight"] + p[f"{at}.bias"]

    def block(p, at, x):
        batch, length, width = x.shape
        parts = linear(p, f"{at}.project", norm(p, f"{at}.norm", x))
        parts = parts.reshape(batch, length, 3, HEADS, width // HEADS)
        q, k, v = parts.transpose(2, 0, 3, 1, 4)
        scores = (q @ k.swapaxes(-2, -1)) * (width // HEADS) ** -0.5
        mixed = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf)) @ v
        x = x + linear(p, f"{at}.out", mixed.swapaxes(1, 2).reshape(batch, length, width))
        up = linear(p, f"{at}.up", norm(p, f"{at}.after", x))
        return x + linear(p, f"{at}.down", jax.nn.gelu(up))

    def convolution(p, at, x):
        made = jax.lax.conv_general_dilated(x, p[f"{at}.weight"], (1, 1), "SAME")
        return jax.nn.relu(made + p[f"{at}.bias"][:, None, None])

    def logits(p, x):
        if name == "digits":
            x = jax.nn.relu(linear(p, "0", x))
            return linear(p, "4", jax.nn.relu(linear(p, "2", x)))
        if name == "convolutions":
            x = convolution(p, "second", convolution(p, "first", x.reshape(-1, 1, 8, 8)))
            x = x.reshape(*x.shape[:2], 4, 2, 4, 2).max((3, 5))
            return linear(p, "last", x.reshape(len(x), -1))
        x = p["tokens.weight"][x] + p["positions"]
        for i in range(LAYERS):
            x = block(p, f"blocks.{i}", x)
        return linear(p, "head", norm(p, "norm", x)).reshape(-1, p["head.bias"].shape[0])

    def loss_of(p, x, y):
        return -jnp.take_along_axis(jax.nn.log_softmax(logits(p, x)), y[:, None], 1).mean()

    torch.manual_seed(0)
    return TrainingStep(loss_of, network[0](), network[1], rate=1e-3, decay=1e-2)


NETWORKS = {"digits": digits, "convolutions": convolutions, "gpt": text}
WAYS = ("eager", "torch.compile", "funcaot: forward", "funcaot: whole step")


def makers(name: str, backend: str = "inductor") -> Makers:
    """Every way to run the step of a network."""
    network = NETWORKS[name]()
    ways = {way: functools.partial(make, way, network, backend) for way in WAYS}
    return with_jax(ways, functools.partial(make_jax, name, network))


def main() -> None:
    parser = command_line(__doc__, steps=60, rounds=30)
    parser.add_argument("--network", choices=NETWORKS, default="digits")
    told = parser.parse_args()
    compare_as_told(
        f"Training step of the {told.network} network, AdamW",
        f"training_step_{told.network}",
        makers(told.network, told.backend),
        told,
    )


if __name__ == "__main__":
    main()
