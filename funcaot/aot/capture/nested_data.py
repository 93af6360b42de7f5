"""``x.data`` where several levels differentiate."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from funcaot._torch.levels import functorch
from funcaot.errors import UnsupportedError


def refuse_nested_data(tensors: Sequence[torch.Tensor], name: str) -> None:
    """Refuse a call of a function that reads ``.data``, if eager would go on differentiating it.

    There ``.data`` leaves the innermost level only; on a tape it leaves all of them.

    Raises:
        UnsupportedError: If more than one level differentiates.
    """
    if functorch.differentiating_levels(tensors) > 1:
        raise UnsupportedError(
            f"{name} uses x.data under several levels that differentiate; eager takes it off the "
            "innermost one only.",
            remedy="x.detach(), which is constant at every level.",
        )
