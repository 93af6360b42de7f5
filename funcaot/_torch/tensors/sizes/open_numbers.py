"""Numbers that ``capture`` gives to a function in place of a call's own, to serve other values too.

What a function asks of one becomes an assumption of the program. What can't be answered for all
values is answered for that of the call, and then the program is for that value only.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_map
from funcaot._torch.tensors.sizes.shapes import SizeError

__all__ = ["NumberLog", "OpenFloat", "OpenInt", "settled"]

# Longer texts, and larger results of whole numbers, belong to programs for one value.
_LONGEST = 400
_LARGEST = 2**63 - 1
_EXACT = 2**53


class NumberLog:
    """What one capture assumes about the numbers among its arguments.

    Attributes:
        answers: Conditions in Python, of ``number_<position>``, each with what came out.
        fixed: Positions of numbers that the program is right for one value of.
    """

    def __init__(self) -> None:
        """Nothing is assumed yet."""
        self.answers: dict[str, bool] = {}
        self.fixed: set[int] = set()
        self._made: list[weakref.ref[Any]] = []
        self._ended = False

    def note(self, number: Any) -> None:
        """Note a number that was made."""
        self._made.append(weakref.ref(number))

    def are_kept(self) -> bool:
        """Whether somebody still holds one of the numbers."""
        return any(reference() is not None for reference in self._made)

    def restart(self) -> None:
        """Forget what an earlier run of the same call holds; what it asked stays asked."""
        self._made.clear()

    def end(self) -> None:
        """Refuse what is asked from now on: the capture is over."""
        self._ended = True

    def refuse_late(self) -> None:
        """Refuse what is asked after the capture.

        Raises:
            SizeError: Always, then.
        """
        if self._ended:
            raise SizeError(
                "A number was asked for after the function had returned.",
                remedy="set funcaot.config's open_numbers to False.",
            )

    def ask(self, condition: str, answer: bool) -> bool:
        """Note a question with its answer."""
        self.refuse_late()
        self.answers[condition] = answer
        return answer


class _Asked:
    """What torch's own code sees of an open float: a number that can be told and nothing else."""

    def __init__(self, number: OpenFloat) -> None:
        self._number = number

    def guard_float(self, file: str, line: int) -> float:
        return self._number.settle()

    def is_float(self) -> bool:
        return True

    def is_int(self) -> bool:
        return False

    def is_bool(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        raise SizeError(f"An open number was asked for {name}.", remedy="open_numbers=False")


class OpenFloat(torch.SymFloat):
    """A float that a function may compute with.

    It says that it is a ``float``. Torch's code takes it for one too, as it does a ``SymFloat``.
    """

    def __init__(
        self,
        log: NumberLog,
        value: float,
        text: str,
        positions: frozenset[int],
        tensor: Callable[[], torch.Tensor],
    ) -> None:
        """Stand for a number.

        Args:
            log: Where assumptions go.
            value: The number of the present call.
            text: Python that computes it from ``number_<position>``.
            positions: Arguments that it is computed from.
            tensor: Makes the float64 tensor of no dimensions that has its value.
        """
        self._log, self._value, self._text = log, value, text
        self._positions, self._tensor = positions, tensor
        log.note(self)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """What ``isinstance`` and dispatch by class are told."""
        return float

    @property
    def node(self) -> Any:  # type: ignore[override]
        """What torch's C++ code asks."""
        return _Asked(self)

    def tensor(self) -> torch.Tensor:
        """Its value as a float64 tensor of no dimensions, in the capture's graph."""
        self._log.refuse_late()
        return self._tensor()

    def settle(self) -> float:
        """The number of this call, for which the program is then."""
        self._log.refuse_late()
        self._log.fixed |= self._positions
        return self._value

    def __hash__(self) -> int:
        return hash(self.settle())

    def __copy__(self) -> OpenFloat:
        return self

    def __deepcopy__(self, memo: Any) -> OpenFloat:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return float, (self.settle(),)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy as np

        return np.asarray(self.settle(), *args)

    def __bool__(self) -> bool:
        return self._log.ask(f"bool({self._text})", bool(self._value))

    def __pos__(self) -> OpenFloat:
        return self

    def __neg__(self) -> Any:
        return self._made(-self._value, f"(-{self._text})", lambda: -self.tensor())

    def __abs__(self) -> Any:
        return self._made(abs(self._value), f"abs({self._text})", lambda: self.tensor().abs())

    def _made(self, value: float, text: str, tensor: Any, *others: OpenFloat) -> Any:
        positions = self._positions.union(*(other._positions for other in others))
        if len(text) > _LONGEST:
            self._log.refuse_late()
            self._log.fixed |= positions
            return value
        return OpenFloat(self._log, value, text, positions, tensor)


def _operand(other: Any) -> tuple[float, str, Callable[[], Any]] | None:
    """A number as operand of an open one; None for what isn't one or can't be one exactly."""
    kind = type(other)
    if kind is OpenFloat:
        return other._value, other._text, other.tensor
    if kind is OpenInt:
        other = other.settle()
        kind = int
    if kind in (int, bool) and abs(other) < _EXACT:
        other, kind = float(other), float
    if kind is not float:
        return None
    return other, f"float({str(other)!r})", lambda: other


def _arithmetic(name: str, sign: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give open floats an operator and its reflection."""

    def run(self: OpenFloat, other: Any, *, reflected: bool) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        given = _operand(other)
        if given is None:
            self.settle()
            return NotImplemented
        mine = (self._value, self._text, self.tensor)
        left, right = (given, mine) if reflected else (mine, given)
        if sign == "/":
            self._log.ask(f"{right[1]} != 0.0", right[0] != 0.0)
        others = (other,) if type(other) is OpenFloat else ()
        text = f"({left[1]} {sign} {right[1]})"
        return self._made(
            compute(left[0], right[0]), text, lambda: compute(left[2](), right[2]()), *others
        )

    def forward(self: OpenFloat, other: Any) -> Any:
        return run(self, other, reflected=False)

    def reflected(self: OpenFloat, other: Any) -> Any:
        return run(self, other, reflected=True)

    setattr(OpenFloat, f"__{name}__", forward)
    setattr(OpenFloat, f"__r{name}__", reflected)


def _comparison(name: str, sign: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give open floats a comparison, whose answer is an assumption."""

    def run(self: OpenFloat, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        given = _operand(other)
        if given is None:
            if isinstance(other, (int, complex)) or hasattr(other, "dtype"):
                return getattr(self.settle(), f"__{name}__")(other)
            return NotImplemented
        return self._log.ask(f"({self._text} {sign} {given[1]})", compute(self._value, given[0]))

    setattr(OpenFloat, f"__{name}__", run)


def _settling(kind: Any, plain: type, name: str) -> None:
    """Let a method of the plain number answer, for the value of this call."""

    def run(self: Any, *args: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            return NotImplemented  # it is the tensor's method that knows what to do
        return getattr(plain, name)(self.settle(), *map(settled, args))

    setattr(kind, name, run)


for _name, _sign, _compute in (
    ("add", "+", operator.add),
    ("sub", "-", operator.sub),
    ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv),
):
    _arithmetic(_name, _sign, _compute)

_COMPARISONS = (
    ("eq", "==", operator.eq),
    ("ne", "!=", operator.ne),
    ("lt", "<", operator.lt),
    ("le", "<=", operator.le),
    ("gt", ">", operator.gt),
    ("ge", ">=", operator.ge),
)
for _name, _sign, _compute in _COMPARISONS:
    _comparison(_name, _sign, _compute)

_LEFT = {"__class__", "__getattribute__", "__new__", "__init__", "__setattr__", "__delattr__"}
_LEFT |= {"__init_subclass__", "__subclasshook__", "__dir__", "__getstate__", "__sizeof__"}
_LEFT |= {"__getformat__", "__doc__", "__getnewargs__", "__reduce__", "real", "imag"}
for _name in set(dir(float)) - _LEFT - set(vars(OpenFloat)):
    _settling(OpenFloat, float, _name)


def _part(name: str) -> property:
    return property(lambda self: getattr(self.settle(), name))


OpenFloat.real, OpenFloat.imag = _part("real"), _part("imag")  # type: ignore[attr-defined]


class OpenInt(torch.SymInt):
    """A whole number that a function may compute with, of a `SizeEnvironment`'s symbols.

    It says that it is an ``int``.
    """

    def __init__(self, node: Any, log: NumberLog, positions: frozenset[int], largest: int) -> None:
        """Stand for a number.

        Args:
            node: Torch's node of it.
            log: Where it is noted that it was settled.
            positions: The arguments that it is computed from.
            largest: What its size doesn't exceed.
        """
        super().__init__(node)
        self._log, self._positions, self._largest = log, positions, largest
        log.note(self)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """What ``isinstance`` and dispatch by class are told."""
        return int

    @property
    def plain(self) -> torch.SymInt:
        """The number as torch's own code knows it."""
        return torch.SymInt(self.node)

    def settle(self) -> int:
        """The number of this call, for which the program is then."""
        self._log.refuse_late()
        self._log.fixed |= self._positions
        return int(self.node.guard_int("", 0))

    def __hash__(self) -> int:
        return hash(self.settle())

    def __copy__(self) -> OpenInt:
        return self

    def __deepcopy__(self, memo: Any) -> OpenInt:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (self.settle(),)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy as np

        return np.asarray(self.settle(), *args)

    def __bool__(self) -> bool:
        self._log.refuse_late()
        return bool(self.plain != 0)

    def __pos__(self) -> OpenInt:
        return self

    def __neg__(self) -> OpenInt:
        return self.made(-self.plain, self._largest)

    def made(self, number: Any, largest: int, *others: OpenInt) -> Any:
        """What was computed from it, and from others, as such a number."""
        self._log.refuse_late()
        if not isinstance(number, torch.SymInt):
            return number
        positions = self._positions.union(*(other._positions for other in others))
        return OpenInt(number.node, self._log, positions, largest)


def _whole_arithmetic(name: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give open whole numbers an operator and its reflection."""

    def run(self: OpenInt, other: Any, *, reflected: bool) -> Any:
        if isinstance(other, (torch.Tensor, OpenFloat)):
            return NotImplemented
        others = (other,) if type(other) is OpenInt else ()
        size = others[0]._largest if others else abs(other) if type(other) is int else None
        if type(other) is torch.SymInt:
            return compute(other, self.plain) if reflected else compute(self.plain, other)
        divides = name in ("floordiv", "mod")
        fits = size is not None and not (divides and (reflected or others or other < 1))
        if fits and size is not None:
            largest = self._largest * size if name == "mul" else self._largest + size
            if largest <= _LARGEST:
                plain: Any = others[0].plain if others else other
                left, right = (plain, self.plain) if reflected else (self.plain, plain)
                return self.made(compute(left, right), largest, *others)
        value, other = self.settle(), settled(other)
        return _of_values(value, other, compute, reflected=reflected)

    def forward(self: OpenInt, other: Any) -> Any:
        return run(self, other, reflected=False)

    def reflected(self: OpenInt, other: Any) -> Any:
        return run(self, other, reflected=True)

    setattr(OpenInt, f"__{name}__", forward)
    setattr(OpenInt, f"__r{name}__", reflected)


def _of_values(value: int, other: Any, compute: Any, *, reflected: bool) -> Any:
    return compute(other, value) if reflected else compute(value, other)


def _whole_comparison(name: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give open whole numbers a comparison, whose answer is an assumption."""

    def run(self: OpenInt, other: Any) -> Any:
        self._log.refuse_late()
        if isinstance(other, (torch.Tensor, OpenFloat)):
            return NotImplemented
        if type(other) in (int, bool, OpenInt, torch.SymInt):
            plain: Any = getattr(other, "plain", other)
            return bool(compute(self.plain, plain))
        if isinstance(other, (int, float, complex)) or hasattr(other, "dtype"):
            return compute(self.settle(), other)
        return NotImplemented

    setattr(OpenInt, f"__{name}__", run)


for _name, _compute in (
    ("add", operator.add),
    ("sub", operator.sub),
    ("mul", operator.mul),
    ("floordiv", operator.floordiv),
    ("mod", operator.mod),
):
    _whole_arithmetic(_name, _compute)
for _name, _, _compute in _COMPARISONS:
    _whole_comparison(_name, _compute)

_LEFT |= {"numerator", "denominator"}
for _name in set(dir(int)) - _LEFT - set(vars(OpenInt)):
    _settling(OpenInt, int, _name)
for _name in ("real", "imag", "numerator", "denominator"):
    setattr(OpenInt, _name, _part(_name))


# Classes of numbers that can be told for the value of a call; ``written_numbers`` adds its own.
SETTLED: set[type] = {OpenFloat, OpenInt}


def settled(value: Any) -> Any:
    """The plain number for an open one; anything else as it is."""
    return value.settle() if type(value) in SETTLED else value


def all_settled(values: Any) -> Any:
    """The same of every number in a structure."""
    return tree_map(settled, values)
