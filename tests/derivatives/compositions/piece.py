"""What a program is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Piece:
    name: str
    fused: Any
    plain: Any
    draws: bool = False
    batches: bool = True


def made(name, fused, written=None, **options):
    return Piece(name, fused, written or fused, **options)


TARGET = torch.tensor([0, 2, 1])
