"""torch's tracer of plain tensor functions, which the tests use to show and to run graphs."""

from __future__ import annotations

from torch.fx.experimental.proxy_tensor import make_fx

__all__ = ["make_fx"]
