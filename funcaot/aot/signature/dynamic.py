"""Which dimensions of a call's tensors a program leaves open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot import config
from funcaot._torch.tensors.pytree import TreeSpec
from funcaot.aot.graph.settings import SPECIAL
from funcaot.aot.graph.spec_sizes import sizes_of, skeleton
from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.numbers import (
    Numbers,
    Whole,
    can_be_computed_with,
    can_be_open,
    number_of,
)
from funcaot.aot.signature.opened_wrappers import Opener, with_batches
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import Sizes, generalized
from funcaot.base.numpy_kinds import is_numpy_kind
from funcaot.errors import FuncaotError, UnsupportedError

_MARKS = "_funcaot_dynamic"
_CLOSED = "_funcaot_static"
_KEPT = 256
# How often a number may turn out to be a special case before calls are compiled for each value.
_STRIKES = 2
_SIZE = int  # A number as a size, or a float.
_NONE: frozenset[int] = frozenset()


def mark_dynamic(tensor: torch.Tensor, dim: int | Sequence[int]) -> None:
    """Let compiled functions leave a dimension's size open from their first compilation on.

    A program that was compiled for this very size before is used as it is. A size of 0 or 1 always
    gets a program of its own.

    Args:
        tensor: An argument of compiled functions; the mark is kept on this object.
        dim: The dimension, or several.

    Raises:
        FuncaotError: For what is no tensor, or a dimension that the tensor doesn't have. When the
            function is compiled, an ``UnsupportedError`` if it works for one size of a marked
            dimension only.

    Example:
        >>> import funcaot, torch
        >>> f = funcaot.compile(lambda x: x * 2, backend="eager")
        >>> for size in (4, 5, 6):
        ...     x = torch.ones(size)
        ...     funcaot.mark_dynamic(x, 0)
        ...     _ = f(x)
        >>> funcaot.report(f).graphs_compiled
        1
    """
    if not isinstance(tensor, torch.Tensor):
        raise FuncaotError(
            "mark_dynamic marks a dimension of a tensor.",
            expected="a tensor",
            got=type(tensor).__name__,
            remedy="mark each tensor among the arguments.",
        )
    dims = tuple(dim) if isinstance(dim, Iterable) and not isinstance(dim, str) else (dim,)
    marks = getattr(tensor, _MARKS, frozenset()) | dimensions_of(tensor, dims, "mark_dynamic")
    setattr(tensor, _MARKS, marks)


def mark_closed(tensor: torch.Tensor, dims: frozenset[int]) -> None:
    """Never leave dimensions of a tensor open."""
    setattr(tensor, _CLOSED, getattr(tensor, _CLOSED, frozenset()) | dims)


def dimensions_of(tensor: torch.Tensor, dims: Sequence[Any], who: str) -> frozenset[int]:
    """Dimensions of a tensor, counted from 0.

    Args:
        tensor: The tensor.
        dims: What a user gave.
        who: The function that it was given to, for messages.

    Raises:
        FuncaotError: For what is no dimension of the tensor.
    """
    rank = tensor.dim()
    for each in dims:
        if not isinstance(each, int) or isinstance(each, bool):
            raise FuncaotError(
                f"{who} was given something else than a dimension.",
                expected="a number, or several in a list",
                got=repr(each),
                remedy="count dimensions from 0, or from -1 backward.",
            )
        if not -rank <= each < rank:
            raise FuncaotError(
                f"{who} was given a dimension that the tensor doesn't have.",
                expected=f"a dimension of a tensor of {rank} dimensions",
                got=str(each),
                remedy="count dimensions from 0, or from -1 backward.",
            )
    return frozenset(each % rank for each in dims)


@dataclass(frozen=True, eq=False)
class Opening:
    """What a program leaves open of the call that it is captured for.

    Attributes:
        signature: The call's, with tensors in place of open numbers and symbols for open sizes.
        leaves: The call's leaves, with tensors in place of open numbers.
        sizes: The open sizes, if there are any.
        numbers: The open numbers, if there are any.
    """

    signature: Signature
    leaves: Sequence[Any]
    sizes: Sizes | None
    numbers: Numbers | None

    def stays_open(self) -> bool:
        """Whether what was assumed leaves more than one value of something."""
        if self.sizes is not None and not self.sizes.are_fixed:
            return True
        numbers = self.numbers
        return numbers is not None and any(
            kind is not int and at not in numbers.log.fixed for at, kind in numbers.kinds.items()
        )


class SizeHistory:
    """The sizes and numbers that a function was called with, as far as it was compiled for them.

    Callers hold the function's lock.
    """

    def __init__(self, dynamic: bool | None) -> None:
        """Start without any.

        Args:
            dynamic: True leaves every size of every argument open, False none; with None those
                that changed between two compilations, and those in ``always``: of each leaf.
                So it is for numbers, and those at the positions in ``varied``.
        """
        self.dynamic = dynamic
        self.always: Sequence[frozenset[int]] = ()
        self.read = range(0)
        self.varied: Collection[int] = ()
        self._reads_change = False
        self.static: Callable[[TreeSpec], Collection[int]] = lambda tree: ()
        self._seen: OrderedDict[Any, _Seen] = OrderedDict()
        self._refused: dict[Any, str] = {}
        self._fixed: set[Any] = set()
        self._numbers: OrderedDict[Any, dict[int, Any]] = OrderedDict()
        self._settled: dict[Any, dict[tuple[int, type], int]] = {}

    def opening(
        self, signature: Signature, leaves: Sequence[Any], *, with_numbers: bool = True
    ) -> Opening | None:
        """What to leave open of a call that has to be compiled; None for nothing.

        Args:
            signature: Of the call.
            leaves: Its leaves.
            with_numbers: Whether numbers may be.
        """
        kinds = self._open_numbers(signature)
        numbers = Numbers(kinds, self.read) if kinds and with_numbers else None
        sizes = self.sizes(signature, leaves, numbers)
        if sizes is None and numbers is None:
            return None
        opened = signature if numbers is None else numbers.signature(signature)
        if opened is None:
            return None
        given = leaves if numbers is None else numbers.leaves(leaves)
        return Opening(opened if sizes is None else sizes.signature, given, sizes, numbers)

    def opening_of_numbers(self, signature: Signature, leaves: Sequence[Any]) -> Opening | None:
        """The same of floats alone, where sizes can't be open."""
        kinds = self._open_numbers(signature)
        kinds = {at: Whole if kind is int else kind for at, kind in kinds.items()}
        numbers = Numbers(kinds) if kinds else None
        opened = None if numbers is None else numbers.signature(signature)
        if opened is None or numbers is None:
            return None
        numbers.log.is_at_level = True
        return Opening(opened, numbers.leaves(leaves), None, numbers)

    def note(self, signature: Signature) -> None:
        """Note a call that needn't be compiled; sizes and numbers of others are changes to it."""
        self._open_numbers(signature)
        if not (self.dynamic is False or signature.ambient.forward_mode):
            self._changed(_skeleton(signature), signature)

    def _open_numbers(self, signature: Signature) -> dict[int, type]:
        """The numbers that had another value once, and may be open."""
        closed = self.dynamic is False or not config.get().open_numbers
        if closed or signature.ambient.forward_mode:
            return {}
        key = _skeleton(signature)
        given = {at: str(leaf) for at, leaf in enumerate(signature.leaves) if _is_number(leaf)}
        seen = self._numbers.setdefault(key, dict(given))
        if len(self._numbers) > _KEPT:
            self._numbers.popitem(last=False)
        for at, value in given.items():
            if seen[at] != value:
                seen[at] = None
                self._reads_change |= at in self.read
        seen.update((at, None) for at in given if at in self.varied)
        self._reads_change |= any(at in self.read for at in self.varied)
        if self._reads_change:
            seen.update((at, None) for at in given if at in self.read)
        static = self.static(signature.tree)
        changed = [at for at in given if seen[at] is None and at not in static]
        kinds = {at: self._kind_of(key, at, signature.leaves[at]) for at in changed}
        return {at: kind for at, kind in kinds.items() if kind is not None}

    def _kind_of(self, key: Any, at: int, leaf: Any) -> type | None:
        """As what a number can be left open; None if it can't."""
        settled = self._settled.get(key, {})
        if is_numpy_kind(leaf.kind):
            is_computed = can_be_computed_with(leaf) and settled.get((at, _SIZE), 0) < _STRIKES
            return leaf.kind if is_computed else None
        is_size = can_be_open(leaf, 0 if at in self.read else 2)
        if is_size and settled.get((at, _SIZE), 0) < _STRIKES:
            return type(number_of(leaf))
        computed = at not in self.read and can_be_computed_with(leaf)
        return Whole if computed and settled.get((at, Whole), 0) < _STRIKES else None

    def close_numbers(self, signature: Signature, positions: Iterable[int]) -> None:
        """Compile calls like this one for their own values of some numbers from now on."""
        settled = self._settled.setdefault(_skeleton(signature), {})
        both = [(at, kind) for at in positions for kind in (_SIZE, Whole)]
        settled.update(dict.fromkeys(both, _STRIKES))

    def note_settled(self, signature: Signature, opening: Opening) -> None:
        """Note which numbers turned out to be right for one value only.

        A size or a number that was compared with one value may be a special case, once. Ops treat
        0 and 1 differently; that says nothing about other values.
        """
        numbers, sizes = opening.numbers, opening.sizes
        if numbers is None:
            return
        settled = self._settled.setdefault(_skeleton(signature), {})
        for at in numbers.log.fixed:
            place = (at, Whole if numbers.kinds[at] is Whole else _SIZE)
            if number_of(signature.leaves[at]) not in SPECIAL:
                settled[place] = _STRIKES
        if sizes is None:
            return
        for symbol, (leaf, _, _) in zip(sizes.environment.symbols, sizes.sources, strict=True):
            only = sizes.conditions.only_size(symbol) if leaf in numbers.kinds else None
            if only is not None and only - numbers.added(leaf) > 1:
                settled[leaf, _SIZE] = settled.get((leaf, _SIZE), 0) + 1

    def sizes(
        self, signature: Signature, leaves: Sequence[Any], numbers: Numbers | None = None
    ) -> Sizes | None:
        """The sizes to leave open of a call that has to be compiled; None for none.

        Args:
            signature: Of the call.
            leaves: Its leaves.
            numbers: Numbers that are left open; the whole ones are sizes.
        """
        if self.dynamic is False or signature.ambient.forward_mode:
            return None
        marked = [
            _marks_inside(leaf, spec) for leaf, spec in zip(leaves, signature.leaves, strict=True)
        ]
        always = self.always if len(self.always) == len(leaves) else [_NONE] * len(leaves)
        key = _skeleton(signature)
        changed, alike = self._changed(key, signature)
        whole = [at for at, kind in numbers.kinds.items() if kind is int] if numbers else []
        if key in self._refused and not any(marked):
            dims = [_NONE] * len(leaves)
        else:
            dims = [
                _open(leaf) if self.dynamic else new | own | (_open(leaf) & wanted)
                for leaf, new, own, wanted in zip(
                    signature.leaves, changed, marked, always, strict=True
                )
            ]
        static = self.static(signature.tree)
        dims = [
            _NONE if at in static else found - _closed(leaf)
            for at, (found, leaf) in enumerate(zip(dims, leaves, strict=True))
        ]
        if signature.has_wrappers:
            dims = with_batches(signature.leaves, dims, alike)
        for at in whole:
            dims[at] = marked[at] = frozenset({0})
        opened = signature if numbers is None else numbers.signature(signature)
        if opened is None or not any(dims):
            return None
        if not signature.has_wrappers:
            return generalized(opened, dims, marked, alike)
        try:
            return generalized(opened, dims, marked, alike, Opener(leaves))
        except Exception as error:  # noqa: BLE001  (whatever the wrapper's class raises)
            self.refuse(signature, f"{type(error).__name__}: {error}")
            return None

    def refuse(self, signature: Signature, reason: str) -> None:
        """Compile calls like this one for their own sizes from now on."""
        self._refused[_skeleton(signature)] = reason

    def refuse_all(self, signatures: Iterable[Signature]) -> None:
        """Leave no sizes open of calls like those of which a derivative has read values.

        Such a derivative can't be traced with open sizes, which would be known when it is asked
        for: after the call.
        """
        for signature in signatures:
            self.refuse(signature, "a derivative depends on values that it reads")

    def note_fixed(self, signature: Signature) -> None:
        """Note that a program turned out to be right for one size only.

        One may be a special case. At the second, calls like these are compiled for their sizes.
        """
        key = _skeleton(signature)
        if key in self._fixed:
            self._refused[key] = "what it does is right for one size only"
        self._fixed.add(key)

    def reason(self, signature: Signature) -> str | None:
        """Why calls like this one are compiled for their own sizes, if something forbids more."""
        return self._refused.get(_skeleton(signature)) if self._refused else None

    def clear(self) -> None:
        """Forget everything."""
        self._seen.clear()
        self._refused.clear()
        self._fixed.clear()
        self._numbers.clear()
        self._settled.clear()

    def _changed(
        self, key: Any, signature: Signature
    ) -> tuple[list[frozenset[int]], Sequence[Sequence[int]]]:
        """For each leaf the sizes that were another once; and which have always been equal.

        The latter is a number for each size: equal for those that have been.
        """
        now = [_shape(leaf) for leaf in signature.leaves]
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = _Seen([list(sizes) for sizes in now], now)
            if len(self._seen) > _KEPT:
                self._seen.popitem(last=False)
        seen.note(now)
        changed = [frozenset(d for d, size in enumerate(e) if size is None) for e in seen.sizes]
        return changed, seen.alike


