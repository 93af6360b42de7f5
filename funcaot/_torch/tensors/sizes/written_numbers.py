"""Numbers that carry how Python computes them: ``state`` puts them where a function reads its own.

A program is right for all values of such a number if the function only computes with it. What is
computed is written down, step by step, and each call does it again in Python, with its own values
and Python's own rounding. What an op needs of it is a tensor that the call makes of the result.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from funcaot._torch.patches import is_usable
from funcaot._torch.tensors.sizes.called_kinds import is_one_float
from funcaot._torch.tensors.sizes.functions_of_math import StandIn, replaced_by
from funcaot._torch.tensors.sizes.number_log import (
    COMPARISONS,
    SETTLED,
    Argument,
    Asked,
    WrittenLog,
)
from funcaot._torch.tensors.sizes.number_tensors import mathematics_of
from funcaot._torch.tensors.sizes.open_floats import OpenFloat
from funcaot._torch.tensors.sizes.open_numbers import OpenInt, extreme
from funcaot._torch.tensors.sizes.shapes import SizeError
from funcaot.base.numpy_kinds import double, expression_of, name_of_kind

__all__ = [
    "KINDS",
    "WRITTEN",
    "WrittenFloat",
    "WrittenInt",
    "applied",
    "is_written",
    "mathematics",
    "written",
    "written_argument",
]

_EXACT = 2**53
_PLAIN = (int, float, bool)

_OF_EITHER_KIND = ("pow", "math.pow", "min(", "max(")  # What gives a whole number or another.
# What gives one number for many.
_FOLDING = (
    "{} % {}", "{} // {}", "{} & {}", "{} | {}", "{} >> {}", "min(", "max(", "round(", "int(",
    "divmod(", "math.floor(", "math.ceil(", "math.trunc(",
)  # fmt: skip

# What open numbers and sizes compute as well, and what sizes compute by a plain number alone.
_OPEN_TOO = ("{} + {}", "{} - {}", "{} * {}", "{} / {}", "-{}", "abs({})")
_BY_A_NUMBER = ("{} // {}", "{} % {}")
_OF_FLOATS = ("+", "-", "*", "/")


class _Written:
    """What both kinds of number have."""

    _log: WrittenLog
    name: str
    value: Any
    sources: frozenset[Any]
    kind: type
    is_whole = False
    _open: Callable[[], Any] | None = None
    argument: OpenFloat | None = None  # The same, where a program is given it as a float.

    def _start(self, log: WrittenLog, name: str, value: Any, sources: frozenset[Any]) -> None:
        self._log, self.name, self.value, self.sources = log, name, value, sources
        log.note(self)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """What ``isinstance`` is told."""
        return self.kind

    def given(self) -> Any:
        """The same as what the program is given of arguments; None for what it isn't."""
        return None if self._open is None else self._open()

    @property
    def node(self) -> Any:
        """What torch's C++ code asks."""
        return Asked(self, self.kind)

    def settle(self) -> Any:
        """The number of this call, for which the program is then."""
        self._log.refuse_late()
        self._log.pin(self.name, self.value, self.sources)
        return self.value

    def opened(self, lift: Callable[[torch.Tensor], torch.Tensor]) -> OpenFloat | None:
        """The same as a number that ops of the tape take; None if no float is exactly that.

        Args:
            lift: Gives the tape's tensor for a real one.
        """
        self._log.refuse_late()
        if self.argument is not None:
            return self.argument
        if self.is_whole:
            if abs(self.value) >= _EXACT:
                return None
            self._log.ask(f"abs({self.name}) < {_EXACT}", answer=True)
        value = float(self.value)
        log, name = self._log, self.name
        found = OpenFloat(log, value, name, self.sources, lambda: lift(log.tensor_of(name, value)))
        return found.of_kind(double if self.kind is double else float)

    def __hash__(self) -> int:
        return hash(self.settle())

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce_ex__(self, protocol: Any) -> Any:
        # What is made of that would tell it from a plain number.
        raise SizeError("A number that is left open is pickled.", remedy="pass what is pickled.")

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        import numpy as np

        return np.asarray(self.settle(), *args)

    def converted(self, kind: type) -> Any:
        """``float(n)`` or ``int(a)``, written down."""
        return applied(kind, f"{kind.__name__}({{}})", self)

    def extreme(self, choose: Callable[..., Any], numbers: Sequence[Any]) -> Any:
        """What ``min`` or ``max`` gives of numbers; ``NotImplemented`` of other things."""
        if len(numbers) < 2 or any(_operand(number) is None for number in numbers):
            return NotImplemented
        places = ", ".join("{}" for _ in numbers)
        made = applied(choose, f"{choose.__name__}({places})", *numbers)
        if type(made) is WrittenInt and all(map(_is_size, numbers)):
            made._open = lambda: extreme(choose, list(map(_given, numbers)))
        return made

    def __bool__(self) -> bool:
        return self._log.ask(f"bool({self.name})", bool(self.value))

    def __pos__(self) -> Any:
        return self

    def __neg__(self) -> Any:
        return applied(operator.neg, "-{}", self)

    def __abs__(self) -> Any:
        return applied(abs, "abs({})", self)

    def __trunc__(self) -> Any:
        return applied(math.trunc, "math.trunc({})", self)

    def __round__(self, digits: Any = None) -> Any:
        if digits is None:
            return applied(round, "round({})", self)
        return applied(round, "round({}, {})", self, digits)

    def __divmod__(self, other: Any) -> Any:
        return _both(self, other)

    def __rdivmod__(self, other: Any) -> Any:
        return _both(other, self)


