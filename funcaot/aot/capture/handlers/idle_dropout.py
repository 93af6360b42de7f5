"""Dropout that drops nothing gives back its input; asked by a capture before the op runs.

With open sizes torch takes it apart into a copy, where eager returns the tensor itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as functional

__all__ = ["given_back"]

# The name of the argument that says whether to drop anything, and whether it does by default.
_TRAINING: dict[Any, tuple[str, bool | None]] = {
    functional.dropout: ("training", True),
    torch.dropout: ("train", None),
    torch.dropout_: ("train", None),
}


def given_back(
    func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> torch.Tensor | None:
    """The input of a dropout that isn't training, None for anything else.

    Args:
        func: The op.
        args: Its arguments.
        kwargs: Its keywords.
    """
    try:
        known = _TRAINING.get(func)
    except TypeError:  # not hashable
        return None
    if known is None:
        return None
    name, default = known
    training = args[2] if len(args) > 2 else kwargs.get(name, default)
    probability = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
    tensor = args[0] if args else kwargs.get("input")
    idle = training is False or probability == 0
    plain = isinstance(probability, float | int) and 0 <= probability <= 1
    return tensor if idle and plain and isinstance(tensor, torch.Tensor) else None
