"""``funcaot.custom_vmap``: a batching rule for a plain function on pytrees."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Generic

import torch

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.levels.functorch import (
    TransformType,
    dispatch_mode_count,
    has_legacy_batched,
    interpreter_stack,
    pytree,
)
from funcaot.classes.opaque import current_captor
from funcaot.errors import MissingRuleError, RuleError, UnsupportedError
from funcaot.functions.custom_rule import P, R, forwarded, pair
from funcaot.functions.function import Function
from funcaot.functions.lifted_rules import LiftedRules
from funcaot.functions.vmap_derivatives import Derivatives
from funcaot.rules.operands.flat_call import OutputStructure
from funcaot.rules.operands.lifted_call import (
    LiftedCall,
    lifted_call,
    positional,
    signature_of,
)

__all__ = ["custom_vmap", "sequential_vmap"]


class custom_vmap(Generic[P, R]):  # noqa: N801  (a decorator)
    """Give a function its own batching rule, in JAX's argument order.

    Derivatives of what ``vmap`` made are those of the rule, in both modes and to any order. Without
    a ``vmap`` in sight the function itself is called.

    Args:
        function: The function.

    Example:
        >>> import torch, funcaot
        >>> @funcaot.custom_vmap
        ... def f(x, y):
        ...     return x @ y
        >>> @f.def_vmap
        ... def rule(axis_size, in_batched, xs, ys):
        ...     assert in_batched == [True, False]
        ...     return xs @ ys, True
        >>> torch.vmap(f, (0, None))(torch.ones(2, 3), torch.ones(3))
        tensor([3., 3.])
    """

    linear_from: int | None = None  # In the operands from here on it's linear, a derivative.

    def __init__(self, function: Callable[P, R]) -> None:
        """Wrap ``function``; its rule is set afterwards."""
        functools.update_wrapper(self, function, updated=())
        self.name = getattr(function, "__name__", type(function).__name__)
        self.function: Callable[..., Any] = function
        self._signature = signature_of(function)
        self._rule: type[Function] | None = None
        self._functions: tuple[Callable[..., Any], ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Setters of rules of the function inside, if it has a decorator of its own."""
        return forwarded(self, name)

    def def_vmap(self, rule: Callable[..., Any]) -> Callable[..., Any]:
        """Set the batching rule, ``rule(axis_size, in_batched, *args) -> (output, out_batched)``.

        Batched tensors have the batch in front. ``in_batched`` is a list with one tree of booleans
        per argument, and ``out_batched`` a tree of booleans like the output.

        Returns:
            ``rule``, so that this can decorate it.
        """
        rules = _Rules(self.name, self.linear_from)
        members = {
            "forward": staticmethod(rules.forward),
            "setup_context": staticmethod(rules.setup_context),
            "vmap": staticmethod(rules.vmap),
            "jvp": staticmethod(rules.jvp),
            "backward": staticmethod(rules.backward),
            "__module__": self.__module__,
        }
        self._rule = new_function_class(self.name, Function, members)
        self._functions = (rule,)
        return rule

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; with its rule where it's batched.

        Raises:
            MissingRuleError: Its rule was never set.
            UnsupportedError: It closes over a batched tensor.
        """
        given = positional(self.name, self._signature, args, kwargs)
        if self._rule is None:
            raise MissingRuleError(
                f"{self.name} is a custom_vmap function and was called before its rule was set",
                expected="a rule set by def_vmap, for when it's under vmap",
                got="none",
                remedy=f"call {self.name}.def_vmap(rule).",
            )
        if not _may_be_batched(given):
            return self.function(*given)
        call, operands = lifted_call((self.function, *self._functions), (), given)
        try:
            *leaves, structure = self._rule.apply(call, *operands)
        finally:
            call.hollow.let_go()
        return structure.rebuild(leaves)


def _may_be_batched(args: tuple[Any, ...]) -> bool:
    """Whether a level batches now, or may later: what is traced is batched afterwards."""
    if current_captor() is not None or dispatch_mode_count():
        return True
    if any(level.key() == TransformType.Vmap for level in interpreter_stack()):
        return True
    return has_legacy_batched(pytree.tree_leaves(args))


class _Rules(LiftedRules):
    """The staticmethods of the Function behind one ``custom_vmap``."""

    def __init__(self, name: str, linear_from: int | None) -> None:
        super().__init__(name)
        self.linear_from = linear_from

    def vmap(
        self, info: Any, in_dims: tuple[Any, ...], call: LiftedCall, *tensors: Any
    ) -> tuple[Any, Any]:
        dims = in_dims[1:]
        batched = [dim is not None for dim in dims]
        moved = [
            tensor if dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, dims, strict=True)
        ]
        leaves, flags, spec = self.ruled(info.batch_size, call, batched, moved)
        out_dims = tuple(0 if flag else None for flag in flags)
        return (*leaves, OutputStructure(spec)), (*out_dims, None)

    def ruled(
        self, size: int, call: LiftedCall, batched: list[bool], tensors: list[Any]
    ) -> tuple[list[Any], list[bool], Any]:
        """Call the user's rule; the leaves of the output, which are batched, the structure."""
        lifted = zip(call.names, batched[call.count :], strict=True)
        inside = [name for name, flag in lifted if flag]
        if inside:
            self.refuse_batched(inside[0])
        bound = call.bound(tensors)
        marks = call.leaves(lambda i: batched[i], lambda leaf: None if leaf is None else False)
        who = f"the vmap rule of {self.name} (custom_vmap)"
        output, flags = pair(
            bound.functions[1](size, list(marks), *bound.arguments),
            who,
            expected="output, out_batched",
            remedy="return the output, and which of its leaves are batched.",
        )
        leaves, spec = pytree.tree_flatten(output)
        flat, found = pytree.tree_flatten(flags)
        if found != spec:
            raise RuleError(
                f"{who} returned out_batched of another structure than the output",
                expected=str(spec),
                got=str(found),
                remedy="return one boolean per leaf of the output.",
            )
        return leaves, [bool(flag) for flag in flat], spec

    def refuse_batched(self, name: str) -> None:
        """Refuse what a batching rule, which is about arguments, can't do.

        Raises:
            UnsupportedError: Always.
        """
        raise UnsupportedError(
            f"{self.name} (custom_vmap) closes over a tensor that vmap batches, or of which it "
            f"wants a gradient for each example: {name}.",
            remedy="make it an argument.",
        )

    def jvp(self, ctx: Any, _call: Any, *tangents: Any) -> tuple[Any, ...]:
        derivatives = Derivatives(self, ctx.call, custom_vmap, self.linear_from)
        return (*derivatives.pushed(ctx.saved_tensors, tangents), None)

    def backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        derivatives = Derivatives(self, ctx.call, custom_vmap, self.linear_from)
        needs = ctx.needs_input_grad[1:]
        return (None, *derivatives.pulled(ctx.saved_tensors, cotangents[:-1], needs))


