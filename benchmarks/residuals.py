"""Bytes that a forward keeps for its backward: eager, torch.compile and funcaot's policies.

Counted are distinct storages that autograd holds and that aren't an input, a parameter, a buffer
or the output; what each forward holds is read off its autograd graph, not estimated.

    python benchmarks/residuals.py [--backend eager|inductor]
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from common import environment_of, parser_of, print_table, progress, write_json
from torch import nn

import funcaot

POLICIES = ("balanced", "memory", "save_all")


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


def distinct_bytes(tensors: Iterable[torch.Tensor], there_anyway: Sequence[torch.Tensor]) -> int:
    """Bytes of the storages behind tensors, but for those behind ``there_anyway``."""
    known = {tensor.untyped_storage().data_ptr() for tensor in there_anyway}
    sizes = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors
    }
    return sum(size for pointer, size in sizes.items() if pointer not in known)


def kept_by_eager(run: Callable[[], torch.Tensor], there: Sequence[torch.Tensor]) -> int:
    saved: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = run()
    return distinct_bytes(saved, [*there, loss])


def kept_by_node(run: Callable[[], torch.Tensor], there: Sequence[torch.Tensor]) -> int:
    """Bytes held by the one autograd node that a compiled function makes."""
    loss = run()
    node: Any = loss.grad_fn
    return distinct_bytes(node.saved_tensors, [*there, loss])


def gradient_error(
    model: nn.Module, compiled: nn.Module, inputs: tuple[torch.Tensor, ...]
) -> float:
    """Largest difference of the parameters' gradients from eager's, for the same seed."""
    found = []
    for run in (model, compiled):
        torch.manual_seed(1)
        found.append(torch.autograd.grad(run(*inputs), list(model.parameters())))
    return max((a - b).abs().max().item() for a, b in zip(*found, strict=True))


def measure(
    name: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], backend: str
) -> dict[str, Any]:
    there = [*model.parameters(), *model.buffers(), *inputs]
    row: dict[str, Any] = {"model": name, "eager": kept_by_eager(lambda: model(*inputs), there)}
    theirs = copy.deepcopy(model)
    torch._dynamo.reset()
    compiled = torch.compile(theirs)
    row["torch.compile"] = kept_by_node(
        lambda: compiled(*inputs), [*theirs.parameters(), *theirs.buffers(), *inputs]
    )
    for policy in POLICIES:
        ours = funcaot.compile(model, backend=backend, policy=policy)
        start = time.perf_counter()
        row[policy] = kept_by_node(lambda ours=ours: ours(*inputs), there)
        row[f"{policy}: seconds"] = time.perf_counter() - start
        if backend == "eager" or model.training is False:
            row[f"{policy}: gradient error"] = gradient_error(model, ours, inputs)
    return row


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--backend", default="eager", choices=("eager", "inductor"))
    options = parser.parse_args()
    chosen = models()
    if options.quick:
        chosen = {name: case for name, case in chosen.items() if name.startswith("MLP")}
    made = []
    for name, case in chosen.items():
        progress(name)
        made.append(measure(name, *case, options.backend))
    columns = ("eager", "torch.compile", *POLICIES)
    rows = [[row["model"], *(f"{row[column] / 1e3:.1f}" for column in columns)] for row in made]
    print_table("kB kept for the backward", ["model", *columns], rows)
    write_json("residuals", {"environment": environment_of(), "rows": made})


if __name__ == "__main__":
    main()
