"""The models of the benchmarks: GPT, convolutions and a plain network, with their losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        query, key, value = (
            part.view(shape).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gpt(nn.Module):
    def __init__(self, layers: int = 4, width: int = 128, length: int = 64) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Cnn(nn.Module):
    def __init__(self, channels: int = 16, blocks: int = 3) -> None:
        super().__init__()

        def convolution(inputs: int) -> nn.Module:
            return nn.Conv2d(inputs, channels, 3, padding=1, bias=False)

        self.stem, self.norm = convolution(3), nn.BatchNorm2d(channels)
        self.convolutions = nn.ModuleList(convolution(channels) for _ in range(2 * blocks))
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for _ in range(2 * blocks))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.norm(self.stem(x)))
        for i in range(0, len(self.convolutions), 2):
            y = F.relu(self.norms[i](self.convolutions[i](x)))
            x = F.relu(x + self.norms[i + 1](self.convolutions[i + 1](y)))
        return F.cross_entropy(self.head(x.mean((2, 3))), targets)


class Mlp(nn.Module):
    def __init__(self, width: int = 256, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(x)), 0.1, self.training)
        return F.mse_loss(x, targets)


def models() -> dict[str, tuple[nn.Module, tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    tokens = torch.randint(256, (8, 65))
    return {
        "GPT, 4 layers": (Gpt(), (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())),
        "CNN with batch norm": (Cnn(), (torch.randn(8, 3, 16, 16), torch.randint(10, (8,)))),
        "MLP, dropout and gelu": (Mlp(), (torch.randn(64, 256), torch.randn(64, 256))),
    }