def sequential_vmap(function: Callable[P, R]) -> custom_vmap[P, R]:
    """Let ``vmap`` of a function run it once per example, in a loop.

    Args:
        function: The function.

    Returns:
        A :class:`funcaot.custom_vmap`.

    Example:
        >>> import torch, funcaot
        >>> @funcaot.sequential_vmap
        ... def count(x):
        ...     return torch.tensor(len(x.nonzero()))
        >>> torch.vmap(count)(torch.eye(2))
        tensor([1, 1])
    """
    wrapped = custom_vmap(function)

    @wrapped.def_vmap
    def rule(axis_size: int, in_batched: list[Any], *args: Any) -> tuple[Any, Any]:
        if axis_size == 0:
            raise RuleError(
                f"{wrapped.name} (sequential_vmap) was called with an empty batch",
                expected="at least one example, to know what the output looks like",
                got="a batch of size 0",
                remedy="use custom_vmap.",
            )
        leaves, spec = pytree.tree_flatten(args)
        flags = pytree.tree_leaves(tuple(in_batched))

        def example(index: int) -> Any:
            own = [x[index] if flag else x for x, flag in zip(leaves, flags, strict=True)]
            return wrapped.function(*pytree.tree_unflatten(own, spec))

        outputs = [example(index) for index in range(axis_size)]
        stacked = pytree.tree_map(lambda *values: torch.stack(values), *outputs)
        return stacked, pytree.tree_map(lambda _: True, stacked)

    return wrapped
