"""Bytes beside the data of a program, by digest: libraries of kernels, and constants."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import torch

from funcaot.aot.saved.codec import Data, scalar_data, scalar_from
from funcaot.aot.saved.errors import NotSavedError


class Blobs:
    """Bytes that a file will hold, each once.

    Attributes:
        content: By digest.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.content: dict[str, bytes] = {}

    def add(self, content: bytes) -> str:
        """Keep bytes; their digest names them."""
        digest = hashlib.sha256(content).hexdigest()
        self.content.setdefault(digest, content)
        return digest

    def tensor(self, value: torch.Tensor) -> Data:
        """Keep what a tensor holds.

        Raises:
            NotSavedError: For a tensor that isn't a plain one on the CPU.
        """
        if value.layout is not torch.strided or value.device.type != "cpu" or value.is_quantized:
            raise NotSavedError(f"a constant is on {value.device} or not a plain tensor")
        dense = value.detach().resolve_conj().resolve_neg().contiguous()
        content = dense.flatten().view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        return [
            list(value.shape),
            list(value.stride()),
            scalar_data(value.dtype),
            self.add(content),
        ]


def tensor_from(data: Data, blobs: Mapping[str, bytes]) -> torch.Tensor:
    """The tensor that ``Blobs.tensor`` described."""
    shape, stride, dtype, digest = data
    dtype = scalar_from(dtype)
    made = torch.empty_strided(shape, stride, dtype=dtype)
    if math.prod(shape):
        flat = torch.frombuffer(bytearray(blobs[digest]), dtype=torch.uint8).view(dtype)
        made.copy_(flat.view(shape))
    return made