class WrittenFloat(_Written, torch.SymFloat):
    """A float that a function reads; it says that it is a ``float``."""

    kind = float

    def __init__(self, log: WrittenLog, name: str, value: float, sources: frozenset[Any]) -> None:
        """Stand for a number.

        Args:
            log: Where steps and assumptions go.
            name: What the log calls it.
            value: The number of the present call.
            sources: Which numbers that the function reads it is computed from.
        """
        self._start(log, name, value, sources)


class WrittenInt(_Written, torch.SymInt):
    """A whole number that a function reads; it says that it is an ``int``."""

    kind = int
    is_whole = True

    def __init__(self, log: WrittenLog, name: str, value: int, sources: frozenset[Any]) -> None:
        """Stand for a number, as `WrittenFloat` does."""
        self._start(log, name, value, sources)


# What stands for which kind of number; `of_numpy` adds those of NumPy's.
KINDS: dict[type, Any] = {float: WrittenFloat, int: WrittenInt}
WRITTEN = {WrittenFloat, WrittenInt}
SETTLED.update(WRITTEN)


def is_written(value: Any) -> bool:
    """Whether a value is one of these numbers."""
    return type(value) in WRITTEN


def holds_written(value: Any) -> bool:
    """Whether something stands for a number, or is a tuple with such a thing in it."""
    return is_written(value) or (type(value) is tuple and any(map(is_written, value)))


def written(log: WrittenLog, name: str, value: float, source: int) -> Any:
    """What stands for a number that the function reads.

    Args:
        log: Where steps and assumptions go.
        name: What a call's own number will be called.
        value: The number.
        source: Which of the numbers that the function reads it is.
    """
    return KINDS[type(value)](log, name, value, frozenset({source}))


def written_argument(log: WrittenLog, name: str, value: float, stands: Any) -> Any:
    """What stands for a number among the arguments.

    Args:
        log: Where steps and assumptions go.
        name: What a call's own number will be called.
        value: The number.
        stands: The same as an open float or an open size of the program.
    """
    made = KINDS[type(value)](log, name, value, frozenset({Argument(stands.settling())}))
    if type(stands) is OpenFloat:
        made.argument = stands
    if getattr(stands, "present_kind", float) is float:
        made._open = lambda: stands
    return made


def _operand(value: Any) -> str | None:
    """A number in Python; None for what isn't a plain one."""
    if type(value) in WRITTEN:
        return value.name
    if type(value) not in _PLAIN:
        return expression_of(value)
    return f"float({str(value)!r})" if type(value) is float else f"({value!r})"


def _plain(value: Any) -> Any:
    return value.value if type(value) in WRITTEN else value


def _settled(value: Any) -> Any:
    return value.settle() if type(value) in WRITTEN else value


