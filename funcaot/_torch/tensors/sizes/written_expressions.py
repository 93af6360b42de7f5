"""Expressions of sizes as plain data, and back; ``aot.saved`` writes programs with open sizes so.

Nothing of a file is evaluated: it names classes out of a table, and numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from funcaot._torch.tensors.sizes.shapes import expression_of, is_expression

__all__ = ["ExpressionError", "KnownSizes", "expression_data", "expression_from", "is_symbolic"]

_OF_SYMPY = (
    "Add", "Mul", "Pow", "Abs", "Eq", "Ne", "Lt", "Le", "Gt", "Ge", "And", "Or", "Not",
)  # fmt: skip
_OF_TORCH = (
    "CeilDiv", "CeilToInt", "CleanDiv", "FloatPow", "FloatTrueDiv", "FloorDiv", "FloorToInt",
    "Identity", "IntTrueDiv", "Max", "Min", "Mod", "ModularIndexing", "PowByNatural", "PythonMod",
    "RoundToInt", "ToFloat", "TruncToFloat", "TruncToInt", "Where", "OpaqueUnaryFn_sqrt",
)  # fmt: skip


class ExpressionError(Exception):
    """An expression has no description; the text says why."""


class KnownSizes:
    """Symbols of sizes of which nothing is traced; torch's environment takes a second to import.

    Attributes:
        symbols: The symbols; each stands for at least 2.
        values: What they stood for in some call.
        least: Empty: no symbol may stand for less.
        facts: Answers that hold for every call of the program that the symbols belong to.
    """

    def __init__(self, symbols: Sequence[Any], values: Sequence[int]) -> None:
        """Keep both."""
        self.symbols = tuple(symbols)
        self.values = dict(zip(self.symbols, values, strict=True))
        self.least: dict[Any, int] = {}
        self.facts: dict[Any, Any] = {}

    def at_present(self, expression: Any) -> Any:
        """An expression's value for the sizes of that call."""
        return expression.xreplace(self.values) if is_expression(expression) else expression


def is_symbolic(value: Any) -> bool:
    """Whether a number is one that only a call's sizes decide."""
    return isinstance(value, torch.SymInt) or is_expression(value)


def expression_data(value: Any) -> Any:
    """A whole number that sizes decide, or an assumption about sizes.

    Raises:
        ExpressionError: If it asks a function of Python's, or isn't made again as it was.
    """
    if isinstance(value, bool):
        return ["bool", value]
    expression = expression_of(value)
    if not is_expression(expression):
        return int(expression)
    data = _data(expression)
    if expression_from(data) != expression:
        raise ExpressionError(f"{expression} isn't read as it is written")
    return data


def expression_from(data: Any) -> Any:
    """The expression that ``expression_data`` described.

    Raises:
        ExpressionError: If it names something that isn't in the table.
    """
    if isinstance(data, int):
        return data
    found = _from(data)
    return int(found) if found.is_Integer else found


def _data(expression: Any) -> Any:
    import sympy

    if expression.is_Symbol:
        assumed = getattr(expression, "_assumptions_orig", None)
        return ["symbol", expression.name, sorted((assumed or expression.assumptions0).items())]
    if expression in (sympy.true, sympy.false):
        return ["bool", bool(expression)]
    if expression.is_Rational:
        return ["number", int(expression.p), int(expression.q)]
    name = type(expression).__name__
    if _classes().get(name) is not type(expression):
        raise ExpressionError(f"a size is asked for {name}")
    return [name, *map(_data, expression.args)]


def _from(data: Any) -> Any:
    import sympy

    kind, *parts = data
    if kind == "symbol":
        name, assumed = parts
        return sympy.Symbol(name, **{key: value for key, value in assumed if value is not None})
    if kind == "bool":
        return sympy.true if parts[0] else sympy.false
    if kind == "number":
        return sympy.Rational(*parts)
    made = _classes().get(kind)
    if made is None:
        raise ExpressionError(f"{kind} isn't known")
    return made(*map(_from, parts))


@functools.cache
def _classes() -> dict[str, Any]:
    import sympy
    from torch.utils._sympy import functions

    found = {type_.__name__: type_ for type_ in (getattr(sympy, name) for name in _OF_SYMPY)}
    of_torch = (getattr(functions, name, None) for name in _OF_TORCH)
    return found | {type_.__name__: type_ for type_ in of_torch if type_ is not None}
