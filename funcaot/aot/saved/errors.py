"""Why a program can't be written, or isn't taken from a file: never an error for a user's call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from funcaot._torch.tensors.sizes.shapes import SizeError


class NotSavedError(Exception):
    """A program has a part that a file can't hold; the text says which."""


class NotLoadedError(Exception):
    """A program of a file isn't this call's, or can't be trusted; the text says why."""


class NotMadeYetError(NotLoadedError):
    """A program takes state from an optimizer that has none yet; it makes it in its first step."""


@contextlib.contextmanager
def missing_is_not_saved() -> Iterator[None]:
    """What isn't found is a part that a file can't hold."""
    try:
        yield
    except LookupError as error:
        raise NotSavedError(str(error.args[0])) from error


@contextlib.contextmanager
def missing_is_not_loaded() -> Iterator[None]:
    """What isn't found in this process, or can't be described in it, isn't what a file is for."""
    try:
        yield
    except LookupError as error:
        raise NotLoadedError(str(error.args[0])) from error
    except (NotSavedError, SizeError) as error:
        raise NotLoadedError(str(error)) from error
