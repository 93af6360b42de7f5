"""Results whose sizes values decide, given to a capture as arguments; premises ask for them.

``nonzero`` of an argument makes a tensor of any length. A program that is given that tensor, with
its length open, serves all lengths. So a capture that meets such an op stops there, unless its
caller has brought the result (see ``runtime.sized_calls``). A whole number that is read off a
tensor (``x.item()``, ``int(x)``) may become a size; it is brought too, and so are those of a short
list (``x.tolist()``), all at once.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from funcaot._torch.tracing import tracing
from funcaot.aot.graph.location import Location, calling_line
from funcaot.base.scopes import holding
from funcaot.errors import FuncaotError
from funcaot.rules.operands.flat_call import FlatCall, flatten_values

__all__ = [
    "Answers",
    "Asked",
    "SizesNeededError",
    "answering",
    "current",
]

_ATEN = torch.ops.aten
# None of them has a derivative, so that a result is as good as an argument.
_OPS = frozenset(
    {
        _ATEN.nonzero.default,
        _ATEN._unique2.default,
        _ATEN.unique_dim.default,
        _ATEN.unique_consecutive.default,
        _ATEN.unique_dim_consecutive.default,
        _ATEN.repeat_interleave.Tensor,
        _ATEN.bincount.default,
    }
)

# Each number or list is a stage, which runs the function up to there.
_MOST_STAGES = 8
_NUMBER = torch.Tensor.item
_LIST = torch.Tensor.tolist
# Each number of a list is compared with what the program assumes of it.
_LONGEST_LIST = 32
_READS = (_NUMBER, _LIST)
# Elements of a vector that are asked for one by one, before all of them are.
_FEW = 2


class SizesNeededError(FuncaotError):
    """A capture has come to an op whose result its caller hasn't brought.

    Attributes:
        is_looked_for: Whoever raises it finds out that the function caught it (``Answers``).
    """

    is_looked_for = True

    def __init__(self) -> None:
        """Nobody sees it."""
        super().__init__("A size depends on values.", remedy="bring the result.")


@dataclass(frozen=True, eq=False)
class Asked:
    """An op and what it is called with, apart from tensors.

    Attributes:
        op: The op.
        call: What it is called with.
        where: The user's line.
    """

    op: Callable[..., Any]
    call: FlatCall
    where: Location | None

    @property
    def name(self) -> str:
        """What a user calls it."""
        name = str(getattr(self.op, "__name__", self.op)).partition(".")[0].strip("_")
        return f"{name} at {self.where}" if self.where else name

    def answer(self, tensors: Sequence[torch.Tensor]) -> Any:
        """Its result for tensors with values."""
        args, kwargs = self.call.arguments(tuple(tensors))
        with torch.no_grad():
            return self.op(*args, **kwargs)


class Answers:
    """The results that a capture was given, in the order in which it asks for them.

    Attributes:
        reached: The first op whose result it wasn't given, with the tensors it is called with.
    """

    def __init__(self, known: Sequence[Any]) -> None:
        """Begin with the first.

        Args:
            known: The results, a tensor or a tuple of tensors each.
        """
        self.reached: tuple[Asked, list[torch.Tensor]] | None = None
        self._known = known
        self._asked: dict[Any, Any] = {}
        self._elements: dict[int, tuple[list[Any], torch.Tensor]] = {}

    def answer(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of an op below autograd, ``NotImplemented`` if it is none of these.

        Raises:
            SizesNeededError: If it isn't known.
        """
        if op not in _OPS:
            return NotImplemented
        found = self._found(op, (args, kwargs))
        if isinstance(found, torch.Tensor):
            return tracing.functional_inner(found).clone()
        return tuple(tracing.functional_inner(each).clone() for each in found)

    def number(self, tensor: torch.Tensor) -> Any:
        """The whole number in a tensor of the tape; ``NotImplemented`` after some of them.

        The third element of one vector brings all of them. What is decided here depends on the
        call alone, not on which sizes are open: a stage and the program have to ask the same.

        Raises:
            SizesNeededError: If it isn't known.
        """
        around = _vector_around(tensor)
        if around is not None:
            place = tensor.storage_offset() - around.storage_offset()
            asked = self._elements.setdefault(id(around), ([], around))[0]
            if all(place != each for each in asked):
                asked.append(place)
            if len(asked) > _FEW and (found := self.numbers(around)) is not NotImplemented:
                return found[int(place)]
        found = self._found(_NUMBER, ((tensor,), {}))
        return NotImplemented if found is None else found

    def numbers(self, tensor: torch.Tensor) -> Any:
        """The whole numbers in a tensor of the tape, as lists that the function may change.

        Returns:
            The lists; ``NotImplemented`` for more than a few numbers, or after some lists.

        Raises:
            SizesNeededError: If they aren't known.
        """
        if not 0 < tensor.numel() <= _LONGEST_LIST:
            return NotImplemented
        for size in tensor.shape:
            int(size)  # Lists of another length belong to another program.
        found = self._found(_LIST, ((tensor,), {}))
        return NotImplemented if found is None else _copied(found)

    def _found(self, op: Any, given: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        call, tensors = flatten_values(given)
        inner = [tracing.functional_inner(tensor) for tensor in tensors]
        key = (op, *map(id, inner), repr(call.leaves))
        if key not in self._asked:
            if op in _READS and sum(each[0] in _READS for each in self._asked) == _MOST_STAGES:
                return None
            position = len(self._asked)
            if position >= len(self._known):
                self.reached = self.reached or (Asked(op, call, calling_line()), inner)
                raise SizesNeededError
            self._asked[key] = self._known[position], inner
        return self._asked[key][0]


def _vector_around(tensor: torch.Tensor) -> torch.Tensor | None:
    """The vector that a number is an element of, if it is a view of one."""
    around = tensor._base
    return around if around is not None and around.dim() == 1 and around.stride(0) == 1 else None


def _copied(found: Any) -> Any:
    return [_copied(each) for each in found] if isinstance(found, list) else found


class _ThisThread(threading.local):
    answers: Answers | None = None


_this_thread = _ThisThread()


def current() -> Answers | None:
    """What the capture in progress in this thread was given."""
    return _this_thread.answers


@contextlib.contextmanager
def answering(answers: Answers | None) -> Iterator[None]:
    """Let ops ask inside; those of captures that are begun inside have answers of their own."""
    with holding(_this_thread, answers=answers):
        yield
