"""The key that artifacts are signed with; ``file`` signs and checks with it.

An artifact holds code, so whoever can write one that is run can run code. One is only read if it
was signed with this user's key: another user, or a download, doesn't know it.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import tempfile
from pathlib import Path

from funcaot.aot.saved.errors import NotLoadedError
from funcaot.errors import ArtifactError

VARIABLE = "FUNCAOT_ARTIFACT_KEY"


def path() -> Path:
    """Where the user's key is kept."""
    folder = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return Path(folder) / "funcaot" / "artifact.key"


def signature(content: bytes | memoryview, key: bytes) -> str:
    """The keyed digest of an artifact's content."""
    return hmac.new(key, content, hashlib.sha256).hexdigest()


def for_writing() -> bytes:
    """The key, made if there is none.

    Raises:
        ArtifactError: If it can't be kept, or others can read it.
    """
    try:
        return for_reading()
    except NotLoadedError as error:
        if path().exists():
            raise ArtifactError(
                f"An artifact can't be signed: {error}.",
                remedy=f"make {path()} yours alone (chmod 600), or remove it.",
            ) from None
    try:
        path().parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(prefix=".key-", dir=path().parent)  # for this user alone
        try:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_hex(32))
            with contextlib.suppress(FileExistsError):  # another process was first
                os.link(made, path())
        finally:
            os.unlink(made)
        return for_reading()
    except (OSError, NotLoadedError) as error:
        raise ArtifactError(
            f"An artifact can't be signed: the key in {path()} can't be kept ({error}).",
            remedy=f"set the environment variable {VARIABLE} to a secret text.",
        ) from error


def for_reading() -> bytes:
    """The key.

    Raises:
        NotLoadedError: If there is none, or others can read or replace it.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return given.encode()
    try:
        with path().open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read().strip()
    except OSError as error:
        raise NotLoadedError(f"there is no key in {path()}") from error
    if status.st_mode & 0o077 or status.st_uid != os.getuid():
        raise NotLoadedError(f"others can read or own the key in {path()}")
    if len(content) < 32:
        raise NotLoadedError(f"the key in {path()} is too short")
    return content
