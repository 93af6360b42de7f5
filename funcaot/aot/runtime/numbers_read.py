"""Captures for a compiled function that may leave numbers open which it reads by itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from funcaot import config
from funcaot.aot.graph.settings import Settings
from funcaot.aot.state.optimizer_step import FirstStepError
from funcaot.aot.tape.known.sizes_of_values import SizesNeededError

T = TypeVar("T")


def leaving_open(settings: Settings, capture: Callable[[], T], *, allowed: bool) -> T:
    """Capture a call, with numbers open that have changed, and for its own ones if that fails.

    Args:
        settings: Of the compiled function.
        capture: Captures.
        allowed: Whether numbers may be open in such a call.
    """
    numbers = settings.numbers
    numbers.left_open.clear()
    numbers.may_be_open = allowed and config.get().open_numbers and settings.dynamic is not False
    try:
        return capture()
    except (FirstStepError, SizesNeededError):
        raise
    except Exception:
        if not numbers.left_open:
            raise
        # It may be the user's own error: then it is raised here.
        numbers.close(numbers.left_open)
        return capture()
    finally:
        numbers.may_be_open = False
