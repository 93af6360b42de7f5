"""Private names behind recurrent layers: their ops, and oneDNN's fused kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = [
    "LSTM",
    "PACK_PADDED",
    "PAD_PACKED",
    "RECURRENT",
    "mkldnn_enabled",
    "without_fused_recurrence",
]

LSTM = torch._VF.lstm
PACK_PADDED = torch._VF._pack_padded_sequence
PAD_PACKED = torch._VF._pad_packed_sequence
RECURRENT = frozenset({LSTM, torch._VF.gru, torch._VF.rnn_tanh, torch._VF.rnn_relu})


@contextlib.contextmanager
def without_fused_recurrence() -> Iterator[None]:
    """Let recurrent layers use the kernels that record what a backward needs.

    The fused one for the CPU keeps nothing when it runs with grad mode off, as graphs do.
    """
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def mkldnn_enabled() -> bool:
    """Whether layers may take oneDNN's kernels."""
    return torch._C._get_mkldnn_enabled()
