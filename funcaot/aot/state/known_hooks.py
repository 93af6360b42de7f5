"""Hooks of tensors that are part of a program; ``.grad`` effects compare them in each call."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from funcaot.aot.closure.constants import is_scalar

__all__ = ["KnownHook", "are_known", "hooks_of", "hooks_with_methods", "owner_of"]


def hooks_with_methods(tensor: torch.Tensor) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Hooks of a tensor that run when its gradient is there, each with the method for it."""
    for hook in (tensor._backward_hooks or {}).values():
        yield "register_hook", hook
    for hook in (tensor._post_accumulate_grad_hooks or {}).values():
        yield "register_post_accumulate_grad_hook", hook


def hooks_of(tensor: torch.Tensor) -> list[Callable[..., Any]]:
    """The hooks alone."""
    return [hook for _, hook in hooks_with_methods(tensor)]


def owner_of(hook: Any) -> Any:
    """The object that a hook is a method of, or is itself; None for a function."""
    if isinstance(hook, types.FunctionType | types.BuiltinFunctionType):
        return None
    return hook.__self__ if isinstance(hook, types.MethodType) else hook


def are_known(known: Sequence[KnownHook], tensor: torch.Tensor) -> bool:
    """Whether a tensor has the hooks that a program knows, in their order."""
    if not known:
        return not tensor._backward_hooks and not tensor._post_accumulate_grad_hooks
    now = hooks_of(tensor)
    return len(now) == len(known) and all(map(KnownHook.stands_for, known, now))


class KnownHook:
    """A hook that a capture ran.

    Its code is in the program, with what it closes over. So a new function stands for it only if
    it is of the same code and closes over equal numbers and texts, as one that is made and
    registered in each step.
    """

    __slots__ = ("_find", "_parts")

    def __init__(self, hook: Any) -> None:
        """Remember a hook without keeping it alive.

        Args:
            hook: Anything that can be called.
        """
        self._find: Callable[[], Any]
        try:
            is_method = isinstance(hook, types.MethodType)
            self._find = weakref.WeakMethod(hook) if is_method else weakref.ref(hook)
        except TypeError:
            self._find = lambda: hook
        self._parts = _parts(hook)

    def stands_for(self, hook: Any) -> bool:
        """Whether it does what another one does."""
        found = self._find()
        if found is hook:
            return True
        if isinstance(hook, types.MethodType):
            return isinstance(found, types.MethodType) and found == hook
        parts = _parts(hook)
        return parts is not None and parts == self._parts


def _parts(hook: Any) -> tuple[Any, ...] | None:
    """All that a function is made of, if that is code and constants."""
    if type(hook) is not types.FunctionType:
        return None
    held = [*(hook.__defaults__ or ()), *(hook.__kwdefaults__ or {}).values()]
    try:
        held += [cell.cell_contents for cell in hook.__closure__ or ()]
    except ValueError:  # a cell that is empty yet
        return None
    if not all(map(is_scalar, held)):
        return None
    return hook.__code__, id(hook.__globals__), *((type(v), repr(v)) for v in held)
