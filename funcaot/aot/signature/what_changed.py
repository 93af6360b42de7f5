"""What differs between calls, in words."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from funcaot.aot.closure.look import written
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.signature import Signature

_SHOWN = 4


def describe_changes(known: Sequence[Signature], new: Signature) -> str:
    """Name the parts of a signature that take several values, the most changing first.

    Args:
        known: Signatures met before.
        new: The one that came.

    Returns:
        For example ``the shape of leaf 0 (65 values, now [4, 3])``.
    """
    parts: dict[str, list[Any]] = {}
    for signature in [*known, new]:
        for label, value in _parts(signature):
            parts.setdefault(label, []).append(value)
    changing = [
        (len({written(value) for value in values}), label, values[-1])
        for label, values in parts.items()
        if any(value != values[0] for value in values)
    ]
    changing.sort(key=lambda item: -item[0])
    if not changing:
        return "the objects and settings that it closes over"
    return "; ".join(
        f"{label} ({count} values, now {_shown(value)})"
        for count, label, value in changing[:_SHOWN]
    )


def _parts(signature: Signature) -> list[tuple[str, Any]]:
    parts: list[tuple[str, Any]] = [("the structure of the arguments", str(signature.tree))]
    for index, leaf in enumerate(signature.leaves):
        if not isinstance(leaf, TensorSpec):
            parts.append((f"the value of leaf {index}", str(leaf)))
            continue
        parts += [
            (f"the {item.name} of leaf {index}", getattr(leaf, item.name))
            for item in dataclasses.fields(leaf)
        ]
    parts += [
        (f"global {item.name.replace('_', ' ')}", getattr(signature.ambient, item.name))
        for item in dataclasses.fields(signature.ambient)
    ]
    parts.append(("which arguments are the same tensor", signature.repeats))
    parts.append(("the classes of tensors", signature.kinds))
    parts.append(("attributes of tensors", str(signature.attributes)))
    return parts


def _shown(value: Any) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
