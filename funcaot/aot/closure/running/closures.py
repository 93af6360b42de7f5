"""With what closures code ran: functions that nothing leads to are found by them.

A frame shows what the function closes over that it runs, and not the function. Several functions
may have its code: those that a factory made for somebody else say nothing of the program, and when
they are gone, that changes nothing.
"""

from __future__ import annotations

import dis
import functools
import gc
import types
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from funcaot._torch.tensors.sizes.written_numbers import holds_written
from funcaot.rules.operands.copied_writes import COPIED

__all__ = ["Closures", "made_in"]

_EMPTY = object()
_ANY = object()


def made_in(codes: Iterable[types.CodeType]) -> set[types.CodeType]:
    """The code of functions that other code makes."""
    return {item for code in codes for item in code.co_consts if type(item) is types.CodeType}


@dataclass(eq=False)
class Closures:
    """What functions closed over when they started, by their code.

    Functions that the recorded code made itself are left out, so that it keeps alive nothing that
    wasn't there before.
    """

    _seen: dict[types.CodeType, dict[tuple[int, ...], tuple[Any, ...]]] = field(
        default_factory=dict
    )
    _made: set[types.CodeType] = field(default_factory=set)

    def add(self, code: types.CodeType) -> None:
        """Note code that runs, and may make functions."""
        self._made |= made_in((code,))

    def note(self, frame: types.FrameType) -> None:
        """Note what the function closes over whose frame starts."""
        code = frame.f_code
        if code not in self._made:
            given = frame.f_locals
            values = tuple(_noted(given.get(name, _EMPTY)) for name in code.co_freevars)
            self._seen.setdefault(code, {})[tuple(map(id, values))] = values

    def update(self, other: Closures) -> None:
        """Note what another recorder did."""
        self._made |= other._made
        for code, seen in other._seen.items():
            self._seen.setdefault(code, {}).update(seen)

    def functions(
        self,
        code: types.CodeType,
        known: Collection[types.FunctionType],
        ran: Iterable[types.CodeType],
    ) -> list[types.FunctionType]:
        """Functions that ran, beside those that are known.

        Args:
            code: Their code.
            known: Functions that have it.
            ran: All code that ran, which may have given their variables other values.

        Returns:
            Those that close over what was noted. All that have the code if nothing was noted, or
            something that none of them closes over, and none is known.
        """
        seen = self._seen.get(code, {}).values()
        if known and not seen:
            return []
        rebound = {name for each in ran for name in _rebound_in(each)}
        missing = [each for each in seen if not any(_fits(f, each, rebound) for f in known)]
        if known and not missing:
            return []
        alive = [
            each
            for each in gc.get_referrers(code)
            if isinstance(each, types.FunctionType) and each.__code__ is code
            if each not in COPIED and not any(each is other for other in known)
        ]
        found = [[f for f in alive if _fits(f, each, rebound)] for each in missing]
        if not known and not (found and all(found)):
            return alive
        return list({id(each): each for functions in found for each in functions}.values())


@functools.lru_cache(maxsize=8192)
def _rebound_in(code: types.CodeType) -> frozenset[str]:
    """Variables of closures that code gives values."""
    stores = ("STORE_DEREF", "DELETE_DEREF")
    return frozenset(each.argval for each in dis.get_instructions(code) if each.opname in stores)


def _fits(function: types.FunctionType, values: tuple[Any, ...], rebound: set[str]) -> bool:
    """Whether a function closes over some values, whatever is in variables that got others."""
    return all(
        name in rebound or value is _ANY or _content(cell) is value
        for name, cell, value in zip(
            function.__code__.co_freevars, function.__closure__ or (), values, strict=True
        )
    )


def _noted(value: Any) -> Any:
    """What a variable holds; a number that the capture leaves open isn't kept: any fits."""
    return _ANY if holds_written(value) else value


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY
