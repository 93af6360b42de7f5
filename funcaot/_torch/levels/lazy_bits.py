"""Bits of conjugation and negation; what runs on real values in a capture asks here."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

__all__ = ["with_lazy_bits"]

_KEYS = (
    torch._C.DispatchKey.Conjugate,
    torch._C.DispatchKey.Negative,
    torch._C.DispatchKey.ZeroTensor,
)


@contextlib.contextmanager
def with_lazy_bits() -> Iterator[None]:
    """Let kernels see such bits of tensors, which a mode's own code doesn't.

    Below a mode torch leaves out the keys by which they are resolved. A kernel that writes
    ``r.mul_(r.conj())``, as that of ``linalg.lstsq`` does, computes ``r * r`` there.
    """
    excluded = torch._C._dispatch_tls_local_exclude_set()
    if not any(map(excluded.has, _KEYS)):
        yield
        return
    for key in _KEYS:
        excluded = excluded.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), excluded):
        yield
