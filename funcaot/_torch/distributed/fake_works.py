"""Let handles of collectives on tensors without data draw no random numbers; a tape enters it.

Torch numbers such a handle by Python's ``random``. A capture takes that for a draw of the user's,
and the user's next draws would be other ones than in eager.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Iterator
from typing import Any

from funcaot._torch.patches import is_usable
from funcaot.base.scopes import SharedPatch

__all__ = ["numbering_works_in_turn"]

_MODULE = "torch.distributed._meta_registrations"
_numbers = itertools.count(10**9 + 1)  # beyond those that torch draws


class _Original:
    """What is replaced."""

    generate: Any = None


def _next_number() -> int:
    return next(_numbers)


def _replace() -> None:
    module: Any = sys.modules[_MODULE]
    if module.generate_unique_id is not _next_number:
        _Original.generate = module.generate_unique_id
        module.generate_unique_id = _next_number


def _restore() -> None:
    module: Any = sys.modules[_MODULE]
    if _Original.generate is not None:
        module.generate_unique_id = _Original.generate


_patch = SharedPatch(_replace, _restore, lasts=True)


@contextlib.contextmanager
def numbering_works_in_turn() -> Iterator[None]:
    """Handles have numbers that nobody drew, if this process has such handles."""
    if _MODULE not in sys.modules or not is_usable("numbers of works"):
        yield
        return
    with _patch.used():
        yield
