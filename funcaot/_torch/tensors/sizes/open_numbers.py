"""Numbers that ``capture`` gives to a function in place of a call's own, to serve other values too.

What a function asks of one becomes an assumption of the program. What can't be answered for all
values is answered for that of the call, and then the program is for that value only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from funcaot._torch.tensors.sizes.number_log import (
    COMPARISONS,
    NumberLog,
    all_settled,
    settle_the_rest,
    settled,
)
from funcaot._torch.tensors.sizes.open_floats import EXACT, LONGEST, OpenFloat, given_of

__all__ = ["Known", "NumberLog", "OpenFloat", "OpenInt", "all_settled", "settled"]

# Larger results of whole numbers belong to programs for one value.
_LARGEST = 2**63 - 1
_HALF = 2**31


class Known(NamedTuple):
    """A whole number in the present call, and the Python that computes it from ``number_<p>``."""

    value: int
    text: str


class OpenInt(torch.SymInt):
    """A whole number that a function may compute with, of a `SizeEnvironment`'s symbols.

    It says that it is an ``int``.

    Attributes:
        argument: Which of the user's arguments it is, if it is one.
    """

    argument: int | None = None

    def __init__(
        self,
        node: Any,
        log: NumberLog,
        positions: frozenset[int],
        largest: int,
        known: Known | None = None,
    ) -> None:
        """Stand for a number.

        Args:
            node: Torch's node of it.
            log: Where it is noted that it was settled.
            positions: The arguments that it is computed from.
            largest: What its size doesn't exceed.
            known: How it follows from arguments, if it does from them alone.
        """
        super().__init__(node)
        self._log, self._positions, self._largest = log, positions, largest
        self._known = known
        log.note(self)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """What ``isinstance`` and dispatch by class are told."""
        return int

    @property
    def present(self) -> int | None:
        """The number of this call, if it follows from arguments alone."""
        return None if self._known is None else self._known.value

    @property
    def plain(self) -> torch.SymInt:
        """The number as torch's own code knows it."""
        return torch.SymInt(self.node)

    def settle(self) -> int:
        """The number of this call, for which the program is then."""
        self._log.refuse_late()
        self._log.fixed |= self._positions
        return int(self.node.guard_int("", 0))

    def settling(self) -> Callable[[], None]:
        """What settles an argument, without holding it."""
        log, positions, node = self._log, self._positions, self.node

        def settle() -> None:
            log.fix(positions)
            node.guard_int("", 0)

        return settle

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
        known = self._known and Known(-self._known.value, f"(-{self._known.text})")
        return self.made(-self.plain, self._largest, known)

    def made(self, number: Any, largest: int, known: Known | None, *others: OpenInt) -> Any:
        """What was computed from it, and from others, as such a number."""
        self._log.refuse_late()
        if not isinstance(number, torch.SymInt):
            return number
        positions = self._positions.union(*(other._positions for other in others))
        return OpenInt(number.node, self._log, positions, largest, known)

    def as_float(self) -> Any:
        """The same as a float, which it is exactly; the number of this call if that isn't sure."""
        known = self._known
        plain: Any = self.plain
        if known is None or not self.is_less_than(EXACT):
            return self.settle()

        def tensor() -> torch.Tensor:
            return torch.full((), plain, dtype=torch.float64)

        text = f"float({known.text})"
        return OpenFloat(self._log, float(known.value), text, self._positions, tensor)

    def is_less_than(self, limit: int) -> bool:
        """Whether its size is; that is assumed of every call, if it isn't known."""
        if self._largest < limit:
            return True
        known = self._known
        if known is None or abs(known.value) >= limit:
            return False
        self._largest = limit - 1
        return self._log.ask(f"abs({known.text}) < {limit}", answer=True)


def extreme(choose: Callable[..., Any], numbers: Sequence[Any]) -> Any:
    """The least or the largest of whole numbers, some of which are open.

    Args:
        choose: ``min`` or ``max``.
        numbers: Open ones and plain ones.
    """
    first = next(each for each in numbers if type(each) is OpenInt)
    plain = [each.plain if type(each) is OpenInt else each for each in numbers]
    largest = max(each._largest if type(each) is OpenInt else abs(each) for each in numbers)
    pair = torch.sym_min if choose is min else torch.sym_max
    form = f"{choose.__name__}({', '.join('{}' for _ in numbers)})"
    known = _known_of(choose, form, *numbers)
    others = [each for each in numbers if type(each) is OpenInt]
    return first.made(functools.reduce(pair, plain), largest, known, *others)


