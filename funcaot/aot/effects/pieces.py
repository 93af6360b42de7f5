"""``epilogue`` asks for views; those that an op makes together it makes together again.

For autograd the pieces of a ``split`` are results of one node. Some formulas need the gradients of
all of them: that of a jagged tensor has no zeros to put in the place of one.
"""

from __future__ import annotations

from typing import Any

import torch

from funcaot.aot.tape.memory.views import View

__all__ = ["Pieces"]


class Pieces:
    """Makes views in one call, and hands out each piece once: each result is an object."""

    def __init__(self) -> None:
        # The last op on a tensor that had several results, and those that nobody has yet.
        self._left: dict[int, tuple[View, torch.Tensor, list[Any]]] = {}

    def __call__(self, view: Any, base: torch.Tensor) -> torch.Tensor:
        """The view of a tensor."""
        together = view.together if isinstance(view, View) else None
        if together is None:
            return view(base)
        item, known = view.item, self._left.get(id(base))
        if known is None or known[0] != together or known[2][item] is None:
            known = self._left[id(base)] = (together, base, list(together(base)))
        pieces = known[2]
        piece, pieces[item] = pieces[item], None
        return piece
