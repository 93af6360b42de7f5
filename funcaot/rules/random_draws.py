"""Whether code drew random numbers; custom rules that run it a second time ask."""

from __future__ import annotations

import torch

from funcaot._torch.levels.functorch import dispatch_mode_count
from funcaot.errors import UnsupportedError

__all__ = ["RandomDraws"]


class RandomDraws:
    """Looks at the states of torch's generators, from now on."""

    def __init__(self) -> None:
        """Remember them; nothing can be seen where ops are only traced."""
        self._before = None if dispatch_mode_count() else _states()

    def refuse(self, who: str) -> None:
        """Refuse to run again what drew.

        Raises:
            UnsupportedError: There were draws.
        """
        if self._before is None or all(map(torch.equal, self._before, _states())):
            return
        raise UnsupportedError(
            f"{who} draws random numbers, and would have to run again in the backward.",
            remedy="draw outside and pass the numbers; as residuals of fwd, return tensors or "
            "functions that close over tensors.",
        )


def _states() -> list[torch.Tensor]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state())
    return states
