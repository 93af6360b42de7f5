"""``funcaot.checkpoint``: a function that its backward runs again, under transforms too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.levels.functorch import dispatch_mode_count, pytree, transforms_active
from funcaot.classes.differentiation import is_differentiated
from funcaot.classes.opaque import current_captor
from funcaot.errors import ArgumentError
from funcaot.functions.custom_rule import P, R
from funcaot.functions.function import Function
from funcaot.functions.lifted_derivative import FunctionOfLifted, OutputsMetadata
from funcaot.functions.lifted_rules import LiftedRules
from funcaot.rules.metadata import TensorMetadata
from funcaot.rules.operands.lifted_call import (
    LiftedCall,
    lifted_call,
    positional,
    signature_of,
)
from funcaot.rules.random_draws import RandomDraws

__all__ = ["checkpoint"]


def checkpoint(function: Callable[P, R]) -> Callable[P, R]:
    """Keep nothing but the arguments of a function for its backward, which runs it again.

    It's ``torch.utils.checkpoint`` where no transform is active, and works under ``torch.func``'s
    transforms besides, where torch's own raises. Rules of functions inside hold.

    Args:
        function: A function of positional arguments, on pytrees.

    Returns:
        A function of the same arguments.

    Raises:
        ArgumentError: It is no function.
        UnsupportedError: It draws random numbers under a transform.

    Example:
        >>> import torch, funcaot
        >>> @funcaot.checkpoint
        ... def f(x):
        ...     return x.sin().sin()
        >>> torch.func.grad(f)(torch.tensor(0.0))
        tensor(1.)
    """
    if not callable(function):
        raise ArgumentError(
            "checkpoint was given what can't be called.",
            expected="a function",
            got=type(function).__name__,
            remedy="pass the function itself, not what a call of it returns.",
        )
    name = getattr(function, "__name__", type(function).__name__)
    signature = signature_of(function)
    rules = _Rules(name)
    members = {
        "forward": staticmethod(rules.forward),
        "setup_context": staticmethod(rules.setup_context),
        "backward": staticmethod(rules.backward),
        "jvp": staticmethod(rules.jvp),
        "generate_vmap_rule": True,
        "batches_outputs": True,
    }
    rule = new_function_class(name, Function, members)

    plain: Callable[..., Any] = function

    @functools.wraps(function)
    def checkpointed(*args: Any, **kwargs: Any) -> Any:
        if not transforms_active():
            return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=False, **kwargs)
        if current_captor() is not None or dispatch_mode_count():
            return function(*args, **kwargs)  # a compiled function chooses what it keeps
        args = positional(name, signature, args, kwargs)
        if not is_differentiated(x for x in pytree.tree_leaves(args) if _is_tensor(x)):
            return plain(*args)
        call, operands = lifted_call((function,), (), args)
        try:
            *leaves, structure = rule.apply(call, *operands)
        finally:
            call.hollow.let_go()
        return structure.rebuild(leaves)

    return checkpointed


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class _Rules(LiftedRules):
    """The staticmethods of the Function behind one checkpointed function."""

    def forward(self, call: LiftedCall, *tensors: Any) -> tuple[Any, ...]:
        draws = RandomDraws()
        made = super().forward(call, *tensors)
        draws.refuse(f"{self.name} (checkpoint)")
        return made

    def setup_context(self, ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        super().setup_context(ctx, inputs, output)
        ctx.outputs = OutputsMetadata(tuple(map(TensorMetadata.of, output[:-1])))

    def backward(self, ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        again = FunctionOfLifted(ctx.call, ctx.saved_tensors, ctx.outputs, self.name, first=0)
        return (None, *again.pulled(cotangents[:-1], ctx.needs_input_grad[1:]))

    def jvp(self, ctx: Any, _call: Any, *tangents: Any) -> tuple[Any, ...]:
        again = FunctionOfLifted(ctx.call, ctx.saved_tensors, ctx.outputs, self.name, first=0)
        return (*again.pushed(tangents), None)
