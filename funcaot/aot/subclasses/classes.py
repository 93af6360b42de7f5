"""Classes of tensors that say what functions of torch do with them, while a function is captured.

A mode stands for what C++ does in eager: it hands each call to the class of its arguments. What the
class calls in turn comes here again, and goes on to the tape once the class says so.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.levels import functorch
from funcaot._torch.tensors.classes.own_functions import (
    functions_of_classes_off,
    functions_of_classes_on,
    has_own_dispatch,
    has_own_functions,
    is_own_class,
    names_in_place,
    own_function_of,
)
from funcaot._torch.tensors.ops import HigherOrderOperator
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot._torch.tracing import tracing
from funcaot._torch.tracing.own_classes import can_enter, class_of, making_classes, put_in_class
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.base.scopes import holding
from funcaot.errors import UnsupportedError

__all__ = ["Classes", "has_acting_classes", "refuse_class", "refused"]


# What a program reads of real tensors, and what it calls on them.
_READ = ("shape", "dtype", "device", "layout", "ndim", "requires_grad", "is_leaf")
_USED = frozenset(
    {
        *("data", "grad", "grad_fn", "_base", "_version", "_is_view", "is_inference", "data_ptr"),
        *("size", "stride", "dim", "numel", "is_conj", "is_neg", "storage_offset", "as_strided"),
        *("untyped_storage", "detach", "detach_", "copy_", "set_", "resize_", "as_subclass"),
        *("_make_subclass", "is_nested", "is_quantized", "element_size", "view_as", "_nnz"),
        *("register_hook", "_backward_hooks", "_post_accumulate_grad_hooks", "is_sparse"),
    }
)


def refuse_class(kind: type, said: str, tensor: torch.Tensor | None = None) -> None:
    """Refuse a class of tensors that no tape can have.

    Args:
        kind: The class.
        said: What is done with a tensor of it, for the message.
        tensor: A real one, if there is one.

    Raises:
        EagerOnlyError: If it is one.
    """
    if not is_own_class(kind):
        return
    wraps = has_own_dispatch(kind)
    if wraps or not can_enter(kind) or _looks_otherwise(kind, tensor):
        inner = (
            "pass the tensors inside, or give the class __tensor_flatten__ and its inverse, or "
            "tell funcaot.register_wrapper how it is taken apart"
        )
        remedy = inner if wraps else "pass x.as_subclass(torch.Tensor)"
        raise EagerOnlyError(
            said.format(f"a tensor of class {kind.__name__}, which says itself what ops do,"),
            remedy=f"{remedy}, or keep it out of the compiled function.",
        )


def _looks_otherwise(kind: type, tensor: torch.Tensor | None) -> bool:
    """Whether a class says something else of its tensors than C++ does, where that is read."""
    in_place = names_in_place(kind)
    if not in_place:
        return False
    if not _USED.isdisjoint(in_place):
        return True
    if tensor is None:
        return False
    try:
        return any(
            getattr(tensor, name) != getattr(torch.Tensor, name).__get__(tensor)
            for name in _READ
            if name in in_place
        )
    except Exception:  # noqa: BLE001 (the user's property may raise anything)
        return True


class Classes(TorchFunctionMode):
    """Hands calls to the classes of their arguments.

    Attributes:
        met: The users' classes of tensors that the function was given or made.
    """

    def __init__(self, name: str, leaves: Iterable[Any] = ()) -> None:
        """Meet those of arguments.

        Args:
            name: The user's function, for messages.
            leaves: Flat leaves of the call.
        """
        super().__init__()
        kinds = {type(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
        self.met: set[type] = set(filter(is_own_class, kinds))
        self._name = name

    @contextlib.contextmanager
    def left_to_eager(self) -> Iterator[None]:
        """Leave a call to eager, which knows what to do, where a class says what functions do."""
        try:
            yield
        except EagerOnlyError:
            raise
        except UnsupportedError as error:
            if error.repeatable and self.act:
                error.left_to_eager = EagerOnlyError(error.what, remedy=error.remedy)
            raise

    @property
    def act(self) -> bool:
        """Whether one of them says what functions do."""
        return any(map(has_own_functions, self.met))

    @contextlib.contextmanager
    def making(self) -> Iterator[None]:
        """While the function runs, ``as_subclass`` makes tensors of the tape."""
        with making_classes(self._make), holding(_this_thread, classes=self):
            yield

    def refuse(self, what: str) -> None:
        """Refuse what can't be done where a class says what functions do.

        Args:
            what: What the function does.

        Raises:
            EagerOnlyError: If there is such a class.
        """
        acting = sorted(kind.__name__ for kind in self.met if has_own_functions(kind))
        if acting:
            raise EagerOnlyError(
                f"{self._name} {what} with tensors of class {acting[0]}.",
                remedy="compute that of x.as_subclass(torch.Tensor).",
            )

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Let a class say what a function does, if one of the arguments is of such a class."""
        kwargs = kwargs or {}
        if functions_of_classes_on():
            kinds = self._kinds(args, kwargs)
            if kinds:
                self._refuse(func, kinds)
                return self._by_class(func, kinds, args, kwargs)
        return func(*args, **kwargs)

    def _kinds(self, args: Any, kwargs: Any) -> list[Any]:
        """The classes of arguments that say what functions do, those of subclasses first."""
        found: list[Any] = []
        for value in _given((args, kwargs)):
            kind = class_of(value)
            if kind in found:
                continue
            if isinstance(value, torch.Tensor):
                if not is_own_class(kind):
                    continue
                self.met.add(kind)
            if own_function_of(kind) is None:
                continue
            at = next((i for i, known in enumerate(found) if issubclass(kind, known)), len(found))
            found.insert(at, kind)
        return found if any(issubclass(kind, torch.Tensor) for kind in found) else []

    def _refuse(self, func: Any, kinds: list[Any]) -> None:
        """Refuse what isn't a function for classes in eager, where others look at the class."""
        if isinstance(func, HigherOrderOperator):
            raise EagerOnlyError(
                f"{self._name} calls a Function, or an operator that is given functions, with a "
                f"tensor of class {kinds[0].__name__}, which its code would see.",
                remedy="pass it x.as_subclass(torch.Tensor).",
            )
        if func is torch.Tensor.__deepcopy__:
            raise EagerOnlyError(
                f"{self._name} copies a tensor of class {kinds[0].__name__} by copy.deepcopy.",
                remedy="use clone().",
            )

    def _by_class(self, func: Any, kinds: list[Any], args: Any, kwargs: Any) -> Any:
        for kind in kinds:
            with self:
                result = kind.__torch_function__(func, tuple(kinds), args, kwargs)
            if result is not NotImplemented:
                return result
        name = f"{getattr(func, '__module__', None) or 'torch'}.{getattr(func, '__name__', func)}"
        raise TypeError(
            f"Multiple dispatch failed for '{name}'; all __torch_function__ handlers returned "
            "NotImplemented."
        )

    def _make(self, data: torch.Tensor, kind: type, requires_grad: bool | None) -> Any:
        """A tensor of a class made of another one; ``NotImplemented`` for what isn't on a tape."""
        if not tracing.is_capturing() or not _is_plain_or_own(type(data)):
            return NotImplemented
        if not (isinstance(kind, type) and issubclass(kind, torch.Tensor)):
            return NotImplemented
        if is_own_class(kind):
            self.met.add(kind)
        refuse_class(kind, f"{self._name} makes {{}} of another one.")
        if not (kind is torch.Tensor or is_own_class(kind)):
            return NotImplemented
        with functions_of_classes_off():
            if requires_grad is None:
                made = torch.ops.aten.alias.default(data)
            else:
                made = data.detach()
        at_level = type(made) is torch.Tensor and functorch.is_functorch_wrapped_tensor(made)
        if not (at_level or isinstance(made, tracing.FunctionalTensor)):
            return NotImplemented
        put_in_class(made, kind)
        return made.requires_grad_() if requires_grad else made


class _ThisThread(threading.local):
    classes: Classes | None = None


_this_thread = _ThisThread()


@contextlib.contextmanager
def refused(where: str) -> Iterator[None]:
    """Refuse classes that are met before the end of a block of the user's function.

    Args:
        where: What the block is.

    Raises:
        EagerOnlyError: If there is one.
    """
    yield
    if _this_thread.classes is not None:
        _this_thread.classes.refuse(f"computes {where},")


def has_acting_classes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is a tensor of a class that says what functions of torch do."""
    tensors = (leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, torch.Tensor))
    return any(has_own_functions(type(tensor)) for tensor in tensors)


def _is_plain_or_own(kind: type) -> bool:
    plain = kind in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return plain or issubclass(kind, tracing.FunctionalTensor) or is_own_class(kind)


def _given(values: Iterable[Any]) -> Iterator[Any]:
    """Arguments, and what is in lists of them, that may be of a class with such a function."""
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _given(value)
        elif isinstance(value, dict):
            yield from _given(value.values())
        elif type(value) is not tracing.FunctionalTensor and (
            isinstance(value, torch.Tensor) or hasattr(type(value), "__torch_function__")
        ):
            yield value
