"""Jagged tensors that are views of values: ``wrappers`` asks how the epilogue makes one again.

``nested_tensor_from_jagged(values, offsets)`` shows the memory of its values. Autograd has to know
that where somebody else sees them too: a write to the one is one to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.tensors.classes.wrapping import flattened
from funcaot._torch.tensors.sizes.ragged import view_from_jagged
from funcaot._torch.tracing import tracing
from funcaot.aot.effects.effects import Output
from funcaot.aot.effects.origin import Origin
from funcaot.aot.tape.memory import views
from funcaot.aot.tape.wrappers import is_wrapper

__all__ = ["Finder", "JaggedView", "is_view_of_values", "jagged_again"]


class Finder(Protocol):
    """What finds where outputs come from.

    Attributes:
        capture: What the function did.
        results: What the graph computes.
        storages: Plain inputs by storage.
        wrapped: The memory inside of wrappers, with its ``parts``.
        name: The user's function, for messages.
        origins: How the epilogue makes tensors, by ``id``.
    """

    name: str
    capture: Any
    wrapped: Any
    results: Any
    storages: dict[int, list[int]]
    origins: dict[int, Origin]

    def origin(self, value: torch.Tensor) -> Origin:
        """How the epilogue makes a plain tensor."""
        ...

    def refuse_used_leaf(self, leaf: torch.Tensor) -> None:
        """Refuse a leaf that the function made if something else depends on it."""
        ...


@dataclass(frozen=True)
class JaggedView:
    """Makes a jagged view of values.

    Attributes:
        names: Names of the tensors that come after the values, as the class has them.
        ragged_dim: Which dimension is ragged.
        recorded: Whether autograd may write through it.
    """

    names: tuple[str, ...]
    ragged_dim: int
    recorded: bool

    def __call__(self, values: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        """The view, of offsets and what else there is beside the values."""
        with torch.set_grad_enabled(self.recorded):
            return view_from_jagged(
                values, self.ragged_dim, dict(zip(self.names, others, strict=True))
            )

    def __str__(self) -> str:
        """As the plan shows it."""
        return "jagged"


def is_view_of_values(value: torch.Tensor) -> bool:
    """Whether a jagged tensor is a view of a plain one."""
    if value.layout is not torch.jagged or value._base is None:
        return False
    kinds = autograd.CreationMeta
    ours = (kinds.IN_CUSTOM_FUNCTION, kinds.INFERENCE_MODE)
    return not is_wrapper(value._base) and autograd.creation_meta(value) not in ours


def jagged_again(finder: Finder, value: torch.Tensor) -> Output | None:
    """How the epilogue makes such a view, where an input or another result is its values.

    Args:
        finder: Finds where outputs come from.
        value: What the function returns.

    Returns:
        None for anything else.
    """
    if not is_view_of_values(value):
        return None
    names, metadata = flattened(value)  # type: ignore[attr-defined]
    values, *others = [getattr(value, name) for name in names]
    key = tracing.storage_key(values)
    if key not in finder.storages and not _is_shown(finder.capture.outputs, key):
        return None
    recorded = autograd.creation_meta(value) != autograd.CreationMeta.NO_GRAD_MODE
    start = _values_again(finder, value, values, recorded=recorded)
    if start is None:
        return None
    view: Any = JaggedView(tuple(names[1:]), metadata["ragged_idx"], recorded)
    beside = tuple(map(finder.origin, others))
    return Output(origin=Origin(parent=start, view=view, beside=beside))


def _values_again(
    finder: Finder, value: torch.Tensor, values: torch.Tensor, *, recorded: bool
) -> Origin | None:
    """How the epilogue makes the values of a jagged view; None if it can't."""
    whole = value._base
    if whole is None or values is whole or values._base is whole:
        return finder.origin(values)
    # Views of a jagged tensor: what the class makes of the values below autograd.
    steps = views.chain(finder.results.node(whole), finder.results.node(values))
    if steps is None:
        return None
    steps = tuple(step for step in steps if not step.is_alias) or (views.SAME,)
    return Origin(parent=finder.origin(whole), view=views.View(steps, recorded))


def _is_shown(outputs: Sequence[Any], key: int) -> bool:
    """Whether a plain result has this memory."""
    return any(
        isinstance(output, torch.Tensor)
        and output.layout is torch.strided
        and not is_wrapper(output)
        and tracing.storage_key(output) == key
        for output in outputs
    )
