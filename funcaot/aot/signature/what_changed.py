"""What differs between calls, in words; the report, the log and warnings show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from funcaot.aot.closure.look import written
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.leaf_names import leaf_names
from funcaot.aot.signature.signature import Signature

_SHOWN = 4
_STRUCTURE = "the structure of the arguments"
# What a signature is compared by as text: the objects themselves may be gone.
_WHOLE = {
    "repeats": "which arguments are the same tensor",
    "kinds": "the classes of tensors",
    "attributes": "attributes of tensors",
}


def describe_changes(
    known: Sequence[Signature], new: Signature, function: Callable[..., Any]
) -> str:
    """Name the parts of a signature that take several values, the most changing first.

    Args:
        known: Signatures met before.
        new: The one that came.
        function: The user's function, whose parameters have names.

    Returns:
        For example ``the shape of x (65 values, now [4, 3])``.
    """
    parts: dict[str, list[Any]] = {}
    for signature in [*known, new]:
        for label, value in _parts(signature, function).items():
            parts.setdefault(label, []).append(value)
    changing = [
        (len({written(value) for value in values}), label, values[-1])
        for label, values in parts.items()
        if any(value != values[0] for value in values)
    ]
    changing.sort(key=lambda item: -item[0])
    changing = [item for item in changing if not _follows(item[1], [each[1] for each in changing])]
    if not changing:
        return "the objects and settings that it closes over"
    return "; ".join(
        f"{label} ({count} values, now {_shown(value)})"
        for count, label, value in changing[:_SHOWN]
    )


def describe_difference(
    known: Sequence[Signature], new: Signature, function: Callable[..., Any]
) -> str:
    """Say what was and what is now, compared with the known call that is most like the new one.

    Args:
        known: Signatures met before, oldest first.
        new: The one that came.
        function: The user's function, whose parameters have names.

    Returns:
        For example ``the shape of x was [4, 3] and is now [5, 3]``.
    """
    now = _parts(new, function)
    differences = [_differing(_parts(signature, function), now) for signature in known]
    differences = [found for found in differences if found]
    if not differences:
        return "the objects and settings that it closes over"
    return _told(min(reversed(differences), key=len))


def describe_tensors(name: str, was: TensorSpec, now: TensorSpec) -> str:
    """Say what was and what is now of one tensor: ``the shape of w was [3] and is now [4]``."""
    return _told(_differing(_tensor_parts(name, was), _tensor_parts(name, now)))


def _told(differences: Sequence[tuple[str, Any, Any]]) -> str:
    return "; ".join(
        f"{label} was {_shown(was)} and is now {_shown(value)}"
        if _shown(was) != _shown(value)
        else f"{label} is another than before: {_shown(value)}"
        for label, was, value in differences[:_SHOWN]
    )


def _differing(was: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Label, old and new value of each part that differs, but for what follows from another."""
    labels = [
        label for label in {**now, **was} if was.get(label, _ABSENT) != now.get(label, _ABSENT)
    ]
    if _STRUCTURE in labels:
        follow = (_STRUCTURE, *_WHOLE.values())
        same = [label for label in labels if label in was and label in now]
        labels = [_STRUCTURE, *(label for label in same if label not in follow)]
    return [
        (label, was.get(label, _ABSENT), now.get(label, _ABSENT))
        for label in dict.fromkeys(labels)
        if not _follows(label, labels)
    ]


def _follows(label: str, others: Sequence[str]) -> bool:
    """Whether a part changes because another does: strides with the shape."""
    return label.startswith("the stride of ") and label.replace("stride", "shape", 1) in others


class _Absent:
    def __str__(self) -> str:
        return "not there"


_ABSENT = _Absent()


def _parts(signature: Signature, function: Callable[..., Any]) -> dict[str, Any]:
    """The parts of a signature by what a user would call them."""
    parts: dict[str, Any] = {_STRUCTURE: _structure(signature)}
    names = leaf_names(function, signature.tree)
    for name, leaf in zip(names, signature.leaves, strict=True):
        if not isinstance(leaf, TensorSpec):
            parts[name] = leaf
            continue
        parts |= _tensor_parts(name, leaf)
    for item in dataclasses.fields(signature.ambient):
        label = f"global {item.name.replace('_', ' ')}"
        parts[label] = getattr(signature.ambient, item.name)
    for field, label in _WHOLE.items():
        parts[label] = getattr(signature, field)
    return parts


def _tensor_parts(name: str, spec: TensorSpec) -> dict[str, Any]:
    return {
        f"the {item.name} of {name}": getattr(spec, item.name) for item in dataclasses.fields(spec)
    }


def _structure(signature: Signature) -> str:
    """The structure as Python would write it, with a dot for each leaf."""
    positional, keyword = signature.tree.children()
    parts = [_outline(child) for child in positional.children()]
    pairs = zip(keyword.context, keyword.children(), strict=True)
    return f"({', '.join([*parts, *(f'{key}={_outline(child)}' for key, child in pairs)])})"


def _outline(tree: Any) -> str:
    if tree.is_leaf():
        return "."
    inner = [_outline(child) for child in tree.children()]
    if tree.type is dict:
        pairs = zip(tree.context, inner, strict=True)
        return f"{{{', '.join(f'{key!r}: {part}' for key, part in pairs)}}}"
    opening, closing = ("[", "]") if tree.type is list else ("(", ")")
    kind = "" if tree.type in (list, tuple) else getattr(tree.type, "__name__", "")
    return f"{kind}{opening}{', '.join(inner)}{closing}"


def _shown(value: Any) -> str:
    text = str(list(value)) if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
