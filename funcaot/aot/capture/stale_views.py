"""Views that were made before a tensor's shape was changed in place.

Autograd makes the derivative of such a view, and of a write through it, by making the view again.
On eager's tensors it does so by ``as_strided``, for which the base's shape is nothing; on those of
a capture by the ops that made it, which mean another place in a base of another shape. So the
gradient would go to other elements. What an op is given is therefore a new view: of the base with
the changes of its shape taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from funcaot._torch.autograd import autograd
from funcaot._torch.tensors.pytree import tree_map
from funcaot._torch.tracing import tracing
from funcaot.errors import UnsupportedError

__all__ = ["Change", "ShapeHistory", "stale_view"]

_TRANSPOSING = ("transpose_", "swapdims_", "swapaxes_")


@dataclass(frozen=True)
class Change:
    """One change of a shape in place: the method, its arguments, and the shape before."""

    name: str
    arguments: tuple[Any, ...]
    shape: tuple[Any, ...]

    def again(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The same change, as a view."""
        if self.name in ("as_strided_", "resize_", "resize_as_"):
            return None
        return getattr(tensor, self.name[:-1])(*self.arguments)

    def undone(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The tensor before it, as a view of the one after; None if it isn't known how."""
        if self.name == "t_" or self.name in _TRANSPOSING:
            return self.again(tensor)
        if self.name == "unsqueeze_":
            (dimension,) = self.arguments
            return tensor.squeeze(dimension)
        if self.name == "squeeze_":
            for dimension, size in enumerate(self.shape):
                if dimension == tensor.dim() or (size == 1 and tensor.shape[dimension] != 1):
                    tensor = tensor.unsqueeze(dimension)
            return tensor if tuple(tensor.shape) == self.shape else None
        return None


@dataclass
class ShapeHistory:
    """Changes of shapes in place, by the ``id`` of the tensor.

    Attributes:
        changes: What happened to each, in order.
        kept: The tensors, so that no other one gets the ``id``.
        inputs: The ``id`` of inputs, which effects follow themselves where they are views.
    """

    changes: dict[int, list[Change]] = field(default_factory=dict)
    kept: list[torch.Tensor] = field(default_factory=list)
    inputs: set[int] = field(default_factory=set)

    def note(self, name: str, tensor: torch.Tensor, arguments: tuple[Any, ...]) -> None:
        """Note a change that is about to be made."""
        if id(tensor) not in self.changes:
            self.kept.append(tensor)
        change = Change(name, arguments, tuple(tensor.shape))
        self.changes.setdefault(id(tensor), []).append(change)

    def refreshed(self, values: Any, name: str) -> tuple[Any, dict[int, torch.Tensor]]:
        """Values with new views in place of those that autograd would make in another place.

        Args:
            values: What an op is given, or what a function returns; any structure.
            name: The user's function, for messages.

        Returns:
            The values, and for each new view by its ``id`` the one that it stands for.

        Raises:
            UnsupportedError: For a view that can't be made anew.
        """
        if not torch.is_grad_enabled():
            return values, {}
        made: dict[int, torch.Tensor] = {}
        instead: dict[int, torch.Tensor] = {}

        def replace(value: Any) -> Any:
            if not isinstance(value, tracing.FunctionalTensor) or not self.is_stale(value):
                return value
            if id(value) not in instead:
                fresh = self._anew(value)
                if fresh is None:
                    raise stale_view(value, name)
                instead[id(value)] = fresh
                made[id(fresh)] = value
            return instead[id(value)]

        return tree_map(replace, values), made

    def is_stale(self, view: torch.Tensor) -> bool:
        """Whether autograd would make a view again in another place than it has."""
        base = view._base
        if base is None or base.layout is not torch.strided or id(view) in self.inputs:
            return False
        if autograd.creation_meta(view) != autograd.CreationMeta.DEFAULT:
            # One of several results, or made in no_grad: torch has no way to make it again.
            return base.requires_grad and not self.changes.keys().isdisjoint((id(base), id(view)))
        with torch.no_grad():
            return not _is_same(_attempt(lambda: autograd.view_again(view, base)), view)

    def is_outdated(self, tensor: torch.Tensor) -> bool:
        """Whether a view is stale for what happened to its base, not to its own shape."""
        return tensor._base is not None and id(tensor._base) in self.changes

    def _anew(self, view: torch.Tensor) -> torch.Tensor | None:
        base = view._base
        if base is None or autograd.creation_meta(view) != autograd.CreationMeta.DEFAULT:
            return None
        own = self.changes.get(id(view), ())
        near = None
        later = [None, *reversed(self.changes.get(id(base), ()))]
        for change in later:
            undone = base if change is None else _attempt(lambda c=change, b=base: c.undone(b))
            if undone is None:
                return None
            base = undone
            found = _attempt(lambda b=base: autograd.view_again(view, b))
            for step in own:
                found = None if found is None else _attempt(lambda s=step, f=found: s.again(f))
            if _is_same(found, view):
                return found
            if near is None and _is_in_place(found, view):
                near = found
        return near


def stale_view(view: torch.Tensor, name: str) -> UnsupportedError:
    """What is raised for a view that can't be made anew."""
    return UnsupportedError(
        f"{name} changes the shape of a tensor in place and uses an earlier view of it "
        f"(of shape {list(view.shape)}).",
        remedy="make the view afterwards, or change the shape of a new tensor (x.t()).",
    )


def _attempt(make: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
    """A view, or None where the base's shape doesn't have it."""
    try:
        return make()
    except (RuntimeError, ValueError, IndexError):
        return None


def _is_same(found: torch.Tensor | None, view: torch.Tensor) -> bool:
    """Whether a view made again is the view: strides of dimensions of size 1 are seen, too."""
    return _is_in_place(found, view) and found is not None and found.stride() == view.stride()


def _is_in_place(found: torch.Tensor | None, view: torch.Tensor) -> bool:
    if found is None or tuple(found.shape) != tuple(view.shape):
        return False
    strides = zip(view.shape, found.stride(), view.stride(), strict=True)
    same = all(mine == theirs for size, mine, theirs in strides if size != 1)
    return same and found.storage_offset() == view.storage_offset()
