"""Captures of a function's calls, with sizes and numbers left open; ``compiled`` asks for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from funcaot import config
from funcaot._torch.levels import functorch
from funcaot.aot.graph.settings import Settings
from funcaot.aot.runtime.entry import Entry, make_entry, make_general_entry
from funcaot.aot.signature.dynamic import Opening, SizeHistory, refuse_closed_marks, refuse_marks
from funcaot.aot.signature.signature import Signature
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.aot.state.state_effects import Call
from funcaot.aot.tape.known.sizes_of_values import SizesNeededError

__all__ = ["OpenCaptures"]

Captured: TypeAlias = tuple[Entry, tuple[torch.Tensor, ...]]


class OpenCaptures:
    """Captures calls of one function, for more than their own sizes and numbers where they can."""

    def __init__(
        self, function: Callable[..., Any], settings: Settings, history: SizeHistory
    ) -> None:
        """Nothing is captured yet.

        Args:
            function: The user's function.
            settings: Its settings.
            history: What sizes and numbers its calls had.
        """
        self._function, self._settings, self._history = function, settings, history

    def capture(
        self, signature: Signature, leaves: list[Any], call: Call, closed: Sequence[Signature]
    ) -> Captured:
        """Capture a call, with open sizes and numbers where that is asked for and possible.

        Args:
            signature: What the call looks like.
            leaves: Its leaves.
            call: Its arguments.
            closed: Calls that can't leave sizes open, as turned out later.

        Returns:
            The program, and the tensors that the function closes over now.

        Raises:
            Exception: What the capture for the call's own sizes raises.
        """
        plain = not signature.ambient.forward_mode
        capture = partial(self._capture, signature, leaves, call, closed)
        return self._with_open_numbers(capture, allowed=plain)

    def close(
        self, entry: Entry, signature: Signature, leaves: list[Any], reason: Exception
    ) -> None:
        """Note that a program failed for what it leaves open, so that the next one leaves less.

        Raises:
            UnsupportedError: If the user wants a size open that can't be.
        """
        if entry.numbers_read:
            self._settings.numbers.close(entry.numbers_read)
        elif entry.numbers is not None:
            self._history.close_numbers(signature, entry.numbers.kinds)
        else:
            self._close_sizes(signature, leaves, reason)

    def _with_open_numbers(self, capture: Callable[[], Captured], *, allowed: bool) -> Captured:
        """Capture with numbers open that the function reads by itself, or not if that fails."""
        numbers, dynamic = self._settings.numbers, self._settings.dynamic
        numbers.left_open.clear()
        numbers.has_read = False
        numbers.may_be_open = allowed and config.get().open_numbers and dynamic is not False
        try:
            return capture()
        except (FirstStepError, SizesNeededError):
            raise
        except Exception:
            if not (numbers.left_open or numbers.has_read):
                raise
            # It may be the user's own error: then it is raised here.
            numbers.close(numbers.left_open)
            numbers.reads = numbers.reads and not numbers.has_read
            return capture()
        finally:
            numbers.may_be_open = False

    def _capture(
        self, signature: Signature, leaves: list[Any], call: Call, closed: Sequence[Signature]
    ) -> Captured:
        has_sizes = not functorch.under_transforms(leaves)
        if has_sizes:
            self._history.refuse_all(closed)
            opening = self._history.opening(signature, leaves)
        else:
            opening = self._history.opening_of_numbers(signature, leaves)
        if opening is None:
            return make_entry(self._function, signature, leaves, call, self._settings)
        if opening.numbers is not None:
            try:
                return self._open(opening, signature, leaves, call)
            except (FirstStepError, SizesNeededError):
                raise
            except Exception:  # noqa: BLE001  (raised again below if it is the user's)
                numbers, opening = opening.numbers, None
            if has_sizes:
                opening = self._history.opening(signature, leaves, with_numbers=False)
            if opening is None:
                found = make_entry(self._function, signature, leaves, call, self._settings)
            else:
                found = self._with_open_sizes(opening, signature, leaves, call)
            self._history.close_numbers(signature, numbers.kinds)
            return found
        return self._with_open_sizes(opening, signature, leaves, call)

    def _open(
        self, opening: Opening, signature: Signature, leaves: list[Any], call: Call
    ) -> Captured:
        """Capture a call with something open, and for itself if nothing stays open."""
        found = make_general_entry(self._function, opening, leaves, call, self._settings)
        if opening.sizes is not None:
            refuse_closed_marks(opening.sizes, leaves, self._settings.name)
        self._history.note_settled(signature, opening)
        if opening.stays_open():
            return found
        # Such a program serves this call only, which one without symbols does faster.
        if opening.numbers is None:
            self._history.note_fixed(signature)
        return make_entry(self._function, signature, leaves, call, self._settings)

    def _with_open_sizes(
        self, opening: Opening, signature: Signature, leaves: list[Any], call: Call
    ) -> Captured:
        """Capture a call with open sizes where that is possible."""
        try:
            return self._open(opening, signature, leaves, call)
        except (FirstStepError, SizesNeededError):
            raise
        except Exception as error:  # noqa: BLE001  (raised again below if it is the user's)
            reason = error
        # It may be the user's own error: then it is raised here.
        found = make_entry(self._function, signature, leaves, call, self._settings)
        self._close_sizes(signature, leaves, reason)
        return found

    def _close_sizes(self, signature: Signature, leaves: list[Any], reason: Exception) -> None:
        refuse_marks(leaves, self._settings.name, reason)
        self._history.refuse(signature, f"{type(reason).__name__}: {reason}")
