"""Numbers that may be symbolic sizes, and private names of torch behind them.

SymPy takes a third of a second to import, so that waits until the first expression is made, with
``size_environment``. Without it no number is an expression.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import suggest_memory_format

from funcaot.errors import UnsupportedError

if TYPE_CHECKING:
    import sympy

# Composite ops in C++ ask for some sizes as numbers; those that torch has in Python don't.
composite_ops_in_python = enable_python_dispatcher
suggested_format = suggest_memory_format

Expression: TypeAlias = "sympy.Basic"
Symbol: TypeAlias = "sympy.Symbol"
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def integers(expressions: Sequence[Any]) -> tuple[int, ...] | None:
    """Inductor's sizes as numbers, None if one of them is open."""
    try:
        return tuple(int(expression) for expression in expressions)
    except TypeError:
        return None


class SizeError(UnsupportedError):
    """Something can't be done with symbolic sizes; the call is captured with its own sizes."""


@contextlib.contextmanager
def without_guesses() -> Iterator[None]:
    """Let torch's code take the general way where it would ask whether a shorter one is possible.

    Otherwise the answer would be an assumption about sizes, though both ways are right.
    """
    from torch.fx.experimental import _config

    with _config.patch(backed_size_oblivious=True):  # type: ignore[attr-defined]
        yield


def as_condition(expression: Any, value: Any) -> Any:
    """The condition that an expression has a value."""
    import sympy

    if value is sympy.true:
        return expression
    return sympy.Not(expression) if value is sympy.false else sympy.Eq(expression, value)


def fixes(question: Any, answer: Any, symbol: Symbol) -> bool:
    """Whether an answer leaves one value of a symbol."""
    import sympy

    condition = as_condition(question, answer)
    return (
        isinstance(condition, sympy.Eq)
        and condition.free_symbols == {symbol}
        and condition.has(symbol)
        and any(side.is_Integer for side in condition.args)
        and any(_is_multiple(side, symbol) for side in condition.args)
    )


def _is_multiple(side: Any, symbol: Symbol) -> bool:
    """Whether an expression is a symbol, times a whole number, and another one added."""
    factor = side.coeff(symbol)
    return factor.is_Integer and factor != 0 and (side - factor * symbol).is_Integer


def expression_of(number: Any) -> Any:
    """A number as something that can be compared and hashed: an int, or an expression."""
    if isinstance(number, SYMBOLIC_NUMBERS):
        found = getattr(number.node, "expr", None)
        if found is None:  # Code took the number's class for one of Python's, and made one of it.
            raise SizeError("A number isn't one of sizes.", remedy="compile with dynamic=False.")
        return int(found) if found.is_Integer else found
    return number


def is_expression(value: Any) -> bool:
    """Whether a size is an expression and not a number."""
    return type(value) is not int and isinstance(value, _expressions())


def _expressions() -> type | tuple[()]:
    """The class of expressions; nothing is one of none, as long as nothing imported them."""
    return getattr(sys.modules.get("sympy"), "Basic", ())


def symbols_in(values: Any) -> set[Symbol]:
    """The symbols in (nested) sizes and in the shapes and strides of tensors."""
    if isinstance(values, torch.Tensor):
        strided = values.layout is torch.strided
        numbers = (*values.shape, *values.stride(), values.storage_offset()) if strided else ()
        return symbols_in(numbers)
    if isinstance(values, list | tuple):
        return {symbol for value in values for symbol in symbols_in(value)}
    found = expression_of(values)
    return set(found.free_symbols) if is_expression(found) else set()


# What the source of an expression refers to.
NAMESPACE = {"torch": torch, "math": math}


def python_source(expression: Any) -> str:
    """Source text of an expression of its symbols' names, see ``NAMESPACE``."""
    from torch.utils._sympy.printers import PythonPrinter

    return PythonPrinter().doprint(expression)


