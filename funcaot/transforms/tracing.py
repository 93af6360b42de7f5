"""The rule for ``make_fx``: one node in the graph, which keeps the Function and its rules."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from funcaot._torch.functorch import pytree
from funcaot._torch.tracing_modes import ProxyTorchDispatchMode, track_tensor_tree
from funcaot.operator import custom_function_call
from funcaot.traits import display_name

__all__ = ["FunctionNode", "inline_functions"]


class FunctionNode:
    """The target of a graph node that stands for one call of a Function.

    A call of the node calls the operator, so the rules of the Function survive whatever transform
    the graph meets later. Operands that aren't tensors live here, not among the node's arguments.

    Attributes:
        function: The Function class.
    """

    def __init__(self, function: type, operands: tuple[Any, ...]) -> None:
        """Remember which operands were tensors, and the values of the rest."""
        self.function = function
        self._is_tensor = tuple(isinstance(value, torch.Tensor) for value in operands)
        self._constants = tuple(
            value for value in operands if not isinstance(value, torch.Tensor)
        )
        self.__name__ = self.__qualname__ = display_name(function)
        self.__module__ = function.__module__

    def operands(self, *tensors: Any) -> tuple[Any, ...]:
        """Put tensor operands and constants back in order."""
        rest, constants = iter(tensors), iter(self._constants)
        return tuple(next(rest) if given else next(constants) for given in self._is_tensor)

    def __call__(self, *tensors: Any) -> Any:
        """Call the Function through the operator."""
        return custom_function_call(self.function, *self.operands(*tensors))

    def inline(self, *tensors: Any) -> Any:
        """Run the Function's forward plainly, without its rules."""
        return self.function.forward(*self.operands(*tensors))

    def __repr__(self) -> str:
        """One line, for graph printouts."""
        return f"funcaot.{self.__name__}"


class _Inlining(threading.local):
    depth = 0


_inlining = _Inlining()


@contextlib.contextmanager
def inline_functions() -> Iterator[None]:
    """While active in this thread, ``make_fx`` records a Function's forward instead of one node.

    The graph then holds plain operations only. It keeps no derivative rule: differentiate first,
    trace afterwards.

    Example:
        >>> import torch, funcaot
        >>> from torch.fx.experimental.proxy_tensor import make_fx
        >>> class Square(funcaot.Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return x * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        >>> with funcaot.inline_functions():
        ...     graph = make_fx(Square.apply)(torch.ones(3))
        >>> [str(n.target) for n in graph.graph.nodes if n.op == "call_function"]
        ['aten.mul.Tensor']
    """
    _inlining.depth += 1
    try:
        yield
    finally:
        _inlining.depth -= 1


def proxy_rule(mode: ProxyTorchDispatchMode, function: type, *operands: Any) -> Any:
    """Record one node, and compute its value below the tracer."""
    if _inlining.depth:
        with mode:
            return function.forward(*operands)
    tensors = [value for value in operands if isinstance(value, torch.Tensor)]
    proxies = [mode.tracer.unwrap_proxy(tensor) for tensor in tensors]
    output = custom_function_call.below_autograd(function, *operands)
    node = FunctionNode(function, operands)
    proxy = mode.tracer.create_proxy("call_function", node, tuple(proxies), {})
    # The tracer knows tensors and plain values; what generated rules pass along isn't either.
    tracked = pytree.tree_map(lambda v: v if isinstance(v, torch.Tensor) else None, output)
    track_tensor_tree(tracked, proxy, constant=None, tracer=mode.tracer)
    return output


custom_function_call.py_impl(ProxyTorchDispatchMode)(proxy_rule)
