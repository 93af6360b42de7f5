"""Which dimensions of a call's tensors a program leaves open."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from funcaot.aot.graph.tensor_spec import TensorSpec
from funcaot.aot.signature.signature import Signature
from funcaot.aot.signature.sizes import Sizes, generalized
from funcaot.errors import FuncaotError, UnsupportedError

_MARKS = "_funcaot_dynamic"
_KEPT = 256
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
    rank = tensor.dim()
    for each in dims:
        if not isinstance(each, int) or isinstance(each, bool):
            raise FuncaotError(
                "mark_dynamic was given something else than a dimension.",
                expected="a number, or several in a list",
                got=repr(each),
                remedy="count dimensions from 0, or from -1 backward.",
            )
        if not -rank <= each < rank:
            raise FuncaotError(
                "mark_dynamic was given a dimension that the tensor doesn't have.",
                expected=f"a dimension of a tensor of {rank} dimensions",
                got=str(each),
                remedy="count dimensions from 0, or from -1 backward.",
            )
    marks = getattr(tensor, _MARKS, frozenset()) | {each % rank for each in dims}
    setattr(tensor, _MARKS, marks)


class SizeHistory:
    """The sizes that a function was called with, as far as it was compiled for them.

    Callers hold the function's lock.
    """

    def __init__(self, dynamic: bool | None) -> None:
        """Start without any.

        Args:
            dynamic: True leaves every size of every argument open, False none; with None those
                that changed between two compilations, and those in ``always``: of each leaf.
        """
        self.dynamic = dynamic
        self.always: Sequence[frozenset[int]] = ()
        self._seen: OrderedDict[Any, list[list[int | None]]] = OrderedDict()
        self._refused: dict[Any, str] = {}
        self._fixed: set[Any] = set()

    def sizes(self, signature: Signature, leaves: Sequence[Any]) -> Sizes | None:
        """What to leave open of a call that has to be compiled; None for nothing."""
        if self.dynamic is False or signature.ambient.forward_mode or signature.has_wrappers:
            return None
        marked = [_marks(leaf) for leaf in leaves]
        always = self.always if len(self.always) == len(leaves) else [_NONE] * len(leaves)
        key = _skeleton(signature)
        changed = self._changed(key, signature)
        if key in self._refused and not any(marked):
            return None
        dims = [
            _open(leaf) if self.dynamic else new | own | (_open(leaf) & wanted)
            for leaf, new, own, wanted in zip(
                signature.leaves, changed, marked, always, strict=True
            )
        ]
        return generalized(signature, dims, marked) if any(dims) else None

    def refuse(self, signature: Signature, reason: str) -> None:
        """Compile calls like this one for their own sizes from now on."""
        self._refused[_skeleton(signature)] = reason

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

    def _changed(self, key: Any, signature: Signature) -> list[frozenset[int]]:
        """For each leaf the dimensions that had another size once."""
        seen = self._seen.get(key)
        if seen is None:
            seen = self._seen[key] = [list(_shape(leaf)) for leaf in signature.leaves]
            if len(self._seen) > _KEPT:
                self._seen.popitem(last=False)
        for known, leaf in zip(seen, signature.leaves, strict=True):
            for dim, size in enumerate(_shape(leaf)):
                if known[dim] != size:
                    known[dim] = None
        return [frozenset(d for d, size in enumerate(known) if size is None) for known in seen]


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
    for symbol, (leaf, dim) in zip(sizes.environment.symbols, sizes.sources, strict=True):
        only = sizes.conditions.only_size(symbol)
        if only is not None and dim in _marks(leaves[leaf]):
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


def _shape(leaf: Any) -> tuple[int, ...]:
    strided = isinstance(leaf, TensorSpec) and leaf.layout is torch.strided
    return leaf.shape if strided else ()


def _open(leaf: Any) -> frozenset[int]:
    return frozenset(range(len(_shape(leaf))))


def _skeleton(signature: Signature) -> Any:
    """A signature without sizes and strides."""
    leaves = tuple(
        (leaf.dtype, leaf.device, len(leaf.shape), leaf.requires_grad, leaf.is_leaf, leaf.flags)
        if isinstance(leaf, TensorSpec) and leaf.layout is torch.strided
        else leaf
        for leaf in signature.leaves
    )
    return signature.tree, leaves, signature.kinds, signature.repeats, signature.ambient
