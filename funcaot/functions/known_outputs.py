"""What a function returned when it ran itself, for ``custom_vjp`` to compare ``fwd``'s output with.

Nothing is run for it. A function that never runs has no output that another could differ from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.levels.functorch import pytree
from funcaot.functions.lifted_derivative import OutputsMetadata, check_output
from funcaot.rules.metadata import TensorMetadata
from funcaot.rules.operands.lifted_call import Bound

__all__ = ["KnownOutputs"]

_MOST = 64
_VALUES = (type(None), bool, int, float, complex, str, torch.dtype)


class KnownOutputs:
    """The structure and metadata of outputs, by what the arguments look like."""

    def __init__(self) -> None:
        """Nothing is known yet."""
        self._runs = 0
        self._outputs: dict[Any, tuple[Any, tuple[Any, ...]]] = {}

    def note(self, arguments: tuple[Any, ...], output: Any) -> None:
        """Keep what the function returned in one of its first 64 runs; later ones cost nothing."""
        if self._runs >= _MOST:
            return
        self._runs += 1
        key = _key(arguments)
        if key is not None:
            self._outputs[key] = _seen(output)

    def compare(self, bound: Bound, operands: Sequence[Any], output: Any, who: str) -> None:
        """Check an output of a rule.

        What the function reads besides its arguments may have changed since it ran, so it runs
        again before anything is said, and what it writes is discarded.

        Args:
            bound: The call.
            operands: Its tensors.
            output: What the rule returned.
            who: The rule, for messages.

        Raises:
            RuleError: The function returns another structure or shape.
        """
        key = _key(bound.arguments)
        known = None if key is None else self._outputs.get(key)
        if known is None or known == _seen(output):
            return
        with torch.no_grad():
            spec, leaves = _seen(bound.discarding_writes(operands).functions[0](*bound.arguments))
        self._outputs[key] = spec, leaves
        check_output(output, spec, OutputsMetadata(leaves), who)


def _seen(output: Any) -> tuple[Any, tuple[Any, ...]]:
    leaves, spec = pytree.tree_flatten(output)
    return spec, tuple(map(TensorMetadata.of, leaves))


def _kind(leaf: Any) -> Any:
    value = leaf if type(leaf) in _VALUES else None
    return TensorMetadata.of(leaf) or (type(leaf), value)


def _key(arguments: tuple[Any, ...]) -> Any:
    """What outputs are looked up by; None if an argument's structure can't be.

    Objects aren't kept, nor are they asked for a hash: their class stands for them.
    """
    leaves, spec = pytree.tree_flatten(arguments)
    key = spec, tuple(map(_kind, leaves))
    try:
        hash(key)
    except TypeError:
        return None
    return key