@dataclass
class _Seen:
    """The sizes of calls that were compiled.

    Attributes:
        sizes: For each leaf its sizes, None for those that have had several values.
        alike: For each leaf and size a number, equal for sizes that have always been equal.
    """

    sizes: list[list[int | None]]
    alike: Sequence[Sequence[int]]

    def note(self, now: Sequence[Sequence[int]]) -> None:
        """Add a call."""
        numbers: dict[Any, int] = {}
        for known, sizes in zip(self.sizes, now, strict=True):
            for at, size in enumerate(sizes):
                if known[at] != size:
                    known[at] = None
        self.alike = [
            [numbers.setdefault(pair, len(numbers)) for pair in zip(before, sizes, strict=True)]
            for before, sizes in zip(self.alike, now, strict=True)
        ]


def refuse_marks(leaves: Sequence[Any], name: str, reason: Exception) -> None:
    """Tell the user that a dimension that is marked can't be left open.

    Raises:
        UnsupportedError: If some argument has a mark.
    """
    if any(map(_marks, leaves)):
        raise UnsupportedError(
            f"{name} was given a tensor marked by mark_dynamic, and can't be captured without "
            f"knowing its sizes: {reason}",
            remedy="don't mark the tensor, so that each size gets a program of its own.",
        ) from reason


