"""Artifacts as files: signed, written whole or not at all, and read without unpickling anything.

A file is a line that says what it is, a keyed digest of all that follows, the length of a text of
JSON, the text, and bytes that it names by place. Nothing of it is looked at before the digest has
been compared, and nothing is run but the code of programs that were found to be the call's.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import hmac
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from funcaot.aot.saved import key
from funcaot.aot.saved.errors import NotLoadedError
from funcaot.aot.saved.executables import Contents
from funcaot.base.plain_files import require_file
from funcaot.errors import ArtifactError

_MAGIC = b"funcaot programs 1\n"
_DIGITS = 64


def write(path: str | os.PathLike[str], data: Any, blobs: Mapping[str, bytes]) -> None:
    """Write an artifact; another process sees the old file or the new one.

    Where the path is a link, the file that it names is written.

    Raises:
        ArtifactError: If it can't be written or signed; what was there is unchanged.
    """
    secret = key.for_writing()
    places, at = {}, 0
    for digest, content in blobs.items():
        places[digest] = [at, len(content)]
        at += len(content)
    text = json.dumps({**data, "blobs": places}, separators=(",", ":")).encode()
    body = b"".join([len(text).to_bytes(8, "little"), text, *blobs.values()])
    target = Path(path)
    try:
        target = Path(os.path.realpath(path))  # what a link names, not the link
        require_file(target)
        handle, made = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + key.signature(body, secret).encode() + b"\n")
                file.write(body)
                file.flush()
                os.fsync(file.fileno())  # a rename may come to the disk before what was written
            os.replace(made, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(made)
            raise
    except (OSError, ValueError) as error:  # a ValueError: there is a zero byte in the path
        raise ArtifactError(
            f"The artifact {target} can't be written: {_reason(error)}. What was there "
            "before is unchanged.",
            remedy="pass a path in a folder that exists, may be written to and has room.",
        ) from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Contents]:
    """Read an artifact that was signed with this user's key.

    Raises:
        NotLoadedError: If there is none, or it is damaged, or was signed by somebody else.
    """
    try:
        require_file(path)
        whole = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        raise NotLoadedError(f"the file can't be read: {_reason(error)}") from error
    head = len(_MAGIC) + _DIGITS + 1
    if not whole.startswith(_MAGIC) or len(whole) < head + 8:
        raise NotLoadedError("the file holds no programs of this version of funcaot")
    body = memoryview(whole)[head:]
    known = whole[len(_MAGIC) : head]
    signed = key.signature(body, key.for_reading()).encode() + b"\n"
    if not hmac.compare_digest(known, signed):
        raise NotLoadedError("it wasn't signed with this user's key, or it is damaged")
    size = int.from_bytes(body[:8], "little")
    data = json.loads(bytes(body[8 : 8 + size]))
    start = 8 + size
    blobs = {
        digest: bytes(body[start + at : start + at + length])
        for digest, (at, length) in data.pop("blobs").items()
    }
    return data, Contents(blobs, Libraries(blobs).path)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


class Libraries:
    """Libraries of kernels as files that this machine can load, in a folder of the user's own."""

    def __init__(self, blobs: Mapping[str, bytes]) -> None:
        """Write none yet."""
        self._blobs = blobs

    def path(self, digest: str) -> Path:
        """Where a library lies; it is written if it isn't there as it should be.

        Raises:
            OSError: If it can't be written.
        """
        content = self._blobs[digest]
        if hashlib.sha256(content).hexdigest() != digest:
            raise OSError("a library is damaged")
        folder = _folder()
        path = folder / f"{digest}.so"
        with contextlib.suppress(OSError):
            if path.read_bytes() == content:
                return path
        handle, made = tempfile.mkstemp(prefix=".library-", dir=folder)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.replace(made, path)
        return path


def _folder() -> Path:
    """A folder that nobody else may write to."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = Path(base) / "funcaot" / "libraries"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if (
            status.st_uid == os.getuid()
            and not status.st_mode & 0o022
            and os.access(folder, os.W_OK)
        ):
            return folder
    except OSError:
        pass
    return Path(_temporary())


_made: list[str] = []


def _temporary() -> str:
    """A folder of this process, where there is no other."""
    if not _made:
        _made.append(tempfile.mkdtemp(prefix="funcaot-libraries-"))
        atexit.register(shutil.rmtree, _made[0], ignore_errors=True)
    return _made[0]
