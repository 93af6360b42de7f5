"""What symbolic tensors say where an op refuses its arguments."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from traceback import walk_tb

import torch

from funcaot.base.scopes import holding

__all__ = ["comes_of_symbolic_op", "without_reports"]

_ROOT = Path(torch.__file__).parent
# Ops on shapes and dtypes alone, written anew in Python, with messages of their own.
_SYMBOLIC = tuple(
    str(_ROOT / name)
    for name in (
        "_decomp",
        "_meta_registrations",
        "_prims",
        "_prims_common",
        "_refs",
        "_subclasses/fake_impls",
    )
)


def comes_of_symbolic_op(error: BaseException) -> bool:
    """Whether the symbolic version of an op raised an error, not what eager runs too."""
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    return any(file.startswith(_SYMBOLIC) for file in files[-6:])


class _ThisThread(threading.local):
    quiet = False


_this_thread = _ThisThread()


def _is_for_torch_developers(record: logging.LogRecord) -> bool:
    return record.msg.startswith(
        ("failed while attempting to run meta", "fake tensor raised TypeError")
    )


class _Quiet(logging.Filter):
    """Leaves out that a symbolic op failed: the error is raised, to the user whose op it is."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (_this_thread.quiet and _is_for_torch_developers(record))


logging.getLogger("torch._subclasses.fake_tensor").addFilter(_Quiet())


@contextlib.contextmanager
def without_reports() -> Iterator[None]:
    """Don't log inside, in this thread, what is raised anyway."""
    with holding(_this_thread, quiet=True):
        yield
