"""Private names behind layers with fused kernels, of oneDNN and cuDNN, and recurrent ops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = [
    "FLATTEN",
    "LSTM",
    "PACK_PADDED",
    "PAD_PACKED",
    "RECURRENT",
    "mkldnn_enabled",
    "without_cudnn",
    "without_fused_recurrence",
]

LSTM = torch._VF.lstm
FLATTEN = torch._cudnn_rnn_flatten_weight
PACK_PADDED = torch._VF._pack_padded_sequence
PAD_PACKED = torch._VF._pad_packed_sequence
RECURRENT = frozenset({LSTM, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu})


@contextlib.contextmanager
def without_fused_recurrence() -> Iterator[None]:
    """Let recurrent layers use the kernels that record what a backward needs.

    The fused one for the CPU keeps nothing when it runs with grad mode off, as graphs do. That of
    cuDNN looks for the memory of all weights together, and has no second derivative.
    """
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        with without_cudnn():
            yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextlib.contextmanager
def without_cudnn() -> Iterator[None]:
    """Let layers on a GPU use torch's own kernels."""
    enabled = torch._C._get_cudnn_enabled()
    torch._C._set_cudnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_cudnn_enabled(enabled)


def mkldnn_enabled() -> bool:
    """Whether layers may take oneDNN's kernels."""
    return torch._C._get_mkldnn_enabled()