def applied(compute: Callable[..., Any], form: str, *operands: Any) -> Any:
    """What Python computes of numbers, written down; plain where that can't be done.

    Args:
        compute: The operator or function.
        form: The expression, with a place for each operand.
        operands: Numbers, some of which are written.
    """
    log = next(each._log for each in operands if type(each) in WRITTEN)
    log.refuse_late()
    texts = [_operand(each) for each in operands]
    if None in texts or log.is_full():
        return compute(*map(_settled, operands))
    try:
        value = compute(*map(_plain, operands))
    except ZeroDivisionError:
        if "**" not in form:
            log.ask(f"{texts[1]} == 0", answer=True)
            raise
        for each in operands:
            _settled(each)
        raise
    except Exception:
        # Whoever catches it goes another way for these numbers.
        for each in operands:
            _settled(each)
        raise
    if type(value) is bool and form.startswith("math."):
        return log.ask(form.format(*texts), value)
    if type(value) not in KINDS:
        return compute(*map(_settled, operands))
    name = log.name_of(form.format(*texts))
    if "**" in form or form.startswith(_OF_EITHER_KIND):
        log.ask(f"type({name}) is {name_of_kind(type(value))}", answer=True)
    if form.startswith(_FOLDING) or not log.folded.isdisjoint(texts):
        log.folded.add(name)
    sources = frozenset().union(*(e.sources for e in operands if type(e) in WRITTEN))
    made = KINDS[type(value)](log, name, value, sources)
    if _is_open_too(form, operands):
        made._open = lambda: compute(*map(_given, operands))
    return made


def _is_open_too(form: str, operands: Sequence[Any]) -> bool:
    """Whether a result can be computed of what the program is given of its operands."""
    if form in _BY_A_NUMBER:
        return _is_size(operands[0]) and type(operands[1]) is int and operands[1] > 0
    plain = (type(each) in (int, float) for each in operands)
    return form in _OPEN_TOO and all(map(operator.or_, plain, map(_is_given, operands)))


def _is_size(value: Any) -> bool:
    return type(value) is int or (type(value) is WrittenInt and value._open is not None)


def _is_given(value: Any) -> bool:
    return type(value) in WRITTEN and value._open is not None


def _given(value: Any) -> Any:
    return value.given() if type(value) in WRITTEN else value


def _both(first: Any, second: Any) -> Any:
    """What ``divmod`` gives."""
    if _is_elsewhere(first) or _is_elsewhere(second):
        return NotImplemented
    return tuple(
        applied(lambda *pair, at=at: divmod(*pair)[at], f"divmod({{}}, {{}})[{at}]", first, second)
        for at in (0, 1)
    )


