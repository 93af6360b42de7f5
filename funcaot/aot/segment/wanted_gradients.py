"""Which gradients a backward in progress goes on with, so that no others are computed.

``torch.autograd.grad(energy, positions)`` wants nothing of the parameters, and eager's own nodes
look at that. A Function hears what its inputs needed when forward ran; the engine knows more, but
an answer about a leaf whose gradient is handed out comes as an exception, which costs more than a
small backward. So the engine is asked a few times, and then only what costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from funcaot._torch.autograd import nodes

Needs: TypeAlias = "tuple[bool, ...] | None"

_ALWAYS = 4
_EVERY = 32
_COSTLY = 4


class EngineNeeds:
    """What the backwards of one kind of node went on with so far.

    An answer may name too many operands, never too few.
    """

    def __init__(self, positions: Sequence[int], count: int) -> None:
        """Know nothing yet.

        Args:
            positions: Operands that may need a gradient.
            count: How many operands there are.
        """
        self._positions = tuple(positions)
        self._count = count
        self._calls = 0
        self._known: Needs = None
        self._changes = 0

    def of(self, node: Any) -> Needs:
        """For each operand whether its gradient is wanted; None if all may be.

        Args:
            node: The autograd node that the engine is running.
        """
        if len(self._positions) < 2:
            return None
        self._calls += 1
        known = self._known
        if (
            self._calls > _ALWAYS
            and not self._changes
            and self._calls % _EVERY
            and (known is None or self._still_unwanted(node, known))
        ):
            return known
        found = self._ask(node)
        if self._calls > 1 and found != known:
            self._changes += 1
        self._known = found
        return found

    def _still_unwanted(self, node: Any, known: tuple[bool, ...]) -> bool:
        edges = node.next_functions
        return not any(
            edges[index][0] is not None and nodes.is_wanted(edges[index][0])
            for index in self._positions
            if not known[index]
        )

    def _ask(self, node: Any) -> Needs:
        edges = getattr(node, "next_functions", None)
        # A node that hands over gradients early has edges more: to where it goes on, and to whom
        # it may leave its work.
        if edges is None or not 0 <= len(edges) - self._count <= 2:
            return None
        wanted = [False] * self._count
        costly = 0
        for index in self._positions:
            following = edges[index][0]
            if following is None:
                continue
            if costly >= _COSTLY and nodes.is_leaf(following):
                wanted[index] = True
                continue
            answer = nodes.wanted_or_captured(following)
            costly += answer is None
            wanted[index] = answer is not False
        return None if all(wanted[index] for index in self._positions) else tuple(wanted)
