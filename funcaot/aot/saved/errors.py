"""Why a program can't be written, or isn't taken from a file: never an error for a user's call."""

from __future__ import annotations


class NotSavedError(Exception):
    """A program has a part that a file can't hold; the text says which."""


class NotLoadedError(Exception):
    """A program of a file isn't this call's, or can't be trusted; the text says why."""


class NotMadeYetError(NotLoadedError):
    """A program takes state from an optimizer that has none yet; it makes it in its first step."""
