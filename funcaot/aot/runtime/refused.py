"""Calls of a function that can't be captured; ``compiled`` asks what happens to them.

A refusal is an error. Where a function was compiled with ``fullgraph=False``, such a call runs as
it is instead, with a warning: a capture that is refused has undone what it did. What only eager can
do runs so by default.
"""

from __future__ import annotations

from funcaot import config
from funcaot._torch.levels.situation import situation
from funcaot.aot.graph.lru import Derived
from funcaot.aot.signature.signature import Signature
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.aot.subclasses.refusals import EagerOnlyError
from funcaot.errors import UnsupportedError

__all__ = ["Refusals"]

# What happens once may happen in several calls: an import, layers, the state of an optimizer.
_FIRST_STEPS = 8
# What was refused once may depend on what other code did meanwhile, so it is tried again.
_TRIES = 2
_NOTE = (
    "funcaot.compile(..., fullgraph=False) runs calls that can't be captured as they are, with a "
    "warning."
)


class Refusals:
    """What was refused of one function, by the signature of the call.

    Attributes:
        first_steps: Calls in a row that ran as they are, since they did what happens once.
    """

    def __init__(self, fullgraph: bool | None) -> None:
        """Nothing was refused yet.

        Args:
            fullgraph: Whether a refusal is an error; None for what the configuration says.
        """
        self.first_steps = 0
        self._fullgraph = fullgraph
        self._known: Derived[Signature | None, tuple[str, int]] = Derived()
        self._eager: Derived[tuple[Signature, bool], EagerOnlyError] = Derived()
        self._told = False

    @property
    def are_errors(self) -> bool:
        """Whether a call that can't be captured raises."""
        return config.get().fullgraph if self._fullgraph is None else self._fullgraph

    @property
    def told(self) -> tuple[str, ...]:
        """Why calls run as they are, in words."""
        return tuple(dict.fromkeys(reason for reason, _ in list(self._known.values())))

    def stand(self, signature: Signature) -> bool:
        """Whether calls like this one aren't captured any more."""
        return not self.are_errors and self._times(signature) >= _TRIES

    def allow(self, signature: Signature | None, error: Exception) -> bool:
        """Whether a call runs as it is, though its capture ended with an error.

        Args:
            signature: What it looks like; None if that can't be told.
            error: The error; if it goes on to the user, it says what to do about it.
        """
        if not (isinstance(error, UnsupportedError) and error.repeatable):
            return False
        if self.are_errors:
            error.add_note(_NOTE)
            return False
        self._known[signature] = error.what, self._times(signature) + 1
        return True

    def noted(self, signature: Signature, error: Exception) -> Exception:
        """Remember what a capture raised, if it is that only eager can do what it was asked to.

        Returns:
            The error, or what is raised in its place.
        """
        error = getattr(error, "left_to_eager", None) or error
        if isinstance(error, EagerOnlyError):
            self._eager[signature, situation().derives] = error
        return error

    def check(self, signature: Signature) -> None:
        """Raise what a capture would raise again.

        Raises:
            EagerOnlyError: If calls like this one are eager's.
        """
        known = self._eager.get((signature, situation().derives))
        if known is not None:
            raise known.with_traceback(None)

    def untold(self, error: EagerOnlyError) -> EagerOnlyError | None:
        """The error, if it is the first one that a call of the function runs into."""
        told, self._told = self._told, True
        return None if told else error

    def _times(self, signature: Signature | None) -> int:
        known = self._known.get(signature)
        return 0 if known is None else known[1]

    def of_first_step(self, name: str, error: FirstStepError) -> UnsupportedError | None:
        """Note that a call does what happens once: it runs as it is, and the next is captured.

        Args:
            name: The user's function, for messages.
            error: Says what.

        Returns:
            A refusal to tell of, if call after call does, and that is no error.

        Raises:
            UnsupportedError: If it is one.
        """
        self.first_steps += 1
        if self.first_steps <= _FIRST_STEPS:
            return None
        refused = UnsupportedError(
            f"{name} {error}, in every call.", remedy="do that once, outside of the function."
        )
        if self.are_errors:
            raise refused from None
        return refused

    def clear(self) -> None:
        """Forget everything."""
        self._known.clear()
        self._eager.clear()
        self.first_steps = 0
