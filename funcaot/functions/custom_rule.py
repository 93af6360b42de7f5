"""What ``custom_jvp`` and ``custom_vjp`` share: a function, its rule, and how it is called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

import torch

from funcaot._torch.autograd.autograd import new_function_class
from funcaot._torch.levels.functorch import pytree
from funcaot.classes.differentiation import is_differentiated
from funcaot.errors import ArgumentError, FuncaotError, MissingRuleError, RuleError
from funcaot.functions.function import Function
from funcaot.rules.generated.transposed import is_transposed
from funcaot.rules.operands.lifted_call import lifted_call, positional, signature_of
from funcaot.rules.returns import describe

__all__ = ["CustomRule", "apart", "forwarded", "pair"]

P = ParamSpec("P")
R = TypeVar("R")

_FORWARDED = ("defjvp", "defjvps", "defvjp", "def_vmap")


class CustomRule(Generic[P, R]):
    """A function with a rule of its own. Its class's name is that of the decorator.

    Attributes:
        setters: What sets the rule, in words.
        example: A call that sets it.
        name: The function's name.
        function: The function.
        nondiff_argnums: Positions of arguments that have no derivative.
        allow_nonlinear_rule: Whether the rule isn't checked to be linear.
    """

    setters: ClassVar[str]
    example: ClassVar[str]

    def __init__(
        self,
        function: Callable[P, R],
        nondiff_argnums: Sequence[int] = (),
        nondiff_argnames: Sequence[str] = (),
        *,
        allow_nonlinear_rule: bool = False,
    ) -> None:
        """Wrap ``function``; its rule is set afterwards."""
        if not callable(function):
            raise FuncaotError(
                f"{type(self).__name__} needs a function.",
                expected="a function of tensors",
                got=type(function).__name__,
                remedy="decorate the function itself.",
            )
        updated = () if isinstance(function, CustomRule) else ("__dict__",)
        self.function: Callable[..., Any] = function
        functools.update_wrapper(self, self.function, updated=updated)
        self.name = getattr(function, "__name__", type(function).__name__)
        named = _positions(function, nondiff_argnames, type(self).__name__)
        self.nondiff_argnums = tuple(dict.fromkeys((*nondiff_argnums, *named)))
        self.allow_nonlinear_rule = allow_nonlinear_rule
        self._signature = signature_of(function)
        self._rule: type[Function] | None = None
        self._functions: tuple[Callable[..., Any], ...] = ()

    def __getattr__(self, name: str) -> Any:
        """Setters of rules of the function inside, if it has a decorator of its own."""
        return forwarded(self, name)

    def _set_rule(self, functions: Sequence[Callable[..., Any]], **members: Any) -> None:
        """Make the Function that runs these functions."""
        members |= {
            "allow_nonlinear_rule": self.allow_nonlinear_rule,
            "__module__": self.__module__,
        }
        self._rule = new_function_class(self.name, Function, members)
        self._functions = tuple(functions)

    def _runs_plainly(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the function itself is called."""
        return not is_differentiated(tensors) or is_transposed(tensors)

    def _run(self, args: tuple[Any, ...]) -> Any:
        """Call the function itself."""
        return self.function(*args)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function; with its rule where it's differentiated.

        Raises:
            MissingRuleError: Its rule was never set.
            UnsupportedError: What a transform looks at is closed over where it can't be taken out.
        """
        given = positional(self.name, self._signature, args, kwargs)
        tensors = [x for x in pytree.tree_leaves(given) if isinstance(x, torch.Tensor)]
        if self._rule is None:
            raise MissingRuleError(
                f"{self.name} is a {type(self).__name__} function that was called without a rule "
                "for when it's differentiated",
                expected=f"a rule set by {self.setters}",
                got="none",
                remedy=f"call {self.name}.{self.example}.",
            )
        if self._runs_plainly(tensors):
            return self._run(given)
        functions = (self.function, *self._functions)
        call, operands = lifted_call(functions, self.nondiff_argnums, given)
        try:
            *leaves, structure = self._rule.apply(call, *operands)
        finally:
            call.hollow.let_go()
        return structure.rebuild(leaves)


def forwarded(decorated: Any, name: str) -> Any:
    """An attribute that a decorated function takes from the function inside.

    Raises:
        AttributeError: It is none of those that set rules.
    """
    if name in _FORWARDED and "function" in decorated.__dict__:
        return getattr(decorated.function, name)
    raise AttributeError(f"{type(decorated).__name__!r} object has no attribute {name!r}")


def _positions(function: Any, names: Sequence[str], decorator: str) -> list[int]:
    if not names:
        return []
    parameters = list(inspect.signature(function).parameters)
    unknown = [name for name in names if name not in parameters]
    if unknown:
        raise ArgumentError(
            f"{decorator} was given nondiff_argnames that the function doesn't have: {unknown}",
            expected=f"names among {parameters}",
            got=str(list(names)),
            remedy="name parameters of the function.",
        )
    return [parameters.index(name) for name in names]


def apart(leaves: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """Outputs that autograd can tell from operands and from each other."""
    seen = {id(operand) for operand in operands if isinstance(operand, torch.Tensor)}
    result = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor) and id(leaf) in seen:
            result.append(leaf.view_as(leaf))
        else:
            result.append(leaf)
            seen.add(id(leaf))
    return tuple(result)


def pair(result: Any, who: str, *, expected: str, remedy: str) -> tuple[Any, Any]:
    """The two things that a rule has to return.

    Raises:
        RuleError: They aren't two.
    """
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise RuleError(
            f"{who} returned something that can't be unpacked",
            expected=f"a tuple of two, ({expected})",
            got=describe(result),
            remedy=remedy,
        )
    return result[0], result[1]
