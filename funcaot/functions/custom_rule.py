"""What ``custom_jvp`` and ``custom_vjp`` share: a function, its rule, and how it is called."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from funcaot._torch.autograd.autograd import new_function_class
from funcaot.classes.differentiation import is_differentiated
from funcaot.errors import FuncaotError, MissingRuleError, RuleError
from funcaot.functions.function import Function
from funcaot.rules.flat_call import flatten_call
from funcaot.rules.reached import refuse_closed_over
from funcaot.rules.returns import describe


class CustomRule:
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
        function: Callable[..., Any],
        nondiff_argnums: Sequence[int] = (),
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
        functools.update_wrapper(self, function)
        self.name = getattr(function, "__name__", type(function).__name__)
        self.function = function
        self.nondiff_argnums = tuple(nondiff_argnums)
        self.allow_nonlinear_rule = allow_nonlinear_rule
        self._rule: type[Function] | None = None
        self._functions: tuple[Callable[..., Any], ...] = ()

    def _set_rule(self, functions: Sequence[Callable[..., Any]], **members: Any) -> None:
        """Make the Function that runs these functions."""
        members |= {
            "allow_nonlinear_rule": self.allow_nonlinear_rule,
            "__module__": self.__module__,
        }
        self._rule = new_function_class(self.name, Function, members)
        self._functions = (self.function, *functions)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function; with its rule where it's differentiated.

        Raises:
            MissingRuleError: It's differentiated and its rule was never set.
            UnsupportedError: The function or its rule closes over what a transform looks at.
        """
        call, tensors, args = flatten_call(self.function, self.nondiff_argnums, args, kwargs)
        if not is_differentiated(tensors):
            return self.function(*args)
        decorator = type(self).__name__
        if self._rule is None:
            raise MissingRuleError(
                f"{self.name} is a {decorator} function and was differentiated",
                expected=f"a rule set by {self.setters}",
                got="none",
                remedy=f"call {self.name}.{self.example}.",
            )
        refuse_closed_over(f"{self.name} ({decorator})", self._functions)
        *leaves, structure = self._rule.apply(call, *tensors)
        return structure.rebuild(leaves)


def pair(result: Any, who: str, *, expected: str, remedy: str) -> tuple[Any, Any]:
    """The two things that a rule has to return.

    Raises:
        RuleError: They aren't two.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        raise RuleError(
            f"{who} returned something that can't be unpacked",
            expected=f"a tuple of two, ({expected})",
            got=describe(result),
            remedy=remedy,
        )
    return result
