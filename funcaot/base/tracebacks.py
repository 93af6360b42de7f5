"""Tracebacks without what happens inside: compiled calls and the operator shorten them."""

from __future__ import annotations

import os
import types
from collections.abc import Callable
from functools import cache
from typing import TypeVar

import torch

import funcaot.errors as _own
from funcaot import config
from funcaot.errors import FuncaotError, GraphError, StageError

__all__ = ["is_users_file", "shortened", "without_frames"]

Raised = TypeVar("Raised", bound=BaseException)
_SKIPPED = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.dirname(os.path.abspath(_own.__file__)) + os.sep,
)


@cache
def is_users_file(file: str) -> bool:
    """Whether a file belongs neither to torch nor to funcaot."""
    if file.startswith("<"):
        return file.startswith(("<stdin>", "<ipython"))
    return not file.startswith(_SKIPPED)


def shortened(error: BaseException) -> BaseException:
    """An error whose traceback shows lines of the user's only, if it has some.

    A refusal without such lines shows none: its message says everything. A compiler's own errors
    stay as they are, and all do with ``FUNCAOT_FULL_TRACEBACK``.
    """
    if not config.get().full_traceback:
        found: BaseException | None = error
        for _ in range(_LINKS):
            if found is None or (isinstance(found, StageError) and found.__cause__ is not None):
                break
            refused = isinstance(found, FuncaotError) and not isinstance(found, GraphError)
            trace = found.__traceback__
            found.__traceback__ = _of_user(trace, None if refused else trace)
            found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return error


def without_frames(error: Raised) -> Raised:
    """An error that is kept and not raised, which no longer holds what its frames hold.

    The frames of a capture hold the call's tensors. An error in a variable of one of these frames
    would keep them until the collector of cycles runs.
    """
    found: BaseException | None = error
    for _ in range(_LINKS):
        if found is None:
            break
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


_LINKS = 16
_PYTHONS = os.path.dirname(os.__file__) + os.sep


def _is_of(entry: types.TracebackType, wanted: Callable[[str], bool]) -> bool:
    return wanted(entry.tb_frame.f_code.co_filename)


def _is_users(file: str) -> bool:
    """Whether a file is neither torch's, nor ours, nor Python's."""
    library = file.startswith(_PYTHONS) and "site-packages" not in file
    return is_users_file(file) and not library


def _is_a_module(file: str) -> bool:
    """Whether a file has modules of torch, and isn't what calls them."""
    return f"torch{os.sep}nn{os.sep}modules" in file and not file.endswith(f"{os.sep}module.py")


def _of_user(
    trace: types.TracebackType | None, otherwise: types.TracebackType | None
) -> types.TracebackType | None:
    """The entries of a traceback that are in files of the user, or in modules of torch."""
    everything: list[types.TracebackType] = []
    each = trace
    while each is not None:
        everything.append(each)
        each = each.tb_next
    entries = [entry for entry in everything if _is_of(entry, _is_users)]
    entries = entries or [entry for entry in everything if _is_of(entry, _is_a_module)]
    if not entries:
        return otherwise
    made: types.TracebackType | None = None
    for entry in reversed(entries):
        made = types.TracebackType(made, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return made