def _arithmetic(name: str, sign: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give the numbers an operator and its reflection."""
    form = f"{{}} {sign} {{}}"

    def forward(self: Any, other: Any, *modulo: Any) -> Any:
        if _is_elsewhere(other):
            return NotImplemented
        if modulo:
            return pow(self.settle(), _settled(other), *modulo)
        other = _as_float(self, other, sign)
        if _is_beside_a_size(self, other):
            return compute(self.given(), other)
        if _is_elsewhere(other):
            return compute(self, other)
        return applied(compute, form, self, other)

    def reflected(self: Any, other: Any) -> Any:
        if _is_elsewhere(other):
            return NotImplemented
        other = _as_float(self, other, sign)
        if _is_beside_a_size(self, other):
            return compute(other, self.given())
        if _is_elsewhere(other):
            return compute(other, self)
        return applied(compute, form, other, self)

    for kind in WRITTEN:
        setattr(kind, f"__{name}__", forward)
        setattr(kind, f"__r{name}__", reflected)


def _is_elsewhere(other: Any) -> bool:
    """Whether the other operand knows what to do: a tensor, or a number that is read off one."""
    return isinstance(other, torch.Tensor) or (type(other) is OpenFloat and other.is_read)


def _as_float(number: Any, other: Any, sign: str) -> Any:
    """A size as a float of the graph, where a float is computed of it; anything else as it is."""
    if type(other) is not torch.SymInt or sign not in _OF_FLOATS:
        return other
    return _float_of_size(other) if sign == "/" or number.kind is float else other


def _is_beside_a_size(number: Any, other: Any) -> bool:
    """Whether a number of the program meets one of its sizes, or one that is read off a tensor."""
    return _is_given(number) and (
        type(other) is OpenInt or (type(other) is torch.SymInt and number.kind is int)
    )


# What compares itself with a plain number; an open size does so by a guard.
_NUMBERS = (int, float, complex, torch.SymInt, torch.SymFloat)


def _comparison(name: str, sign: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give the numbers a comparison, whose answer is an assumption."""

    def run(self: Any, other: Any) -> Any:
        if _is_elsewhere(other):
            return NotImplemented
        text = _operand(other)
        if _is_beside_a_size(self, other):
            return compute(self.given(), other)
        if text is None:
            if isinstance(other, _NUMBERS) or hasattr(other, "dtype"):
                return compute(self.settle(), other)
            return NotImplemented
        return self._log.ask(f"{self.name} {sign} {text}", compute(self.value, _plain(other)))

    for kind in WRITTEN:
        setattr(kind, f"__{name}__", run)


def _settling(kind: Any, name: str) -> None:
    """Let a method of the plain number answer, for the value of this call."""

    def run(self: Any, *args: Any) -> Any:
        if args and _is_elsewhere(args[0]):
            return NotImplemented
        return getattr(self.settle(), name)(*map(_settled, args))

    setattr(kind, name, run)


for _name, _sign, _compute in (
    ("add", "+", operator.add),
    ("sub", "-", operator.sub),
    ("mul", "*", operator.mul),
    ("truediv", "/", operator.truediv),
    ("floordiv", "//", operator.floordiv),
    ("mod", "%", operator.mod),
    ("pow", "**", operator.pow),
    ("and", "&", operator.and_),
    ("or", "|", operator.or_),
    ("xor", "^", operator.xor),
    ("lshift", "<<", operator.lshift),
    ("rshift", ">>", operator.rshift),
):
    _arithmetic(_name, _sign, _compute)
for _name, _sign, _compute in COMPARISONS:
    _comparison(_name, _sign, _compute)

_LEFT = {"__class__", "__getattribute__", "__new__", "__init__", "__setattr__", "__delattr__"}
_LEFT |= {"__init_subclass__", "__subclasshook__", "__dir__", "__getstate__", "__sizeof__"}
_LEFT |= {"__getformat__", "__doc__", "__getnewargs__", "real", "imag", "numerator", "denominator"}


def _part(name: str) -> property:
    return property(lambda self: getattr(self.settle(), name))


for _kind in WRITTEN:
    _own = set(vars(_kind)) | set(vars(_Written))
    for _name in set(dir(_kind.kind)) - _LEFT - _own:
        _settling(_kind, _name)
    for _name in ("real", "imag", "numerator", "denominator"):
        if hasattr(_kind.kind, _name):
            setattr(_kind, _name, _part(_name))

# Open sizes and what is computed of them; torch has no such function of most of these.
_SIZES = (torch.SymInt, torch.SymFloat)
_OF_SIZES = ("exp", "expm1", "log", "log2", "log10", "log1p", "tanh", "sin", "cos", "atan")


def _float_of_size(size: Any) -> Any:
    """A size as a float that is read off a tensor, which stays in the graph."""
    return torch.full((), size, dtype=torch.float64, device="cpu").item()


class _Function(StandIn):
    """It stands for a function of ``math``; for all but written numbers it is that function."""

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        if keywords:
            return self.original(*args, **keywords)
        if any(type(each) in WRITTEN for each in args):
            places = ", ".join("{}" for _ in args)
            return applied(self.original, f"math.{self.name}({places})", *args)
        if any(isinstance(each, torch.Tensor) for each in args):
            found = mathematics_of(self.name, args)
            if found is not NotImplemented:
                return found
            args = tuple(each.item() if is_one_float(each) else each for each in args)
        if len(args) == 1 and type(args[0]) in _SIZES:
            if self.name == "sqrt" and args[0] >= 0:
                return torch.sym_sqrt(*args)
            if self.name in _OF_SIZES:  # Read off a tensor, it may stay in the graph.
                args = (_float_of_size(*args),)
        if args and type(args[0]) is OpenFloat:
            found = args[0].in_mathematics(self.name, args[1:])
            if found is not NotImplemented:
                return found
        return self.original(*args)


_patch = replaced_by(_Function)


@contextlib.contextmanager
def mathematics() -> Iterator[None]:
    """While active, functions of Python's ``math`` take these numbers."""
    with _patch.used() if is_usable("mathematics") else contextlib.nullcontext():
        yield
