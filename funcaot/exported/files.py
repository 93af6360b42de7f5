"""Artifacts as files: written whole or not at all, and read without unpickling anything."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import struct
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from funcaot._torch.tensors.artifacts import MODEL
from funcaot.base.plain_files import require_file
from funcaot.errors import ArtifactError
from funcaot.exported.signature import ArtifactSignature, foreign

SUFFIX = ".pt2"
_NAME = "extra/funcaot.json"
# Where torch looks for the models of a package.
_MODELS = "data/aotinductor"
# Of the digest at the end of a file, which is the comment of the package.
_DIGITS = 64
_PART = 1 << 24


@contextlib.contextmanager
def whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A place to write a package to, which becomes ``path`` at the end of the block.

    Another process sees the old file or the new one. If the block raises, or the process is
    killed, ``path`` is as it was. Errors of the block itself pass through.

    Yields:
        A path of the same name in a new folder beside it.

    Raises:
        ArtifactError: If the folder can't be written to, or the file can't be put in its place.
    """
    given = Path(os.fsdecode(path))
    if given.suffix != SUFFIX:
        raise ArtifactError(
            "funcaot.export can't write to a path like this.",
            expected=f"a file that ends in {SUFFIX}",
            got=str(path),
            remedy=f"call it {given.stem}{SUFFIX}.",
        )
    target = _absolute(path)
    with _writing(target):
        is_folder = target.is_dir()
    if is_folder:
        raise _unwritable(target, "it is a folder")
    with _writing(target):
        require_file(target)
        folder = Path(tempfile.mkdtemp(prefix=f".{target.stem}-", dir=target.parent))
    try:
        made = folder / target.name
        yield made
        with _writing(target):
            made.replace(target)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _absolute(path: str | os.PathLike[str]) -> Path:
    """A path from the root on, which a folder that was removed has none of.

    Of a link it is what that names.
    """
    with _writing(Path(os.fsdecode(path))):
        return Path(os.path.realpath(os.fsdecode(path)))


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Say of an error of the system that an artifact can't be written."""
    try:
        yield
    except (OSError, ValueError) as error:  # a ValueError: there is a zero byte in the path
        raise _unwritable(path, _reason(error)) from error


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _unwritable(path: Path, reason: str) -> ArtifactError:
    return ArtifactError(
        f"The artifact {path} can't be written: {reason}. What was there before is unchanged.",
        remedy="pass a path in a folder that exists, may be written to and has room.",
    )


def write(path: Path, packages: Sequence[io.BytesIO], signature: ArtifactSignature) -> None:
    """Write packages that torch has made as one, with the signature in it, and a digest at its end.

    Args:
        path: The file.
        packages: That of the signature's own program, then of each of its parts.
        signature: What the artifact says of itself.

    Raises:
        ArtifactError: If there is no room, or the folder is gone.
    """
    package, *others = packages
    with zipfile.ZipFile(package, "a") as archive:
        top = archive.namelist()[0].partition("/")[0]
        for part, other in zip(signature.parts, others, strict=True):
            _add_model(archive, f"{top}/{_MODELS}/{part.model}/", other)
        archive.writestr(f"{top}/{_NAME}", signature.to_json())
        archive.comment = bytes(_DIGITS)  # The last bytes of the file.
    content = package.getbuffer()[:-_DIGITS]
    with _writing(path.parent.parent / path.name), path.open("wb") as file:
        file.write(content)
        file.write(hashlib.sha256(content).hexdigest().encode())
        file.flush()
        # A rename may come to the disk before what was written.
        os.fsync(file.fileno())


def _add_model(archive: zipfile.ZipFile, folder: str, package: io.BytesIO) -> None:
    """Write the one model of another package to a folder of an archive."""
    with zipfile.ZipFile(package) as other:
        for name in other.namelist():
            _, found, rest = name.partition(f"/{_MODELS}/{MODEL}/")
            if found:
                archive.writestr(folder + rest, other.read(name))


# What reading a package raises that isn't as it was written.
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
)


def read_signature(path: str | os.PathLike[str]) -> ArtifactSignature:
    """The signature of an artifact; none of its code is loaded.

    The whole file is read: neither torch's loader nor all of Python's looks whether what comes out
    of a package is what was put in.

    Raises:
        ArtifactError: If there is no such file, or it isn't an artifact, or it is damaged.
    """
    name = os.fsdecode(path)
    try:
        require_file(name)
        with zipfile.ZipFile(name) as package:
            damaged = None
            names = [found for found in package.namelist() if found.endswith(f"/{_NAME}")]
            text = package.read(names[0]).decode() if len(names) == 1 else None
    except OSError as error:
        raise ArtifactError(
            f"The artifact {name} can't be read: {_reason(error)}.",
            remedy="pass the path that funcaot.export wrote.",
        ) from error
    except _DAMAGED as error:
        text, damaged = None, error
    if damaged is not None:
        raise foreign(name, f"it is no package, or a damaged one ({damaged})")
    if text is None:
        raise foreign(name, "it has no signature of funcaot in it")
    signature = ArtifactSignature.from_json(text, name)
    if not _is_whole(name):
        raise foreign(name, "it is damaged, or something was changed in it")
    return signature


def _is_whole(path: str) -> bool:
    """Whether a file is as it was written, by the digest at its end."""
    found, left = hashlib.sha256(), os.path.getsize(path) - _DIGITS
    with open(path, "rb") as file:
        while left > 0:
            part = file.read(min(left, _PART))
            if not part:
                break
            found.update(part)
            left -= len(part)
        return file.read() == found.hexdigest().encode()
