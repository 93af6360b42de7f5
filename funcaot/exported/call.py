"""What ``export`` was given, checked: a function with example arguments."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from funcaot._torch.levels import functorch
from funcaot._torch.tensors.pytree import tree_map
from funcaot._torch.tracing import tracing
from funcaot.aot.graph.tensor_spec import is_dense
from funcaot.aot.runtime.compiled import CompiledFunction
from funcaot.aot.runtime.module import ModuleCall, compiled_of
from funcaot.errors import ArgumentError, UnsupportedError

Parameters = Literal["baked", "inputs"]


@dataclass(frozen=True, eq=False)
class ExportedCall:
    """The call that is exported.

    Attributes:
        function: What is captured.
        owner: The function or the module that the user knows.
        args: Positional arguments; tensors are dense.
        kwargs: Keyword arguments.
        name: The function, for messages.
        bakes: Whether parameters become constants.
    """

    function: Callable[..., Any]
    owner: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    name: str
    bakes: bool

    @staticmethod
    def of(
        function: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, parameters: Parameters
    ) -> ExportedCall:
        """Check what ``export`` was given.

        Raises:
            ArgumentError: For what it can't take.
            UnsupportedError: Inside of a transform or of another capture.
        """
        for what, given, holds, expected in (
            ("the function", function, _can_be_called(function), "a function or a module"),
            ("args", args, isinstance(args, tuple | list), "a tuple of example arguments"),
            ("kwargs", kwargs, kwargs is None or isinstance(kwargs, Mapping), "a dictionary"),
            ("parameters", parameters, parameters in ("baked", "inputs"), '"baked" or "inputs"'),
        ):
            if not holds:
                raise ArgumentError(
                    f"funcaot.export can't take what it was given as {what}.",
                    expected=expected,
                    got=type(given).__name__ if what != "parameters" else repr(given),
                    remedy="call it as funcaot.export(function, (x, y), path='f.pt2').",
                )
        if functorch.transforms_active() or tracing.is_abstract():
            raise UnsupportedError(
                "funcaot.export was called inside of a transform or of a capture.",
                remedy="export the function under the transform: funcaot.export(vmap(f), ...).",
            )
        owner = _original(function)
        name = getattr(owner, "__name__", type(owner).__name__).replace("<lambda>", "lambda_")
        target = ModuleCall(owner) if isinstance(owner, torch.nn.Module) else owner
        dense = _Dense()
        given, keywords = tree_map(dense, (tuple(args), dict(kwargs or {})))
        return ExportedCall(target, owner, given, keywords, name, parameters == "baked")


def _can_be_called(function: Any) -> bool:
    return callable(function) and not isinstance(function, type)


_TRACED_BY_DYNAMO = "_torchdynamo_orig_callable"


def _original(function: Any) -> Any:
    """What was compiled, if it is something that funcaot or torch compiled."""
    attribute = "_orig_mod" if isinstance(function, torch.nn.Module) else _TRACED_BY_DYNAMO
    inner = getattr(function, attribute, None)
    if callable(inner):  # It was given to torch.compile.
        return _original(inner)
    if isinstance(function, torch.nn.Module):
        compiled = compiled_of(function)
        return function if compiled is None else compiled.function.module
    method = getattr(function, "__func__", None)
    if isinstance(method, CompiledFunction):
        return types.MethodType(method.function, function.__self__)
    return function.function if isinstance(function, CompiledFunction) else function


class _Dense:
    """Makes tensors that fill a block of memory, each once; one object stays one object."""

    def __init__(self) -> None:
        self._made: dict[int, torch.Tensor] = {}

    def __call__(self, leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        if is_dense(tuple(leaf.shape), leaf.stride()):
            return leaf
        if id(leaf) not in self._made:
            made = leaf.detach().clone(memory_format=torch.contiguous_format)
            self._made[id(leaf)] = made.requires_grad_(leaf.requires_grad)
        return self._made[id(leaf)]
