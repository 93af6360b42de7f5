"""Private names of ``make_fx`` that the operator's tracing rule needs."""

from __future__ import annotations

from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode, track_tensor_tree

__all__ = ["ProxyTorchDispatchMode", "track_tensor_tree"]
