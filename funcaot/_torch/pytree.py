"""torch's pytree registry, the one that users of ``torch.func`` register their containers in."""

from __future__ import annotations

from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

__all__ = ["TreeSpec", "tree_flatten", "tree_map", "tree_unflatten"]
