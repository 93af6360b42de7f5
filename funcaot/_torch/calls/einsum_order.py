"""The order in which ``torch.einsum`` contracts more than two operands, where sizes are open.

With opt_einsum installed, torch asks it for an order, and opt_einsum asks each size for a number.
So a trace would be right for the sizes of its call only. Here it is asked for the sizes at
present, and for others around them, until it says another order.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import _VF

__all__ = ["in_order", "is_ordered"]

_MOST = 1 << 20


def is_ordered(operands: Sequence[Any]) -> bool:
    """Whether torch asks for an order in which operands are contracted, by sizes that are open."""
    settings: Any = torch.backends.opt_einsum
    if len(operands) <= 2 or not settings.enabled or not settings.is_available():
        return False
    if not all(isinstance(each, torch.Tensor) for each in operands):
        return False
    sizes = [size for each in operands for size in each.shape]
    numbers = all(type(size) is int or size.node.has_hint() for size in sizes)
    return numbers and any(isinstance(size, torch.SymInt) for size in sizes)


def in_order(equation: str, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """Contract operands in the order for their sizes at present.

    How far a size may go without another order is a question that is asked here: a program is
    used for sizes within. It is looked at for one size at a time, at its halves and doubles.

    Args:
        equation: Which dimensions are contracted.
        operands: More than two.
    """
    shapes = [tuple(each.shape) for each in operands]
    sizes = {str(size): size for shape in shapes for size in shape}
    present = {name: _number(size) for name, size in sizes.items()}

    def order(numbers: Mapping[str, int]) -> list[int]:
        given = [tuple(numbers[str(size)] for size in shape) for shape in shapes]
        return _order(equation, given)

    found = order(present)
    for name, size in sizes.items():
        if type(size) is int:
            continue
        low = high = present[name]
        while low > 3 and order({**present, name: low // 2}) == found:
            low //= 2
        while high < _MOST and order({**present, name: high * 2}) == found:
            high *= 2
        # Each condition is noted with the trace.
        within = (low <= 3 or size >= low) and (high >= _MOST or size <= high)
        assert within, "a size is within bounds around itself"
    contract: Any = _VF.einsum  # type: ignore[attr-defined]
    return contract(equation, operands, path=found)


def _order(equation: str, shapes: Sequence[tuple[int, ...]]) -> list[int]:
    settings: Any = torch.backends.opt_einsum
    planner = settings.get_opt_einsum()
    pairs, _ = planner.contract_path(equation, *shapes, optimize=settings.strategy, shapes=True)
    return [*itertools.chain.from_iterable(pairs)]


def _number(size: Any) -> int:
    return size if type(size) is int else int(size.node.hint)
