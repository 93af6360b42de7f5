"""Random generators that code makes while a tape records: their states are values of the tape.

A draw from one is recorded as a function of its state, below autograd and every transform, which
have done their part by then. So each call of a program seeds and draws for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from funcaot._torch.tensors.random.made_generators import REAL, made_at
from funcaot._torch.tensors.random.seeded import SEEDED, STATE, numbers_and_state
from funcaot._torch.tracing import tracing
from funcaot.errors import UnsupportedError

__all__ = ["Generators"]

Table = Mapping[Any, Callable[..., Any]]


class Generators:
    """The generators that are made in one recording."""

    def __init__(self, mode: tracing.TapeFunctionalMode) -> None:
        """None is made yet.

        Args:
            mode: That of the tape.
        """
        self.mode = mode

    def seeded(self, seed: Any, device: torch.device) -> torch.Tensor:
        """The state of a generator that was just given a seed."""
        if type(seed) is int and seed >= 2**63:
            seed -= 2**64
        with tracing.temporarily_clear_interpreter_stack():
            # Modes of functions see an open number here, as they do elsewhere.
            return STATE(torch.full((), seed, dtype=torch.int64, device="cpu"), device)

    def taken(self, state: torch.Tensor) -> torch.Tensor:
        """The state that a tensor of the user's code holds.

        Raises:
            UnsupportedError: If it differs from example to example.
        """
        return self.bare(state.clone())

    def bare(self, state: torch.Tensor) -> torch.Tensor:
        """A state below all levels, which take no derivative of it.

        Raises:
            UnsupportedError: If it differs from example to example.
        """
        while not isinstance(state, tracing.FunctionalTensor):
            below = None if tracing.is_batched(state) else tracing.unwrap_functorch(state)
            if below is None:
                raise UnsupportedError(
                    "A torch.Generator is given a state that differs from example to example.",
                    remedy="set states outside of vmap.",
                )
            state = below
        return state

    def decompositions(self, before: Table, otherwise: Table) -> dict[Any, Callable[..., Any]]:
        """What a tape records of ops, with the draws from these generators.

        Args:
            before: How a draw is put in order first.
            otherwise: What is recorded of all other ops.
        """
        drawing = {op: _Drawn(self, op, before.get(op), otherwise.get(op)) for op in SEEDED}
        return {**otherwise, **drawing}


class _Drawn:
    """Records one op of torch that draws."""

    def __init__(
        self,
        generators: Generators,
        op: Any,
        before: Callable[..., Any] | None,
        otherwise: Callable[..., Any] | None,
    ) -> None:
        self._generators, self._op = generators, op
        self._before, self._otherwise = before, otherwise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        made = next((made_at(each) for each in given if isinstance(each, REAL)), None)
        if made is None:
            return _recorded(self._otherwise, args, kwargs)
        result = _recorded(self._before, args, kwargs)
        if result is not NotImplemented:
            return result
        if made.owner is not self._generators:
            raise UnsupportedError(
                "A torch.Generator that a compiled function makes is drawn from in a backward, or "
                "in other code that runs later: each time it would go on from the same state.",
                remedy="make the generator in the code that draws from it, or outside.",
            )
        rest = [each for each in args if not isinstance(each, REAL)]
        named = {name: each for name, each in kwargs.items() if not isinstance(each, REAL)}
        before = tracing.functional_inner(made.state)
        numbers, after = numbers_and_state(SEEDED[self._op](before, made.device, *rest, **named))
        made.state = self._generators.mode.wrapped(after)
        return numbers


def _recorded(how: Callable[..., Any] | None, args: Any, kwargs: Any) -> Any:
    return NotImplemented if how is None else how(*args, **kwargs)