def refuse_closed_marks(sizes: Sizes, leaves: Sequence[Any], name: str) -> None:
    """Tell the user that a function works for one size of a marked dimension only.

    Raises:
        UnsupportedError: If it does.
    """
    for symbol, (leaf, dim, path) in zip(sizes.environment.symbols, sizes.sources, strict=True):
        only = sizes.conditions.only_size(symbol)
        if only is not None and not path and dim in _marks(leaves[leaf]):
            raise UnsupportedError(
                f"{name} was given a tensor marked by mark_dynamic (leaf {leaf} of its arguments, "
                f"dimension {dim}), but what it does is right for size {only} only.",
                remedy="don't turn the size into a Python number (int(), range(), indexing by "
                "it), or don't mark the dimension.",
            )


def _marks(leaf: Any) -> frozenset[int]:
    if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
        return frozenset()
    return getattr(leaf, _MARKS, frozenset())


def _closed(leaf: Any) -> frozenset[int]:
    return getattr(leaf, _CLOSED, _NONE) if isinstance(leaf, torch.Tensor) else _NONE


def _marks_inside(leaf: Any, spec: Any) -> frozenset[int]:
    """The dimensions that are marked, of a wrapper with the sizes inside that are equal to them."""
    marks = _marks(leaf)
    if not marks or getattr(spec, "structure", None) is None:
        return marks
    sizes = sizes_of(spec)
    wanted = {sizes[dim] for dim in marks}
    return frozenset(place for place, size in enumerate(sizes) if size in wanted)


def _shape(leaf: Any) -> tuple[int, ...]:
    """A leaf's sizes: of a wrapper, with those of the tensors inside."""
    if not isinstance(leaf, TensorSpec):
        return ()
    if leaf.structure is not None:
        return sizes_of(leaf)
    return leaf.shape if leaf.layout is torch.strided else ()


def _is_number(leaf: Any) -> bool:
    return number_of(leaf) is not None


def _open(leaf: Any) -> frozenset[int]:
    return frozenset(range(len(_shape(leaf))))


def _skeleton(signature: Signature) -> Any:
    """A signature without sizes, strides and the values of numbers."""
    leaves = tuple(
        skeleton(leaf)
        if isinstance(leaf, TensorSpec)
        else type(number_of(leaf))
        if _is_number(leaf)
        else leaf
        for leaf in signature.leaves
    )
    return signature.tree, leaves, signature.kinds, signature.repeats, signature.ambient