def functions_in(expressions: Sequence[Any]) -> dict[str, Callable[..., bool]]:
    """What else the source of expressions refers to: functions that are asked about sizes."""
    return {
        type(atom).__name__: type(atom).ask
        for expression in filter(is_expression, expressions)
        for atom in expression.atoms(sys.modules["sympy"].Function)
        if hasattr(type(atom), "ask")
    }


def evaluator(symbols: Sequence[Symbol], expressions: Sequence[Any]) -> Callable[..., tuple]:
    """A function of the symbols' values that returns the expressions' values, in plain Python."""
    parts = [python_source(e) if is_expression(e) else str(e) for e in expressions]
    arguments = ", ".join(map(str, symbols))
    source = f"lambda {arguments}: ({''.join(f'({part}), ' for part in parts)})"
    return eval(source, {**NAMESPACE, **functions_in(expressions)})


def is_always(condition: Any, bounds: Mapping[Symbol, tuple[int, int]]) -> bool:
    """Whether a condition is found true of all sizes within bounds, the last ones included."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    ranges = {
        symbol: ValueRanges(low, int_oo if high == sys.maxsize else high)
        for symbol, (low, high) in bounds.items()
    }
    try:
        found = bound_sympy(condition, ranges)
    except (ArithmeticError, AssertionError, AttributeError, NotImplementedError, TypeError):
        return False  # of what isn't known in intervals
    return bool(found.is_bool and found.lower)


def is_equality(condition: Any, symbol: Symbol, other: Symbol | None = None) -> bool:
    """Whether a condition says that a size is a number, or another size."""
    import sympy

    if not isinstance(condition, sympy.Eq):
        return False
    sides = {condition.lhs, condition.rhs}
    rest = sides - {symbol}
    is_rest = rest == {other} if other is not None else all(s.is_number for s in rest)
    return symbol in sides and is_rest


def multiple_of(condition: Any, symbol: Symbol, other: Symbol) -> tuple[int, int] | None:
    """The whole a > 0 and b for which a condition says that ``symbol == a * other + b``."""
    import sympy

    if not isinstance(condition, sympy.Eq) or condition.free_symbols != {symbol, other}:
        return None
    left, right = map(_any, condition.args)
    if not all(side.is_polynomial(symbol, other) for side in (left, right)):
        return None
    found = _any(sympy.Poly(left - right, symbol, other))
    if found.total_degree() != 1:
        return None
    of_symbol, of_other = found.coeff_monomial(symbol), found.coeff_monomial(other)
    scale, shift = -of_other / of_symbol, -found.coeff_monomial(1) / of_symbol
    if scale.is_Integer and shift.is_Integer and scale > 0:
        return int(scale), int(shift)
    return None


def _any(expression: Any) -> Any:
    """The same, of which SymPy's types don't say that it is computed with."""
    return expression


def value_at(expression: Any, sizes: Mapping[Symbol, int]) -> Any:
    """A number's value for given sizes: an int, a float or a bool.

    Raises:
        SizeError: If it can't be computed; SymPy has neither large integers nor some remainders.
    """
    import sympy

    try:
        names, compute = _computing(expression)
        return compute(*[sizes[symbol] for symbol in names])[0]
    except (KeyError, NotImplementedError, NameError, SyntaxError, TypeError):
        pass  # no Python for it, or symbols that have no size here
    try:
        found = expression.xreplace({symbol: sympy.Integer(n) for symbol, n in sizes.items()})
        if found in (sympy.true, sympy.false):
            return bool(found)
        value = int(found) if found.is_Integer else float(found)  # type: ignore[arg-type]
    except (AssertionError, AttributeError, TypeError) as error:
        raise SizeError(
            f"A number can't be computed of sizes: {expression}.",
            remedy="compile with dynamic=False.",
        ) from error
    return value


@functools.lru_cache(maxsize=4096)
def _computing(expression: Any) -> tuple[tuple[Symbol, ...], Callable[..., tuple]]:
    symbols = tuple(sorted(expression.free_symbols, key=str))
    return symbols, evaluator(symbols, (expression,))
