"""Contexts written in Python: one that records what ``setup_context`` did, one that overrides."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from funcaot.errors import RuleError

_API = frozenset(
    {
        "saved_tensors",
        "saved_variables",
        "needs_input_grad",
        "save_for_backward",
        "save_for_forward",
        "mark_dirty",
        "mark_non_differentiable",
        "set_materialize_grads",
        "recorded_attributes",
    }
)


class RecordingContext:
    """A ``ctx`` that keeps what was done to it as data.

    A generated rule runs the user's ``setup_context`` on one of these, at the level where its
    tensors make sense, and then replays the record on autograd's own ctx at another level.

    Attributes:
        to_save: Tensors given to ``save_for_backward``, or None.
        saved_for_forward: Tensors given to ``save_for_forward``, or None.
        dirty_tensors: Tensors given to ``mark_dirty``.
        non_differentiable: Tensors given to ``mark_non_differentiable``.
        materialize_grads: Whether missing gradients become zeros.
        needs_input_grad: One boolean per input.
        recorded_attributes: Every other attribute that was set.
    """

    def __init__(
        self,
        needs_input_grad: tuple[bool, ...] = (),
        *,
        saved_tensors: tuple[Any, ...] | None = None,
        attributes: dict[str, Any] | None = None,
        owner: str = "A Function",
    ) -> None:
        """Start an empty record, or one that a backward can read ``saved_tensors`` from.

        ``owner`` is the name of the Function in errors.
        """
        own = self.__dict__
        own["_funcaot_owner"] = owner
        own["to_save"] = saved_tensors
        own["saved_for_forward"] = None
        own["dirty_tensors"] = ()
        own["non_differentiable"] = ()
        own["materialize_grads"] = True
        own["needs_input_grad"] = needs_input_grad
        own["recorded_attributes"] = {} if attributes is None else attributes

    def save_for_backward(self, *tensors: Any) -> None:
        """Record the tensors that ``backward`` will read."""
        for index, value in enumerate(tensors):
            if not (value is None or isinstance(value, torch.Tensor)):
                raise TypeError(
                    f"save_for_backward can only save variables, but argument {index} is of type "
                    f"{type(value).__name__}"
                )
        self.__dict__["to_save"] = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Record the tensors that ``jvp`` will read."""
        self.__dict__["saved_for_forward"] = tensors

    def mark_dirty(self, *tensors: torch.Tensor) -> None:
        """Record the inputs that forward changed in place."""
        self.__dict__["dirty_tensors"] = tensors

    def mark_non_differentiable(self, *tensors: torch.Tensor) -> None:
        """Record the outputs that have no derivative."""
        self.__dict__["non_differentiable"] = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Record whether missing gradients become zeros."""
        self.__dict__["materialize_grads"] = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """What was saved for the rule that is running."""
        if self.to_save is not None:
            return self.to_save
        return self.saved_for_forward or ()

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """``saved_tensors`` by the name that torch deprecates."""
        message = "'saved_variables' is deprecated; use 'saved_tensors'"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return self.saved_tensors

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "needs_input_grad" and self.to_save is not None:
            # The rules that torch.library generates hide their last operand in this way.
            self.__dict__[name] = value
            return
        if name in _API:
            raise RuleError(
                f"setup_context of {self._funcaot_owner}, run per example by a transform, set "
                f"`ctx.{name}`, which is part of the interface of ctx",
                expected="attributes of ctx with names of their own",
                got=f"an assignment to `ctx.{name}`",
                remedy=f"rename the attribute, for instance `ctx.my_{name}`.",
            )
        if name in self.__dict__:  # to_save, materialize_grads, ...: the long-hand of a method
            self.__dict__[name] = value
        else:
            self.recorded_attributes[name] = value

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["recorded_attributes"][name]
        except KeyError:
            raise AttributeError(
                f"ctx of {self.__dict__['_funcaot_owner']} has no attribute {name!r}: "
                "setup_context never set it"
            ) from None

    def __delattr__(self, name: str) -> None:
        try:
            del self.recorded_attributes[name]
        except KeyError:
            raise AttributeError(name) from None


class OverlayContext:
    """A ctx seen through replacements for some of its attributes; writes go to the ctx itself."""

    def __init__(self, ctx: Any, **replacements: Any) -> None:
        """Lay ``replacements`` over ``ctx``."""
        self.__dict__["_funcaot_under"] = ctx
        self.__dict__.update(replacements)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_funcaot_under"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__dict__["_funcaot_under"], name, value)


def attributes_of(ctx: Any) -> dict[str, Any]:
    """What the user set on a ctx, whichever kind of ctx it is."""
    if isinstance(ctx, RecordingContext):
        return dict(ctx.recorded_attributes)
    if isinstance(ctx, OverlayContext):
        return attributes_of(ctx.__dict__["_funcaot_under"])
    return dict(vars(ctx))


def share_saved_tensors(ctx: Any) -> None:
    """Let ``backward`` and ``jvp`` read the same saved tensors: one is made from the other."""
    if ctx.saved_for_forward is None and ctx.to_save is not None:
        ctx.save_for_forward(*ctx.to_save)
    elif ctx.to_save is None and ctx.saved_for_forward is not None:
        ctx.save_for_backward(*ctx.saved_for_forward)
