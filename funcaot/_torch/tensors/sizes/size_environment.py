"""Torch's shape environment and the nodes of its numbers; imported when a size is left open."""

from __future__ import annotations

import contextlib
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch import fx
from torch._guards import SLoc
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, ShapeGuard
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.reference import PythonReferenceAnalysis
from torch.utils._sympy.value_ranges import ValueRanges

from funcaot._torch.tensors.sizes.called_kinds import kinds_called
from funcaot._torch.tensors.sizes.shapes import (
    Expression,
    SizeError,
    Symbol,
    as_condition,
    is_expression,
)

__all__ = ["SizeEnvironment", "SizeNodes", "asked", "recorded"]


class SizeEnvironment(ShapeEnv):
    """Symbols for sizes. What a trace decides about them goes to that trace's own list.

    Torch's environment gathers every decision and simplifies by it from then on, so that a
    backward traced later, for a call of other sizes, would inherit what an earlier one assumed.
    Here a question that isn't settled by what holds for all sizes is answered for the sizes of the
    call that is traced, and the answer is noted with the trace: it is valid where it has the same
    answers. Nothing else is kept.

    Attributes:
        symbols: The symbols, in order; each stands for at least 2, or what ``least`` says.
        least: For symbols that may stand for less, what they stand for at least.
        facts: Answers that hold for every call of the program that the symbols belong to.
    """

    def __init__(self) -> None:
        """Start without symbols."""
        super().__init__(
            allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False, duck_shape=False
        )
        self.symbols: tuple[Symbol, ...] = ()
        self.least: dict[Symbol, int] = {}
        self.facts: dict[Expression, Any] = {}
        self._answers: dict[Expression, Any] | None = None

    def add_size(self, value: int, bounds: tuple[int, int] | None = None) -> Symbol:
        """A new symbol, for a size that is ``value`` now.

        Args:
            value: The size of the call that is traced.
            bounds: The least and the largest size that it may stand for, if that is known. What
                follows from them isn't noted as an assumption.
        """
        from torch._dynamo.source import ConstantSource

        source = ConstantSource(f"size_{len(self.symbols)}")
        small = bounds is not None and bounds[0] < 2
        symbol = self.create_symbol(
            value,
            source,
            dynamic_dim=DimDynamic.DYNAMIC,
            positive=None if small else True,
            do_not_specialize_zero_one=small,
        )
        self.symbols = (*self.symbols, symbol)  # type: ignore[arg-type]
        if bounds is not None and small:
            self.least[symbol] = bounds[0]  # type: ignore[index]
        if bounds is not None:
            low, high = bounds
            unbounded = high >= sys.maxsize
            self.var_to_range[symbol] = ValueRanges(low, int_oo if unbounded else high)  # type: ignore
        return symbol  # type: ignore[return-value]

    def _get_stack_summary(self, *args: Any, **kwargs: Any) -> tuple[SLoc, str]:
        # Torch looks for the user's line, for its own messages, and imports much to do so.
        return SLoc("", None), ""

    def _generate_unique_id(self, source_name: str) -> int:
        return len(self.symbols)

    @property
    def values(self) -> dict[Symbol, Any]:
        """The sizes of the call that is being traced, or was last."""
        found = getattr(self, "backed_var_to_val", None)
        return self.var_to_val if found is None else found  # type: ignore[return-value]

    def number(self, expression: Any) -> Any:
        """A size that a tensor on a tape can have: a plain int, or a symbolic one."""
        if not is_expression(expression):
            return expression
        if expression.is_Integer:
            return int(expression)
        return self.create_symintnode(expression, hint=int(self.at_present(expression)))

    def at_present(self, expression: Any) -> Any:
        """An expression's value for the sizes of the call that is being traced, or was last."""
        return expression.xreplace(self.values) if is_expression(expression) else expression

    @contextlib.contextmanager
    def answering(
        self, sizes: Mapping[Symbol, int] | Sequence[int], answers: dict[Expression, Any]
    ) -> Iterator[None]:
        """Trace for a call of these sizes, and note what is asked about them.

        The caller holds the lock of the compiled function.
        """
        given = sizes if isinstance(sizes, Mapping) else dict(zip(self.symbols, sizes, strict=True))
        values, before, outer = self.values, dict(self.values), self._answers
        values.update({symbol: sympy.Integer(size) for symbol, size in given.items()})
        self._answers = answers
        try:
            with kinds_called():
                yield
        finally:
            values.update(before)
            self._answers = outer

    def evaluate_expr(self, orig_expr: Any, hint: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Answer a question about sizes; see the class."""
        if orig_expr.is_number or orig_expr in (sympy.true, sympy.false):
            return orig_expr
        known = self._maybe_evaluate_static(orig_expr)
        if known is not None:
            return known
        for answers in (self.facts, self._answers or {}):
            if orig_expr in answers:
                return answers[orig_expr]
        if self._answers is None:
            raise SizeError(
                f"A size was asked for outside of a trace: {orig_expr}.",
                remedy="compile with dynamic=False, and please report this with the function.",
            )
        value = self.at_present(orig_expr)
        if value.free_symbols:
            raise SizeError(
                f"A size can't be told: {orig_expr}.", remedy="compile with dynamic=False."
            )
        self._answers[orig_expr] = value
        self.guards.append(ShapeGuard(as_condition(orig_expr, value), self._get_sloc(), False))
        return value

    def note(self, question: Expression, answer: Any) -> None:
        """Note what was found out about sizes without a question to this environment."""
        if self._answers is not None and question not in self.facts:
            self._answers[question] = answer

    def guard_or_defer_runtime_assert(self, orig_expr: Any, *args: Any, **kwargs: Any) -> bool:
        """Answer it like any other question: there is no size that isn't known."""
        return bool(self.evaluate_expr(orig_expr))


class _Asked(sympy.Function):
    """Whether a Python function says yes for the values of its arguments; a class for each."""

    ask: Callable[..., bool]

    @classmethod
    def eval(cls, *arguments: Any) -> Any:
        """The answer, once every argument has a value."""
        if all(argument.is_Integer for argument in arguments):
            return sympy.Integer(int(cls.ask(*map(int, arguments))))
        return None


_counted = itertools.count()


def asked(question: Callable[..., bool], symbols: Sequence[Symbol]) -> Expression:
    """One or zero: what a Python function of sizes says, which always says the same."""
    members = {"ask": staticmethod(question), "__module__": __name__}
    made: Any = type(f"asked_{next(_counted)}", (_Asked,), members)
    return made(*symbols)


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, or record the call if an argument is a proxy."""
    proxies = [argument for argument in arguments if isinstance(argument, fx.Proxy)]
    if not proxies:
        return function(*arguments)
    return proxies[0].tracer.create_proxy("call_function", function, arguments, {})


class _Recorder(PythonReferenceAnalysis):
    """Torch's reading of expressions as Python, where functions of proxies aren't recorded."""

    @staticmethod
    def to_dtype(x: Any, dtype: torch.dtype) -> Any:
        if dtype != torch.float64:
            raise NotImplementedError(f"a size as {dtype}")
        return _call(torch.sym_float, x)

    @staticmethod
    def not_(a: Any) -> Any:
        return _call(torch.sym_not, a)

    @staticmethod
    def pow_by_natural(a: Any, b: Any) -> Any:
        # Torch has no power of a number that may be negative.
        return math.prod([a] * b) if type(b) is int else a**b

    @staticmethod
    def sqrt(x: Any) -> Any:
        return _call(torch._sym_sqrt, x)  # type: ignore[attr-defined]

    @staticmethod
    def minimum(a: Any, b: Any) -> Any:
        return _call(torch.sym_min, a, b)

    @staticmethod
    def maximum(a: Any, b: Any) -> Any:
        return _call(torch.sym_max, a, b)

    @staticmethod
    def int_truediv(a: Any, b: Any) -> Any:
        return a / b

    @staticmethod
    def modular_indexing(a: Any, divisor: Any, modulus: Any) -> Any:
        return (a // divisor) % modulus

    @staticmethod
    def floor_to_int(x: Any, dtype: torch.dtype) -> Any:
        return _call(math.floor, x)

    @staticmethod
    def ceil_to_int(x: Any, dtype: torch.dtype) -> Any:
        return _call(math.ceil, x)

    @staticmethod
    def trunc_to_int(x: Any, dtype: torch.dtype) -> Any:
        return _call(math.trunc, x)

    @staticmethod
    def round_to_int(a: Any, dtype: torch.dtype) -> Any:
        return _call(round, a)


def recorded(expression: Any, known: Mapping[Symbol, fx.Proxy]) -> Any:
    """An expression as nodes of a graph: the proxy of its value, or a number.

    Args:
        expression: Of the symbols.
        known: For each symbol the proxy of its size.
    """
    return sympy_interp(_Recorder, dict(known), expression)


class _Forced:
    """A proxy as torch keeps that of a number: to be asked for."""

    def __init__(self, proxy: fx.Proxy) -> None:
        self._proxy = proxy

    def force(self) -> fx.Proxy:
        return self._proxy


class SizeNodes:
    """What a tracer looks up a symbolic number's node in: made of the sizes that are its inputs.

    Torch would record that a size is that of some tensor, and a backward that needs the number
    would need the tensor.
    """

    def __init__(self, tracer: Any, environment: SizeEnvironment) -> None:
        """Add an input for each size.

        Args:
            tracer: Records the nodes.
            environment: Of the sizes.
        """
        self._tracer = tracer
        self._environment = environment
        self.inputs: dict[Symbol, fx.Node] = {}
        self._nodes: dict[Any, fx.Node] = {}
        # Torch would record each computation with numbers at once, used or not.
        tracer.enable_thunkify = True
        for symbol in environment.symbols:
            node = tracer.create_proxy("placeholder", str(symbol), (), {}).node
            node.meta["val"] = environment.number(symbol)
            self.inputs[symbol] = self._nodes[symbol] = node

    def __contains__(self, number: Any) -> bool:
        """Every symbolic number has a node, so torch never gives it one."""
        return True

    def get(self, number: Any, default: Any = None) -> Any:
        """The node of a symbolic number, as torch keeps it."""
        expression = number.node.expr
        node = self._nodes.get(expression)
        if node is None:
            node = self._nodes[expression] = self._computed(expression)
        return _Forced(fx.Proxy(node, self._tracer))

    def __getitem__(self, number: Any) -> Any:
        """See ``get``."""
        return self.get(number)

    def _computed(self, expression: Any) -> fx.Node:
        graph = self._tracer.graph
        last = next(iter(reversed(graph.nodes)))
        known = {symbol: fx.Proxy(node, self._tracer) for symbol, node in self.inputs.items()}
        made = recorded(expression, known)
        if not isinstance(made, fx.Proxy):
            raise SizeError(f"A size can't be recorded: {expression}.", remedy="dynamic=False")
        node = last.next
        while node.op != "root":
            arguments = fx.map_arg(node.args, lambda argument: argument.meta["val"])
            node.meta["val"] = node.target(*arguments)  # type: ignore[operator]
            node = node.next
        return made.node
