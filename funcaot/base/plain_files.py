"""Paths that something else than a file may be at; what writes and reads artifacts asks."""

from __future__ import annotations

import errno
import os
import stat

__all__ = ["require_file"]


def require_file(path: str | os.PathLike[str]) -> None:
    """Refuse a path where a device, a pipe, a socket or a folder is.

    A rename puts a file in the place of these, if the user may write to the folder, and to open a
    pipe waits for its other end. A path where nothing is, or that can't be looked at, passes.

    Raises:
        OSError: If there is something else than a file.
        ValueError: If no file can be called so.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:  # Whoever opens it says what is wrong.
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, and no file")
