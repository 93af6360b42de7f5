"""What a call looks like: everything that decides which program runs."""

from __future__ import annotations

import enum
import weakref
from collections import Counter
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch

from funcaot._torch.tensors.pytree import (
    TreeSpec,
    is_constant_size,
    telling_keys_apart,
    tree_flatten,
)
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.attributes import attributes_of
from funcaot.aot.closure.alike import may_be_another
from funcaot.aot.closure.children import LOOKED_INTO, WRAPPED
from funcaot.aot.closure.constants import is_numpy_number, is_setting
from funcaot.aot.closure.contents import is_array
from funcaot.aot.closure.look import written
from funcaot.aot.closure.ran import is_users
from funcaot.aot.graph.tensor_spec import TensorSpec, spec_of
from funcaot.aot.signature.ambient import Ambient, read_ambient
from funcaot.aot.signature.tensor_kinds import refuse_unknown_kind
from funcaot.aot.subclasses.structure import is_wrapper
from funcaot.errors import UnsupportedError

# Objects of Python's library that are followed as those of users are.
_FOLLOWED = (SimpleNamespace, Counter, *WRAPPED)
Attributes: TypeAlias = tuple[tuple[str, "Constant"], ...]


class Identity:
    """An object that is compared by identity, without keeping it alive."""

    __slots__ = ("number", "reference")

    def __init__(self, value: Any) -> None:
        self.number = id(value)
        try:
            self.reference = weakref.ref(value)
        except TypeError:  # no weak references to this kind of object
            self.reference = lambda: value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Identity):
            return NotImplemented
        value = self.reference()
        return self is other or (value is not None and value is other.reference())

    def __hash__(self) -> int:
        return hash(self.number)

    def __repr__(self) -> str:
        value = self.reference()
        return "<an object that is gone>" if value is None else f"<{type(value).__name__} object>"


class ByContents(enum.Enum):
    """What stands for an array, a set and the like: the reader compares what is in it."""

    READ = enum.auto()

    def __repr__(self) -> str:
        return "<contents>"


@dataclass(frozen=True, slots=True)
class Constant:
    """A non-tensor leaf of the arguments; the program is specialized on its value.

    Attributes:
        kind: Its class; ``1``, ``1.0`` and ``True`` are different constants.
        value: The value; its text where ``==`` isn't enough: nan is unequal to itself, ``0.0``
            equals ``-0.0``, ``range(0)`` equals ``range(1, 1)``, and equal sets may hold ``1`` and
            ``True``, in other orders; an ``Identity`` for what has no equality of its own;
            ``ByContents.READ`` for what the reader compares, by what is in it or by which it is.
        by_text: Whether ``value`` is the text.
    """

    kind: type
    value: Any
    by_text: bool = False

    def __str__(self) -> str:
        """The value as it would be written."""
        return self.value if self.by_text else written(self.value)


@dataclass(frozen=True, slots=True)
class Signature:
    """A call's structure, metadata, constants and global state.

    Attributes:
        tree: Structure of ``(args, kwargs)``.
        leaves: A spec or a constant per leaf.
        kinds: The class of each tensor leaf.
        attributes: What users' code has set on each tensor leaf that has something, by position.
        repeats: For each tensor leaf that is the same object as an earlier one, both positions.
        ambient: Global state.
    """

    tree: TreeSpec
    leaves: tuple[TensorSpec | Constant, ...]
    kinds: tuple[type, ...]
    repeats: tuple[tuple[int, int], ...]
    ambient: Ambient
    attributes: tuple[tuple[int, Attributes], ...] = ()

    def __str__(self) -> str:
        """The leaves, one after the other."""
        return ", ".join(map(str, self.leaves))

    @property
    def has_wrappers(self) -> bool:
        """Whether an argument wraps other tensors."""
        return any(getattr(leaf, "structure", None) is not None for leaf in self.leaves)

    @property
    def is_dead(self) -> bool:
        """Whether no call can have this signature any more."""
        references = [mode for mode in self.ambient.modes if isinstance(mode, weakref.ref)]
        references += [
            leaf.value.reference
            for leaf in self.leaves
            if isinstance(leaf, Constant) and isinstance(leaf.value, Identity)
        ]
        return any(reference() is None for reference in references)


