"""Graphs of autograd that a Function's forward records itself and keeps; its rules run on them.

Such a backward differentiates what forward kept, by ``torch.autograd.grad`` or ``backward()``. A
tape traces it once for each kind of gradients that arrive, always on the one graph that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from funcaot._torch.autograd.nodes import leaves_behind
from funcaot._torch.levels.functorch import is_pullback, transforms_active
from funcaot._torch.tensors.pytree import tree_flatten
from funcaot.classes.opaque import KeepsGraphError, current_captor
from funcaot.classes.traits import display_name, has_jvp, has_vmap
from funcaot.errors import UnsupportedError
from funcaot.rules.nested_backward import BACKWARDS, filled_by, tensors_in
from funcaot.rules.operands.entered import is_of_a_call
from funcaot.rules.operands.reached import tensors_reached
from funcaot.rules.seen import Seen

__all__ = ["Recorded", "RetainingGraphs", "keeps_graph", "own_leaves", "refuse_graphs"]

_SEVERING: Any = (torch.Tensor.detach, torch.detach, torch.Tensor.data.__get__)  # type: ignore[attr-defined]


def refuse_graphs(name: str, tensors: Sequence[torch.Tensor]) -> None:
    """Refuse a forward that can't be a node, since it keeps tensors with their graphs.

    Args:
        name: The Function's.
        tensors: What it keeps so.

    Raises:
        KeepsGraphError: If there are any.
    """
    if not tensors:
        return
    node: Any = tensors[0].grad_fn
    behind = {id(x): x for x in leaves_behind(tensors) if isinstance(x, torch.nn.Parameter)}
    raise _error(name, f"one that {node.name()} made", tuple(behind.values()))


class Recorded(TorchFunctionMode):
    """Sees whether a forward computes with operands where eager records that.

    It does so under ``torch.enable_grad``. The operands that a node's forward is given have no
    graph; where it has to be a node, neither has what it keeps.
    """

    def __init__(self, operands: tuple[Any, ...], seen: Seen) -> None:
        """Nothing yet.

        Args:
            operands: What forward is given.
            seen: What these say.
        """
        super().__init__()
        self._recorded = seen.needing(operands)
        self._found = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Look at one op."""
        result = func(*args, **(kwargs or {}))
        if torch.is_grad_enabled() and func not in _SEVERING and not self._found:
            made = bool(tensors_in(result))
            given = map(id, tree_flatten((args, kwargs))[0])
            self._found = made and not self._recorded.isdisjoint(given)
        return result

    def refuse(self, function: type, kept: Iterable[Any]) -> None:
        """Refuse a Function that keeps what it records, if there is another way.

        Args:
            function: The Function.
            kept: Intermediates and attributes of its ctx.

        Raises:
            KeepsGraphError: If a capture can call it as eager does.
        """
        if (
            current_captor() is None
            or transforms_active()
            or has_jvp(function)
            or has_vmap(function)
        ):
            return
        kept = tuple(kept)
        if self._found and any(map(_is_tensor, kept)):
            got = "what it computes with operands under enable_grad"
            raise _error(display_name(function), got, ())
        if any(isinstance(each, FunctionType) and is_pullback(each) for each in kept):
            raise _error(display_name(function), "a function that torch.func.vjp returned", ())


def _error(name: str, got: str, leaves: tuple[torch.Tensor, ...]) -> KeepsGraphError:
    error = KeepsGraphError(
        f"forward of {name} keeps a tensor on ctx together with the graph that autograd recorded "
        "for it inside",
        expected="tensors without a graph",
        got=got,
        remedy="keep what it is computed from (`ctx.save_for_backward(x)`), and in backward "
        "compute it again from `x.detach().requires_grad_()`, under torch.enable_grad().",
    )
    error.leaves = leaves
    return error


def own_leaves(ctx: Any, given: Iterable[Any]) -> list[torch.Tensor]:
    """The leaves that forward made and a ctx keeps.

    Args:
        ctx: The ctx.
        given: Operands of the call, which aren't forward's own.
    """
    known = set(map(id, given))
    held = [*filter(_is_tensor, ctx.saved_tensors), *tensors_reached([vars(ctx)])]
    return [t for t in held if t.is_leaf and id(t) not in known and is_of_a_call(t)]


def keeps_graph(ctx: Any, given: Iterable[Any]) -> bool:
    """Whether a ctx that was just filled keeps a tensor with a graph of its own.

    Args:
        ctx: The ctx.
        given: Operands and outputs of the call, which have the graph of the caller.
    """
    known = set(map(id, given))
    held = [*filter(_is_tensor, ctx.to_save or ()), *tensors_reached([vars(ctx)])]
    return any(tensor.grad_fn is not None and id(tensor) not in known for tensor in held)


class RetainingGraphs(TorchFunctionMode):
    """While a backward runs: graphs that it goes through stay, and so does ``.grad`` of leaves."""

    def __init__(self, name: str, own: Iterable[torch.Tensor]) -> None:
        """Note nothing yet.

        Args:
            name: The Function's, for messages.
            own: Leaves whose ``.grad`` the backward may fill, besides those that it makes.
        """
        super().__init__()
        self._name = name
        self._own = {id(tensor): tensor for tensor in own}
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor | None]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Retain what is differentiated, and note what it fills.

        Raises:
            UnsupportedError: If ``backward()`` reaches a leaf that isn't the Function's own.
        """
        options = kwargs or {}
        if func is torch.autograd.grad or func in BACKWARDS:
            options = {**options, "retain_graph": True}
        if func in BACKWARDS:
            self._note(filled_by(args, options))
        result = func(*args, **options)
        self._own.update((id(t), t) for t in tensors_in(result) if t.is_leaf)
        return result

    def _note(self, leaves: Iterable[torch.Tensor]) -> None:
        for leaf in leaves:
            if id(leaf) not in self._own:
                raise UnsupportedError(
                    f"The backward of {self._name} calls backward() on a graph that its forward "
                    "kept, and that fills .grad of a tensor from outside of it.",
                    remedy="use torch.autograd.grad and return the gradients; pass the tensor as "
                    "an operand.",
                )
            self._before.setdefault(id(leaf), (leaf, leaf.grad))

    def __exit__(self, *error: Any) -> None:
        """Put gradients back: the next backward of this graph begins without any."""
        super().__exit__(*error)
        for leaf, before in self._before.values():
            leaf.grad = before


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
