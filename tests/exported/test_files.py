"""Artifacts are written whole or not at all: full disks, killed processes, several writers."""

import errno
import io
import os
import resource
import shutil
import signal
import subprocess
import sys
import zipfile

import pytest
import torch

import funcaot
from funcaot.errors import ArtifactError, StageError
from funcaot.exported import files
from funcaot.exported.signature import ArtifactSignature


def package(text):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("archive/data", text)
    return made


def signature(name):
    empty = {"kind": "tuple", "items": []}
    versions = name, "0", torch.__version__
    return ArtifactSignature(
        *versions, {}, {}, empty, (), (), exact=False, parameters=(), tied={}, inputs=(), made=(),
        results=empty,
    )  # fmt: skip


def write(path, name="first", text="data"):
    with files.whole(path) as place:
        files.write(place, [package(text)], signature(name))


def test_what_is_written_is_read_again(tmp_path):
    write(tmp_path / "a.pt2")
    assert files.read_signature(tmp_path / "a.pt2") == signature("first")
    assert files.read_signature(os.fsencode(tmp_path / "a.pt2")) == signature("first")
    assert (tmp_path / "a.pt2").stat().st_mode & 0o777 == 0o666 & ~umask()


def umask():
    found = os.umask(0)
    os.umask(found)
    return found


def test_damage_is_noticed_wherever_it_is(tmp_path):
    """Torch's loader runs what it finds, and a library with a changed byte may be a valid one."""
    path = tmp_path / "a.pt2"
    write(path, text="the code of a library")
    whole = path.read_bytes()
    damaged = [
        *(whole[:i] + bytes([whole[i] ^ 4]) + whole[i + 1 :] for i in range(len(whole))),
        *(whole[:i] for i in range(0, len(whole), 7)),
        *(whole[:i] + bytes(16) + whole[i + 16 :] for i in range(0, len(whole), 16)),
    ]
    for content in damaged:
        path.write_bytes(content)
        with pytest.raises(ArtifactError):
            files.read_signature(path)
    path.write_bytes(whole)
    assert files.read_signature(path) == signature("first")


def test_a_failure_leaves_what_was_there(tmp_path):
    write(tmp_path / "a.pt2")
    with pytest.raises(ZeroDivisionError), files.whole(tmp_path / "a.pt2"):
        _ = 1 / 0
    assert files.read_signature(tmp_path / "a.pt2").name == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt2"]


def test_a_full_disk_is_an_error_and_leaves_what_was_there(tmp_path):
    write(tmp_path / "a.pt2")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2048, before[1]))
    try:
        with pytest.raises(ArtifactError, match="can't be written: File too large"):
            write(tmp_path / "a.pt2", "second", "x" * 100_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert files.read_signature(tmp_path / "a.pt2").name == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt2"]


KILLED = """
import os, signal, sys
from funcaot.exported import files
with files.whole(sys.argv[1]) as place:
    place.write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_leaves_what_was_there(tmp_path):
    write(tmp_path / "a.pt2")
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "a.pt2"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert files.read_signature(tmp_path / "a.pt2").name == "first"


def test_of_two_writers_one_wins(tmp_path):
    with files.whole(tmp_path / "a.pt2") as first:
        with files.whole(tmp_path / "a.pt2") as second:
            assert first != second
            files.write(second, [package("b")], signature("second"))
        files.write(first, [package("a")], signature("first"))
    assert files.read_signature(tmp_path / "a.pt2").name == "first"
    assert [each.name for each in tmp_path.iterdir()] == ["a.pt2"]


def called(x):
    pytest.fail("the function was called before the path was looked at")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing/a.pt2", "No such file"),
        ("a.txt", "ends in .pt2"),
        ("a", "ends in .pt2"),
        ("folder.pt2", "it is a folder"),
        ("file/a.pt2", "Not a directory"),
    ],
)
def test_a_path_that_cant_be_written_is_refused_before_anything_else(tmp_path, path, words):
    (tmp_path / "folder.pt2").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(ArtifactError, match=words):
        funcaot.export(called, (torch.ones(3),), path=tmp_path / path)


def test_a_pipe_or_a_socket_is_left_alone(tmp_path):
    """A rename would put a file in its place, and to read a pipe waits for a writer."""
    path = tmp_path / "a.pt2"
    os.mkfifo(path)
    with pytest.raises(ArtifactError, match="can't be written: it is a device, a pipe or a socket"):
        funcaot.export(called, (torch.ones(3),), path=path)
    with pytest.raises(ArtifactError, match="can't be read: it is a device, a pipe or a socket"):
        funcaot.load(path)
    assert path.is_fifo()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write to any folder")
def test_a_read_only_folder_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(ArtifactError, match="Permission denied"):
        funcaot.export(called, (torch.ones(3),), path=tmp_path / "a.pt2")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_only_be_read_is_refused(number, tmp_path, monkeypatch):
    def refuses(*arguments, **keywords):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "mkdir", refuses)
    with pytest.raises(ArtifactError, match=f"can't be written: {os.strerror(number)}"):
        funcaot.export(called, (torch.ones(3),), path=tmp_path / "a.pt2")


def test_a_folder_that_vanishes_is_an_error(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()

    def vanishes():
        with files.whole(folder / "a.pt2") as place:
            shutil.rmtree(folder)
            files.write(place, [package("data")], signature("first"))

    with pytest.raises(ArtifactError, match="can't be written: No such file"):
        vanishes()
    assert not folder.exists()


@pytest.mark.parametrize("path", ["a" * 300 + ".pt2", "a\0b.pt2"], ids=["long", "zero byte"])
def test_a_name_that_no_file_can_have_is_refused(path, tmp_path):
    with pytest.raises(ArtifactError, match="can't be written"):
        funcaot.export(called, (torch.ones(3),), path=tmp_path / path)


def test_a_relative_path_where_the_folder_was_removed(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(ArtifactError, match=r"a\.pt2 can't be written"):
        funcaot.export(called, (torch.ones(3),), path="a.pt2")
    with pytest.raises(ArtifactError, match=r"a\.pt2 can't be read"):
        funcaot.load("a.pt2")


def test_an_error_of_the_users_own_passes_through(tmp_path):
    def reads(x):
        return x * {"there": 1.0}["missing"]

    with pytest.raises(KeyError, match="missing"):
        funcaot.export(reads, (torch.ones(3),), path=tmp_path / "a.pt2")
    assert not [*tmp_path.iterdir()]


def test_a_compiler_that_cannot_write_says_where(tmp_path, monkeypatch):
    def refuses(*arguments):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "/cache/of/inductor")

    monkeypatch.setattr("funcaot.exported.export.compile_package", refuses)
    with pytest.raises(StageError, match=r"Read-only file system: '/cache/of/inductor'"):
        funcaot.export(torch.sin, (torch.ones(3),), path=tmp_path / "a.pt2")
    assert not [*tmp_path.iterdir()]