def read_signature(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Signature, list[Any]]:
    """The signature of a call and its flat leaves.

    Raises:
        UnsupportedError: For a leaf that can't be part of a signature.
    """
    leaves, tree = tree_flatten((args, kwargs), partial(_is_whole, name))
    described: list[TensorSpec | Constant] = []
    kinds: list[type] = []
    seen: dict[int, int] = {}
    forward_mode = tracing.forward_mode_active()
    repeats: list[tuple[int, int]] = []
    attributes: list[tuple[int, Attributes]] = []
    for position, leaf in enumerate(leaves):
        if not isinstance(leaf, torch.Tensor):
            described.append(_constant(name, position, leaf))
            continue
        refuse_unknown_kind(leaf, f"{name} was called with {{}} as leaf {position} of its inputs.")
        described.append(spec_of(leaf, forward_mode=forward_mode))
        kinds.append(type(leaf))
        if leaf.__dict__ and not is_wrapper(leaf) and (found := attributes_of_leaf(leaf)):
            attributes.append((position, found))
        first = seen.setdefault(id(leaf), position)
        if first != position:
            repeats.append((first, position))
    described_leaves = (telling_keys_apart(tree), tuple(described), tuple(kinds), tuple(repeats))
    return Signature(*described_leaves, read_ambient(), tuple(attributes)), leaves


def _is_whole(name: str, value: Any) -> bool:
    """Whether an argument isn't taken apart; refuse one of which only the items would be seen."""
    if not isinstance(value, tuple):
        return False
    if getattr(value, "__dict__", None) and hasattr(value, "_fields"):
        raise UnsupportedError(
            f"{name} was called with a {type(value).__name__}, a named tuple that also has "
            f"attributes of its own: {', '.join(vars(value))}.",
            remedy="give it these as fields, or use a dataclass.",
        )
    return is_constant_size(value)


def attributes_of_leaf(leaf: torch.Tensor) -> Attributes:
    """What users' code has set on a tensor and what a program may read: values that compare."""
    found = ((name, constant_of(value)) for name, value in attributes_of(leaf).items())
    return tuple((name, constant) for name, constant in found if constant is not None)


def constant_of(value: Any) -> Constant | None:
    """A value as a part of a signature; None if it can't be one."""
    if isinstance(value, torch.Tensor):
        return None
    if may_be_another(value):  # No reader looks at it there.
        return Constant(type(value), Identity(value))
    try:
        return _constant("", 0, value)
    except UnsupportedError:
        return None


def _is_told_by_text(value: Any) -> bool:
    """Whether two values of a kind are the same exactly if their texts are."""
    kind = type(value)
    if kind is slice:  # By numbers; before Python 3.12 it has no hash.
        parts = (value.start, value.stop, value.step)
        return all(type(each) in (int, type(None)) for each in parts)
    if kind is frozenset:
        return is_setting(value)
    return kind in (float, complex, range) or is_numpy_number(value)


def _constant(name: str, position: int, value: Any) -> Constant:
    kind = type(value)
    if _is_told_by_text(value):
        return Constant(kind, repr(value), by_text=True)
    if is_array(value) or isinstance(value, LOOKED_INTO) or may_be_another(value):
        return Constant(kind, ByContents.READ)
    if kind.__eq__ is object.__eq__ and value is not None:
        return Constant(kind, Identity(value))
    try:
        hash(value)
    except Exception:  # noqa: BLE001 - a TypeError, or what the class's own code raises
        if is_users(kind) or issubclass(kind, _FOLLOWED):
            return Constant(kind, Identity(value))
        raise UnsupportedError(
            f"{name} was called with an unhashable {kind.__name__} as leaf {position} of "
            "its arguments, so its value can't be part of the call's signature.",
            remedy="pass a tensor or a hashable value, or register the type as a pytree "
            "(torch.utils._pytree.register_pytree_node).",
        ) from None
    return Constant(kind, value)
