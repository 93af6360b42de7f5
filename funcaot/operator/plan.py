"""How one Function class is called: its signature, and what runs when nothing special is active."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.calls.interception import past_interception
from funcaot.classes.class_cache import cache_of
from funcaot.classes.protocol import program_of
from funcaot.classes.traits import display_name, is_old_style
from funcaot.errors import ArgumentError

__all__ = ["CallPlan", "plan_of"]

# Of a forward that does take one, whatever else is wrong.
_NAMES_OF_CTX = frozenset({"context", "self", "_", "c"})

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class CallPlan:
    """What the operator knows of a Function class before it sees the operands.

    Attributes:
        function: The class.
        old_style: Whether forward takes ``ctx``.
        program: The compiled program behind the class, if there's one.
        arity: The number of operands that needs no binding; None when there is no such number.
        variadic: Whether forward is ``forward(*operands)``, so that none ever needs binding.
        checked: Whether the class is a ``funcaot.Function``, whose rules are checked everywhere.
        native: Torch's own C++ ``apply``.
        direct: ``apply`` of a class that runs the user's forward with checked and generated rules;
            made when it's first needed.
    """

    def __init__(self, function: type) -> None:
        """Inspect ``function``."""
        self.function = function
        self.old_style = is_old_style(function)
        self.program = program_of(function)
        self.checked = getattr(function, "funcaot_checks_rules", False)
        self.signature = self._signature()
        self.arity = self._arity()
        self.variadic = self._is_variadic()
        self.native: Callable[..., Any] = past_interception(function)
        self.direct: Callable[..., Any] | None = None

    def _signature(self) -> inspect.Signature | None:
        try:
            signature = _own_signature(self.function.forward)
        except (TypeError, ValueError):  # a builtin: nothing to bind by
            return None
        if self.old_style:
            parameters = list(signature.parameters.values())
            if parameters and parameters[0].kind in _POSITIONAL:
                signature = signature.replace(parameters=parameters[1:])
        return signature

    def _arity(self) -> int | None:
        if self.signature is None:
            return None
        kinds = [parameter.kind for parameter in self.signature.parameters.values()]
        return len(kinds) if all(kind in _POSITIONAL for kind in kinds) else None

    def _is_variadic(self) -> bool:
        if self.signature is None:
            return False
        kinds = [parameter.kind for parameter in self.signature.parameters.values()]
        return kinds == [inspect.Parameter.VAR_POSITIONAL]

    def needs_binding(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether defaults or keywords have to be turned into positional operands."""
        if kwargs:
            return True
        if self.arity is None:
            return self.signature is not None and not self.variadic
        return len(args) != self.arity

    def bind(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Turn keywords and defaults into positional operands; return what can't be, too.

        Raises:
            ArgumentError: The arguments don't fit forward.
        """
        if self.signature is None:
            return args, kwargs
        try:
            bound = self.signature.bind(*args, **kwargs)
        except TypeError as error:
            forgotten = self._without_context(args, kwargs)
            raise forgotten or ArgumentError(
                f"{display_name(self.function)}.apply was called with arguments that its forward "
                f"doesn't take: {error}",
                expected=f"forward{self.signature}",
                got=f"{len(args)} positional and keywords {sorted(kwargs)}",
                remedy="pass what forward takes, without ctx.",
            ) from None
        if not self.old_style:  # backward of an old-style Function counts the operands it was given
            bound.apply_defaults()
        return bound.args, bound.kwargs

    def _without_context(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> ArgumentError | None:
        """Say that `setup_context` was forgotten, where that is why the arguments don't fit.

        Returns:
            An error if they fit a forward whose first parameter isn't taken for ctx.
        """
        if not self.old_style:
            return None
        try:
            whole = _own_signature(self.function.forward)
            whole.bind(*args, **kwargs)
        except (TypeError, ValueError):
            return None
        first = next(iter(whole.parameters))
        if "ctx" in first.lower() or first in _NAMES_OF_CTX:
            return None
        return ArgumentError(
            f"{display_name(self.function)} has no `setup_context`, so the first parameter of its "
            f"forward, {first!r}, is taken for ctx, and an argument is left "
            "over",
            expected=f"`setup_context(ctx, inputs, output)` beside `forward{whole}`, or "
            "`forward(ctx, ...)`",
            got=f"{len(args) + len(kwargs)} argument(s)",
            remedy="define the staticmethod `setup_context(ctx, inputs, output)`; what backward "
            "needs is saved there. If nothing is, its body is `pass`.",
        )


def _own_signature(forward: Callable[..., Any]) -> inspect.Signature:
    """The parameters of the code that is called, as ``apply`` of torch reads them.

    A decorator's ``*args`` say nothing, so there it is what the decorator says it wraps.
    """
    code = getattr(forward, "__code__", None)
    said = getattr(forward, "__wrapped__", None) or getattr(forward, "__signature__", None)
    if not isinstance(forward, types.FunctionType) or code is None or said is None:
        return inspect.signature(forward)
    plain = types.FunctionType(
        code, {}, forward.__name__, forward.__defaults__, forward.__closure__
    )
    plain.__kwdefaults__ = forward.__kwdefaults__
    signature = inspect.signature(plain)
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    variadic = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return inspect.signature(forward) if kinds & variadic else signature


def plan_of(function: Any) -> CallPlan:
    """The plan of a Function class, made on the first call.

    Raises:
        ArgumentError: ``function`` isn't a Function class.
    """
    if not (isinstance(function, type) and issubclass(function, torch.autograd.Function)):
        is_instance = isinstance(function, torch.autograd.Function)
        name = type(function).__name__ if is_instance else getattr(function, "__name__", function)
        raise ArgumentError(
            f"custom_function_call was given {name!r}",
            expected="a subclass of torch.autograd.Function",
            got=f"an instance of {name}" if is_instance else type(function).__name__,
            remedy="pass the class itself; its methods are static, it's never instantiated.",
        )
    cache = cache_of(function)
    if "plan" not in cache:
        cache["plan"] = CallPlan(function)
    return cache["plan"]
