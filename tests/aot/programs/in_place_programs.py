"""Random programs that write to their inputs and read what they overwrite."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

SIZE = 4
NAMES = ("a", "b", "c")

# What is written: T is the tensor, S and U are others, or T itself. Nothing reads memory while it
# writes there: eager's answer would depend on the order.
WRITES = """
T[1:] = S[:-1].clone()
T[:-1] = S[1:].clone()
T[:, 1:] = S[:, :-1].clone() * 2
T[0] = S[1]
T[0] = V
T[1:3, 2] = V[:2]
T[:, 1] = S.sum(1)
T[2:] = S[:2] + S[2:]
T.copy_(S)
T.copy_(S.t().clone())
T.copy_(S.t() * 2)
T.copy_(S.flip(0))
T.copy_(S.roll(1, 1))
T.copy_(S[0].clone())
T.copy_(S @ U)
T.copy_(S.cumsum(0))
T.copy_(torch.where(S > 0, U, T))
T.copy_(S + torch.zeros_like(S))
T.copy_(S * torch.ones_like(S))
T.copy_(torch.cat([S[2:], S[:2]]))
T.copy_(torch.cat([S]))
T.copy_(S.reshape(-1).view(SIZE, SIZE))
T.copy_(S.sort(0).values)
T.copy_(S.expand(2, SIZE, SIZE)[0])
T.copy_(S.softmax(1))
T.add_(S)
T.add_(S.t().clone())
T.add_(S, alpha=0.5)
T.mul_(0.5)
T.sub_(S.mean())
T.sub_(S.mean(1, keepdim=True))
T.div_(S.norm() + 1)
T.mul_(S[0].clone())
T.addcmul_(S, U)
T.lerp_(S, 0.25)
T.zero_()
T.fill_diagonal_(3)
T.t().mul_(S.clone())
T.diagonal().copy_(S[0].clone())
T.masked_fill_(S > 0, 2)
T.index_put_((I,), S[0].clone(), accumulate=True)
T.index_put_((I,), S[I])
T.index_copy_(0, I, S[1:3].clone())
T.index_add_(0, I, S[:2].clone())
T.index_fill_(0, I, 5)
T.scatter_(0, J, S[1:3].clone())
T.scatter_add_(1, J.t(), S[:, 1:3].clone())
T.select(0, 1).add_(S[1])
T.narrow(0, 0, 2).copy_(S.narrow(0, 1, 2).clone())
T[I] = S[:2] * 2
T, S = S, T
h = T.clone(); T.copy_(S); S.copy_(h)
h = T * 1; T.copy_(S); S.copy_(h)
h = T + torch.zeros_like(T); T.mul_(2); S.copy_(h)
h = S.t().clone()
h = S[1:3].clone()
h = S.clone()
h = S * 3
h = torch.cat([S])
h = S.view(2, 8).clone().view(SIZE, SIZE)
h = torch.nn.functional.pad(S, (0, 0))
h = S.expand(1, SIZE, SIZE).clone()[0]
h = S.to(S.dtype, copy=True)
""".strip().splitlines()

RETURNS = """
T
T.clone()
T[0]
T[0].clone()
T.t().clone()
T + torch.zeros_like(T)
T * torch.ones_like(T)
T * 2
T.t() * 2
T.sum()
T.sum(0)
h
h.clone()
torch.cat([T])
T.clone().clone()
T.view(-1).clone()
""".strip().splitlines()


def source_of(seed: int) -> str:
    """The text of a random program ``f(a, b, c, V, I, J)``."""
    generator = random.Random(seed)
    lines = ["h = V"]

    def filled(line: str) -> str:
        first, second, third = (generator.choice(NAMES) for _ in range(3))
        words = {"T": first, "S": second, "U": third}
        return "".join(words.get(letter, letter) for letter in _split(line))

    lines += [filled(generator.choice(WRITES)) for _ in range(generator.randint(1, 4))]
    returned = [filled(generator.choice(RETURNS)) for _ in range(generator.randint(0, 3))]
    lines.append(f"return [{', '.join(returned)}]")
    return "\n    ".join(["def f(a, b, c, V, I, J):", *lines])


def _split(line: str) -> list[str]:
    """Names and single characters."""
    parts: list[str] = []
    for letter in line:
        if parts and (letter.isalnum() or letter == "_") and parts[-1][-1:].isalnum():
            parts[-1] += letter
        else:
            parts.append(letter)
    return parts


def program(seed: int) -> Callable[..., Any]:
    """The function."""
    namespace: dict[str, Any] = {"torch": torch, "SIZE": SIZE}
    exec(source_of(seed), namespace)
    return namespace["f"]


def arguments(seed: int = 0) -> list[torch.Tensor]:
    """Equal arguments for equal seeds."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(SIZE, SIZE, generator=generator) for _ in NAMES]
    rows = torch.tensor([2, 0])
    return [*tensors, torch.randn(SIZE, generator=generator), rows, rows[:, None].expand(2, SIZE)]


def together(seeds: list[int]) -> Callable[..., Any]:
    """Several programs, each on its own arguments, as one function: one graph to compile."""
    functions = [program(seed) for seed in seeds]

    def run(groups: list[list[torch.Tensor]]) -> list[list[torch.Tensor]]:
        return [function(*group) for function, group in zip(functions, groups, strict=True)]

    return run