def _largest_of(name: str, number: OpenInt, other: Any) -> int | None:
    """What a result's size doesn't exceed; None if it may not be one of 64 bits."""

    def largest() -> int:
        size = other._largest if type(other) is OpenInt else abs(other)
        return number._largest * size if name == "mul" else number._largest + size

    if largest() <= _LARGEST:
        return largest()
    halves = [each for each in (number, other) if type(each) is OpenInt]
    if all(each.is_less_than(_HALF) for each in halves) and largest() <= _LARGEST:
        return largest()
    return None


def _known_of(compute: Callable[..., Any], form: str, *numbers: Any) -> Known | None:
    """How a result follows from arguments, if it does from them alone and in few words.

    Args:
        compute: What is computed.
        form: The expression, with a place for each number.
        numbers: Open ones and plain ones.
    """
    known = [each._known if type(each) is OpenInt else Known(each, repr(each)) for each in numbers]
    if None in known:
        return None
    texts = [each.text for each in known if each is not None]
    text = form.format(*texts)
    values = [each.value for each in known if each is not None]
    return Known(compute(*values), text) if len(text) <= LONGEST else None


def _whole_arithmetic(name: str, sign: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give open whole numbers an operator and its reflection."""

    def run(self: OpenInt, other: Any, *, reflected: bool) -> Any:
        other = given_of(other)
        if isinstance(other, (torch.Tensor, OpenFloat)):
            return NotImplemented
        if type(other) is torch.SymInt:
            return compute(other, self.plain) if reflected else compute(self.plain, other)
        divides = name in ("floordiv", "mod")
        if type(other) in (float, OpenFloat) and not divides:
            real = self.as_float()
            return compute(other, real) if reflected else compute(real, other)
        others = (other,) if type(other) is OpenInt else ()
        fits = type(other) in (int, OpenInt)
        if fits and not (divides and (reflected or others or other < 1)):
            largest = _largest_of(name, self, other)
            if largest is not None:
                plain: Any = others[0].plain if others else other
                left, right = (plain, self.plain) if reflected else (self.plain, plain)
                pair = (other, self) if reflected else (self, other)
                known = _known_of(compute, f"({{}} {sign} {{}})", *pair)
                return self.made(compute(left, right), largest, known, *others)
        value, other = self.settle(), settled(other)
        return _of_values(value, other, compute, reflected=reflected)

    def forward(self: OpenInt, other: Any) -> Any:
        return run(self, other, reflected=False)

    def reflected(self: OpenInt, other: Any) -> Any:
        return run(self, other, reflected=True)

    setattr(OpenInt, f"__{name}__", forward)
    setattr(OpenInt, f"__r{name}__", reflected)


def _whole_division() -> None:
    """Give open whole numbers the division whose result is a float."""

    def forward(self: OpenInt, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        return self.as_float() / given_of(other)

    def reflected(self: OpenInt, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        return given_of(other) / self.as_float()

    setattr(OpenInt, "__truediv__", forward)  # noqa: B010 (a type checker sees torch's)
    setattr(OpenInt, "__rtruediv__", reflected)  # noqa: B010


def _of_values(value: int, other: Any, compute: Any, *, reflected: bool) -> Any:
    return compute(other, value) if reflected else compute(value, other)


def _whole_comparison(name: str, compute: Callable[[Any, Any], Any]) -> None:
    """Give open whole numbers a comparison, whose answer is an assumption."""

    def run(self: OpenInt, other: Any) -> Any:
        self._log.refuse_late()
        other = given_of(other)
        if isinstance(other, (torch.Tensor, OpenFloat)):
            return NotImplemented
        if type(other) in (int, bool, OpenInt, torch.SymInt):
            plain: Any = getattr(other, "plain", other)
            return bool(compute(self.plain, plain))
        if type(other) is float:
            return compute(self.as_float(), other)
        if isinstance(other, (int, float, complex)) or hasattr(other, "dtype"):
            return compute(self.settle(), other)
        return NotImplemented

    setattr(OpenInt, f"__{name}__", run)


for _name, _sign, _compute in (
    ("add", "+", operator.add),
    ("sub", "-", operator.sub),
    ("mul", "*", operator.mul),
    ("floordiv", "//", operator.floordiv),
    ("mod", "%", operator.mod),
):
    _whole_arithmetic(_name, _sign, _compute)
_whole_division()
for _name, _, _compute in COMPARISONS:
    _whole_comparison(_name, _compute)

settle_the_rest(OpenInt, int)
