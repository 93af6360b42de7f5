"""Floats that ``capture`` gives to a function in place of a call's own, to serve others too.

What a function asks of one becomes an assumption of the program. What can't be answered for all
values is answered for that of the call, and then the program is for that value only.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from funcaot._torch.tensors.sizes.called_kinds import note_caller
from funcaot._torch.tensors.sizes.functions_of_math import QUESTIONS
from funcaot._torch.tensors.sizes.number_log import COMPARISONS, NumberLog, settle_the_rest
from funcaot._torch.tensors.sizes.shapes import SizeError

__all__ = ["EXACT", "LONGEST", "Asks", "OpenFloat", "given_of"]

# Longer texts belong to programs for one value, and so do whole numbers that a float isn't exactly.
LONGEST = 400
EXACT = 2**53
# Powers up to this one of numbers within these limits are numbers.
_STEEPEST, _MODERATE, _SMALL = 8, "1e-30 < {} < 1e30", "abs({}) < 1e30"
# Functions of Python's ``math`` that give a whole number.
_WHOLE = ("floor", "ceil")
# Where a function of a finite number gives one; elsewhere Python raises.
_EVERYWHERE: tuple[str, ...] = ("sin", "cos", "tan", "tanh", "atan")
_DOMAINS: dict[str, str] = {}
_DOMAINS |= dict.fromkeys(_EVERYWHERE, "True")
_DOMAINS |= dict.fromkeys(("exp", "expm1", "sinh", "cosh"), "abs({}) < 700.0")
_DOMAINS |= dict.fromkeys(("log", "log2", "log10"), "{} > 0.0")
_DOMAINS |= {"log1p": "{} > -1.0", "sqrt": "{} >= 0.0"}
_DOMAINS |= dict.fromkeys(("asin", "acos"), "abs({}) <= 1.0")


class Asks(Protocol):
    """What a capture does for numbers that are read off its tensors."""

    def value(self, number: torch.Tensor) -> float:
        """The number of this call, for which the program is then."""
        ...

    def answer(self, ask: Callable[[], Any]) -> bool:
        """What a tensor of one boolean says in this call; so it is in each call of the program."""
        ...

    def compute(self, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """A number that is computed of others in the graph, without derivatives."""
        ...

    def taken(self, other: Any) -> Any:
        """Another number as one that the graph computes with: a tensor, or a plain number."""
        ...


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

    Attributes:
        argument: Which of the user's arguments it is, if it is one.
        present_kind: What that is outside.
        kind: What it says that it is.
    """

    argument: int | None = None
    present_kind: Any = float
    kind: type = float

    def __init__(
        self,
        log: NumberLog,
        value: float,
        text: str,
        positions: frozenset[Any],
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
        self._asks: Asks | None = None
        log.note(self)

    @classmethod
    def of_tensor(cls, log: NumberLog, tensor: torch.Tensor, asks: Asks) -> OpenFloat:
        """What stands for the number in a tensor that a function reads.

        Args:
            log: Where it is noted.
            tensor: The number, in double precision and of no dimensions.
            asks: What tells the number of this call, and takes other numbers.
        """
        made = cls(log, math.nan, "", frozenset(), lambda: tensor)
        made._asks = asks
        return made

    @property
    def present(self) -> Any:
        """The number of this call, where it isn't read off a tensor."""
        return self.present_kind(self._value)

    @property
    def known(self) -> tuple[NumberLog, float, str, frozenset[Any], type]:
        """What is known of it beside its tensor."""
        return self._log, self._value, self._text, self._positions, self.kind

    @property
    def is_at_level(self) -> bool:
        """Whether it is a number of a call inside of a transform."""
        return self._log.is_at_level

    @property
    def is_read(self) -> bool:
        """Whether it is read off a tensor, so that only the graph knows it."""
        return self._asks is not None

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """What ``isinstance`` and dispatch by class are told."""
        return self.kind

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
        if self._asks is not None:
            return self._asks.value(self._tensor())
        self._log.pin(self._text, self._value, self._positions)
        return self.kind(self._value)

    def settling(self) -> Callable[[], None]:
        """What settles an argument, without holding it."""
        return functools.partial(self._log.pin, self._text, self._value, self._positions)

    def within(self, dtype: torch.dtype) -> torch.Tensor | None:
        """Its value as a tensor of a dtype; None for one that the dtype doesn't hold.

        Torch refuses such a number as a limit, a factor or what a tensor is filled with.
        """
        most = torch.finfo(dtype).max

        def is_beyond(number: torch.Tensor) -> torch.Tensor:
            return (number.abs() > most) & (number.abs() < math.inf)

        if dtype not in (torch.float64, torch.complex128):
            text = f"{most!r} < abs({self._text}) < math.inf"
            if self._answer(is_beyond, text, most < abs(self._value) < math.inf):
                return None
        return self.tensor().to(dtype)

    def is_one_of(self, numbers: tuple[float, ...]) -> bool:
        """Whether it is one of some numbers, which the program assumes then."""

        def is_among(number: torch.Tensor) -> torch.Tensor:
            return torch.stack([number == each for each in numbers]).any()

        return self._answer(is_among, f"{self._text} in {numbers!r}", self._value in numbers)

    def _answer(self, ask: Callable[[torch.Tensor], torch.Tensor], text: str, now: bool) -> bool:
        """What the program assumes from now on: what the graph says, or Python of an argument."""
        if self._asks is not None:
            return self._asks.answer(lambda: ask(self.tensor()))
        return self._log.ask(text, now)

    def __float__(self) -> float:
        note_caller("float")  # The next capture of the code that calls it finds another one.
        return self.settle()

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
        return self._answer(lambda number: number != 0, f"bool({self._text})", bool(self._value))

    def __pos__(self) -> OpenFloat:
        return self

    def __neg__(self) -> Any:
        return self._made(-self._value, f"(-{self._text})", lambda: -self.tensor())

    def __abs__(self) -> Any:
        return self._made(abs(self._value), f"abs({self._text})", lambda: self.tensor().abs())

    def in_mathematics(self, name: str, others: Sequence[Any]) -> Any:
        """What a function of ``math`` makes of it.

        Args:
            name: The function.
            others: Its other arguments.

        Returns:
            A number or an answer, or ``NotImplemented`` where this number has to be told.
        """
        if name == "pow" and len(others) == 1:
            return self ** float(others[0])
        if others:
            return NotImplemented
        if name in QUESTIONS:
            return self._asked(name)
        if name == "fabs":
            return abs(self)
        if not self.is_read:
            return self._of_argument(name)
        if name in _WHOLE or not hasattr(torch, name):
            return NotImplemented
        return self._through(name)

    def _of_argument(self, name: str) -> Any:
        """What a function of ``math`` makes of an argument, in double precision in the graph."""
        domain = _DOMAINS.get(name)
        if domain is None or not (self._asked("isfinite") and self._is_within(domain)):
            return NotImplemented
        function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
        value, text = getattr(math, name)(self._value), f"math.{name}({self._text})"
        return self._made(value, text, lambda: function(self.tensor())).of_kind(float)

    def _is_within(self, domain: str) -> bool:
        """Whether it is where something is computed without an error, from now on."""
        now = bool(eval(domain.format(repr(self._value))))
        return self._log.ask(domain.format(self._text), now)

    def _asked(self, question: str) -> bool:
        now: bool = getattr(math, question)(self._value)
        return self._answer(getattr(torch, question), f"math.{question}({self._text})", now)

    def _through(self, name: str) -> Any:
        """What a function gives as an op; Python raises where no number comes out."""
        function: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, name)
        found = self._in_graph(lambda: function(self.tensor()))
        return getattr(math, name)(self.settle()) if found is None else found

    def _in_graph(self, compute: Callable[[], torch.Tensor]) -> Any:
        """What is computed of a number that is read, if that is finite; None otherwise."""
        asks = self._asks
        if asks is None or not asks.answer(lambda: torch.isfinite(compute())):
            return None
        return self._made(math.nan, "", compute)

    def __pow__(self, other: Any, *modulo: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        plain = type(other) in (int, float) and not modulo
        found = self._power(float(other)) if plain else None
        return pow(self.settle(), other, *modulo) if found is None else found

    def _power(self, exponent: float) -> Any:
        """A power where that is a real number; None otherwise."""
        if self._asks is None:
            limits = _MODERATE if exponent < 0 or exponent % 1 else _SMALL
            if abs(exponent) > _STEEPEST or not self._is_within(limits):
                return None
            value, text = self._value**exponent, f"({self._text} ** {exponent!r})"
            return self._made(value, text, lambda: torch.pow(self.tensor(), exponent))
        if exponent == 2:
            return self._in_graph(lambda: self.tensor() * self.tensor())
        if not self._asks.answer(lambda: self.tensor() > 0):
            return None
        return self._in_graph(lambda: torch.pow(self.tensor(), exponent))

    def _made(self, value: float, text: str, tensor: Any, *others: Any) -> Any:
        if self._asks is not None:
            return OpenFloat.of_tensor(self._log, self._asks.compute(tensor), self._asks)
        positions = self._positions.union(*(other._positions for other in others))
        kind = next((each.kind for each in others if each.kind is not float), self.kind)
        if len(text) > LONGEST:
            self._log.refuse_late()
            self._log.fix(positions)
            return kind(value)
        return OpenFloat(self._log, value, text, positions, tensor).of_kind(kind)

    def of_kind(self, kind: type) -> OpenFloat:
        """The same, which says that it is of a kind of number."""
        self.kind = kind
        return self

    def __rpow__(self, other: Any) -> Any:
        if self._asks is None and type(other) in (int, float) and 1e-9 < other < 1e9:
            growth = abs(math.log(other))
            if self._is_within(f"abs({{}}) * {growth!r} < 700.0"):
                base, text = float(other), f"({float(other)!r} ** {self._text})"
                return self._made(base**self._value, text, lambda: torch.pow(base, self.tensor()))
        if self._asks is not None and type(other) in (int, float) and other > 0:
            found = self._in_graph(lambda: torch.pow(float(other), self.tensor()))
            if found is not None:
                return found
        return pow(other, self.settle())


def given_of(other: Any) -> Any:
    """What a program is given of a number that is written down; anything else as it is."""
    found = other.given() if hasattr(type(other), "given") else None
    return other if found is None else found


def _operand(other: Any) -> tuple[float, str, Callable[[], Any]] | None:
    """A number as operand of an open one; None for what isn't one or can't be one exactly."""
    kind = type(other)
    if hasattr(kind, "as_float"):
        other = other.as_float()
        kind = type(other)
    if kind is OpenFloat:
        return other._value, other._text, other.tensor
    if kind in (int, bool) and abs(other) < EXACT:
        other, kind = float(other), float
    if kind is not float:
        return None
    return other, f"float({str(other)!r})", lambda: other


def _beside(number: OpenFloat, other: Any) -> Any:
    """The other operand of one that is read off a tensor: a tensor or a number; None for neither.

    An open one stays open, as a tensor, if it can.
    """
    if type(other) is OpenFloat:
        return other.tensor()
    taken = number._asks.taken(other) if number._asks is not None else other
    if isinstance(taken, torch.Tensor) or type(taken) is torch.SymInt:
        return taken
    given = _operand(taken)
    return None if given is None else given[2]()


def _with_a_read_one(first: OpenFloat, second: Any) -> tuple[OpenFloat, OpenFloat, Any] | None:
    """The two with the one that is read off a tensor before; None if neither is."""
    if first.is_read:
        return first, first, second
    return (second, first, second) if type(second) is OpenFloat and second.is_read else None


def _arithmetic(name: str, sign: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give open floats an operator and its reflection."""

    def computed(read: OpenFloat, self: OpenFloat, other: Any, *, reflected: bool) -> Any:
        """It is computed in the graph, in double precision as Python does."""
        asks, beside = read._asks, _beside(read, other)
        if asks is None or beside is None:
            self.settle()
            return NotImplemented
        left, right = (beside, self.tensor()) if reflected else (self.tensor(), beside)
        if sign == "/" and asks.answer(lambda: right == 0):
            raise ZeroDivisionError("float division by zero")
        return read._made(math.nan, "", lambda: compute(left, right))

    def run(self: OpenFloat, other: Any, *, reflected: bool) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        if (pair := _with_a_read_one(self, other)) is not None:
            return computed(*pair, reflected=reflected)
        other = given_of(other)
        given = _operand(other)
        if given is None:
            self.settle()
            return NotImplemented
        mine = (self._value, self._text, self.tensor)
        left, right = (given, mine) if reflected else (mine, given)
        others = (other,) if type(other) is OpenFloat else ()
        if sign == "/":
            self._log.ask(f"{right[1]} != 0.0", right[0] != 0.0)
            if right[0] == 0.0 and any(each.kind is not float for each in (self, *others)):
                raise SizeError("A number of NumPy's is divided by zero.", remedy="use a tensor.")
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
        if (pair := _with_a_read_one(self, other)) is not None:
            read, beside = pair[0], _beside(pair[0], other)
            if read._asks is not None and beside is not None:
                return read._asks.answer(lambda: compute(self.tensor(), beside))
        given = _operand(given_of(other))
        if given is None or self.is_read:
            if isinstance(other, (int, complex)) or hasattr(other, "dtype"):
                return getattr(self.settle(), f"__{name}__")(other)
            return NotImplemented
        return self._log.ask(f"({self._text} {sign} {given[1]})", compute(self._value, given[0]))

    setattr(OpenFloat, f"__{name}__", run)


for _name, _sign, _compute in (
    ("add", "+", operator.add),
    ("sub", "-", operator.sub),
    ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv),
):
    _arithmetic(_name, _sign, _compute)

for _name, _sign, _compute in COMPARISONS:
    _comparison(_name, _sign, _compute)
settle_the_rest(OpenFloat, float)
