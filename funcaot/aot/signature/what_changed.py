"""What differs between calls, in words; the report, the log and warnings show it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from funcaot.aot.closure.look import written
from funcaot.aot.graph.spec_sizes import is_open
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
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


def differences(was: Signature, now: Signature, function: Callable[..., Any]) -> list[str]:
    """Say what was and what is now, one sentence for each part of a signature that differs.

    Args:
        was: What a program serves.
        now: The call that came.
        function: The user's function, whose parameters have names.

    Returns:
        For example ``["the shape of x was [4, 3] and is now [5, 3]"]``.
    """
    if was == now:
        return []
    found = _told(_differing(_parts(was, function), _parts(now, function)))
    return found or ["the arguments are of other kinds than before"]


def describe_tensors(
    names: Sequence[str],
    known: Sequence[TensorSpec],
    now: Sequence[Any],
    *,
    forward_mode: bool = False,
) -> str:
    """Say what was and what is now of the first tensor that has changed; empty if none has.

    Args:
        names: What the user calls each.
        known: What they looked like; one of open sizes looks like any.
        now: The tensors now, or what is in their places.
        forward_mode: Whether tangents may be carried forward.

    Returns:
        For example ``the shape of w was [3] and is now [4]``.
    """
    for name, tensor, was in zip(names, now, known, strict=False):
        if not isinstance(tensor, torch.Tensor):
            kind = "None" if tensor is None else f"a {type(tensor).__name__}"
            return f"{name} was a tensor and is now {kind}"
        parts = (
            _tensor_parts(name, was),
            _tensor_parts(name, spec_of(tensor, forward_mode=forward_mode)),
        )
        if parts[0] != parts[1] and not is_open(was):
            return "; ".join(_told(_differing(*parts)))
    return ""


def _told(differing: Sequence[tuple[str, Any, Any]]) -> list[str]:
    return [
        f"{label} was {_shown(was)} and is now {_shown(value)}"
        if _shown(was) != _shown(value)
        else f"{label} is another than before: {_shown(value)}"
        for label, was, value in differing
    ]


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
