"""What a capture assumes about open numbers, and how one is told; ``open_numbers`` makes them."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Set
from math import isfinite
from typing import Any

import torch

from funcaot._torch.tensors.pytree import tree_flatten, tree_map
from funcaot._torch.tensors.sizes.shapes import SizeError

__all__ = [
    "COMPARISONS",
    "SETTLED",
    "Argument",
    "Asked",
    "NumberLog",
    "WrittenLog",
    "all_settled",
    "settle_the_rest",
    "settled",
]

COMPARISONS = (
    ("eq", "==", operator.eq),
    ("ne", "!=", operator.ne),
    ("lt", "<", operator.lt),
    ("le", "<=", operator.le),
    ("gt", ">", operator.gt),
    ("ge", ">=", operator.ge),
)
_LEFT = {"__class__", "__getattribute__", "__new__", "__init__", "__setattr__", "__delattr__"}
_LEFT |= {"__init_subclass__", "__subclasshook__", "__dir__", "__getstate__", "__sizeof__"}
_LEFT |= {"__getformat__", "__doc__", "__getnewargs__", "__reduce__"}
_PARTS = {"real", "imag", "numerator", "denominator"}

# Classes of numbers that can be told for the value of a call: each file that has one adds it.
SETTLED: set[type] = set()
_MOST = 1000


class NumberLog:
    """What one capture assumes about the numbers among its arguments.

    Attributes:
        answers: Conditions in Python, of ``number_<position>``, each with what came out.
        fixed: Positions of numbers that the program is right for one value of.
        is_at_level: Whether the call is inside of a transform.
    """

    is_at_level = False

    def __init__(self) -> None:
        """Nothing is assumed yet."""
        self.answers: dict[str, bool] = {}
        self.fixed: set[int] = set()
        self._made: list[weakref.ref[Any]] = []
        self._ended = False

    def note(self, number: Any) -> None:
        """Note a number that was made."""
        self._made.append(weakref.ref(number))

    @property
    def is_used(self) -> bool:
        """Whether the last run made such a number."""
        return bool(self._made)

    def are_kept(self) -> bool:
        """Whether somebody still holds one of the numbers."""
        return any(reference() is not None for reference in self._made)

    def restart(self) -> None:
        """Forget what an earlier run of the same call holds; what it asked stays asked."""
        self._made.clear()

    @property
    def has_ended(self) -> bool:
        """Whether the capture is over."""
        return self._ended

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

    def pin(self, name: str, value: float, sources: Set[Any]) -> None:
        """Have the program be for one value of a number that is computed from some."""
        self.fix(sources)

    def fix(self, sources: Set[Any]) -> None:
        """Have the program be for one value of each of some numbers."""
        self.fixed |= sources

    def ask(self, condition: str, answer: bool) -> bool:
        """Note a question with its answer."""
        self.refuse_late()
        self.answers[condition] = answer
        return answer


class Asked:
    """What torch's own code sees of such a number: one that can be told and nothing else."""

    def __init__(self, number: Any, kind: type) -> None:
        self._number, self._kind = number, kind

    def guard_int(self, file: str, line: int) -> int:
        return self._number.settle()

    guard_float = guard_int

    def is_float(self) -> bool:
        return self._kind is float

    def is_int(self) -> bool:
        return self._kind is int

    def is_bool(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def maybe_as_int(self) -> None:
        return None


class Argument:
    """A number among the arguments, as a source of others.

    Attributes:
        settle: Has the program be for one value of it; holds no number.
    """

    def __init__(self, settle: Callable[[], Any]) -> None:
        """Keep that."""
        self.settle = settle


class WrittenLog(NumberLog):
    """What one capture computes of numbers that it reads, and assumes about them.

    Attributes:
        steps: Python expressions by the name of what they compute, in order.
        tensors: Tensors that stand for numbers in ops, by ``id``, each with the number's name.
        folded: Names of numbers of which some are computed from many others, as remainders are.
    """

    def __init__(self, make: Callable[[float], torch.Tensor]) -> None:
        """Nothing is computed yet.

        Args:
            make: Makes a real tensor of a number, whatever mode is active.
        """
        super().__init__()
        self._make = make
        self.steps: dict[str, str] = {}
        self.tensors: dict[int, tuple[torch.Tensor, str]] = {}
        self.folded: set[str] = set()
        self._names: dict[str, str] = {}
        self._made_tensors: dict[str, torch.Tensor] = {}

    def name_of(self, expression: str) -> str:
        """The name of what an expression computes."""
        name = self._names.get(expression)
        if name is None:
            name = self._names[expression] = f"number_{len(self._names)}"
            self.steps[name] = expression
        return name

    def tensor_of(self, name: str, value: float) -> torch.Tensor:
        """A real tensor of no dimensions, in double precision, that stands for a number."""
        found = self._made_tensors.get(name)
        if found is None:
            found = self._made_tensors[name] = self._make(value)
            self.tensors[id(found)] = found, name
        return found

    def pin(self, name: str, value: float, sources: Set[Any]) -> None:
        """Have the program be for one value; many numbers give a place in a ring of rows."""
        if name not in self.folded or not isfinite(value) or str(value) == "-0.0":
            super().pin(name, value, sources)
        elif value:
            self.ask(f"{name} == {value!r}", answer=True)
        else:
            self.ask(f"str({name})[0] == '0' and not {name}", answer=True)

    def fix(self, sources: Set[Any]) -> None:
        """The same; an argument is fixed with what else stands for it."""
        for source in sources:
            if isinstance(source, Argument):
                source.settle()
            else:
                self.fixed.add(source)

    def is_full(self) -> bool:
        """Whether no more should be written down."""
        return len(self.steps) >= _MOST


def settled(value: Any) -> Any:
    """The plain number for an open one; anything else as it is."""
    return value.settle() if type(value) in SETTLED else value


def all_settled(values: Any) -> Any:
    """The same of every number in a structure, which stays one object if none is open."""
    if not any(type(leaf) in SETTLED for leaf in tree_flatten(values)[0]):
        return values
    return tree_map(settled, values)


def settle_the_rest(kind: Any, plain: type) -> None:
    """Let the plain number answer, for the value of this call, what a class doesn't answer."""
    SETTLED.add(kind)
    for name in set(dir(plain)) - _LEFT - set(vars(kind)):
        if name in _PARTS:
            setattr(kind, name, _part(name))
        else:
            _settling(kind, plain, name)


def _settling(kind: Any, plain: type, name: str) -> None:
    """Let a method of the plain number answer, for the value of this call."""

    def run(self: Any, *args: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            return NotImplemented  # it is the tensor's method that knows what to do
        return getattr(plain, name)(self.settle(), *map(settled, args))

    setattr(kind, name, run)


def _part(name: str) -> property:
    return property(lambda self: getattr(self.settle(), name))
