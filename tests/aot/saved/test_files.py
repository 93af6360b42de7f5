"""Artifacts of programs as files: what is damaged, foreign or planted isn't even looked at."""

import errno
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
import threading
from unittest import mock

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import funcaot
from funcaot.aot.saved import file, key, machine
from funcaot.errors import ArtifactError
from tests.aot.saved.reloading import is_loaded, misses


def function(x):
    return x.sin() * 2


def saved(path):
    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.ones(3))
    assert compiled.save(path).programs == 1
    return path


def loaded(path):
    """The compiled function after a call, which is right whatever the file is."""
    compiled = funcaot.compile(function, backend="eager", artifacts=path)
    x = torch.arange(3.0)
    assert torch.equal(compiled(x), function(x))
    assert is_loaded(compiled) == (misses(compiled) == 0)
    return compiled


@pytest.fixture
def path(tmp_path):
    return saved(tmp_path / "programs")


def test_a_file_that_is_there(path):
    assert is_loaded(loaded(path))


class Planted:
    """Unpickling it leaves a trace."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


MADE = {
    "nothing": lambda content: b"",
    "text": lambda content: b"print('hello')\n" * 100,
    "half of it": lambda content: content[: len(content) // 2],
    "a byte more": lambda content: content + b"\0",
    "a changed byte": lambda content: content[:-7] + bytes([content[-7] ^ 1]) + content[-6:],
    "another signature": lambda content: content[:19] + b"0" * 64 + content[83:],
    "another end of the signature": lambda content: content[:83] + b" " + content[84:],
    "another program": lambda content: content.replace(b"sin", b"cos"),
}


@pytest.mark.parametrize("made", MADE)
def test_a_file_that_is_damaged_or_foreign_is_a_miss(made, path):
    content = path.read_bytes()
    path.write_bytes(MADE[made](content))
    assert path.read_bytes() != content
    compiled = loaded(path)
    assert misses(compiled) == 1
    assert str(path) in funcaot.report(compiled).entries[0].reason


def test_a_planted_file_is_not_unpickled_and_not_run(path, tmp_path):
    trace = tmp_path / "trace"
    path.write_bytes(pickle.dumps(Planted(trace)))
    assert misses(loaded(path)) == 1
    torch.save({"programs": Planted(trace)}, path)
    assert misses(loaded(path)) == 1
    assert not trace.exists()
    pickle.loads(pickle.dumps(Planted(trace)))
    assert trace.exists()  # The test would see it.


def test_a_program_that_somebody_else_signed_is_not_run(path, tmp_path, monkeypatch):
    """The file is well made, down to code that Inductor might have generated."""
    trace = tmp_path / "trace"
    data, contents = file.read(path)
    (form,) = data["programs"][0]["segment"]["plain"]["program"]["executables"]
    form.pop("graph")
    form["text"] = f"import os\nos.mkdir({str(trace)!r})\ncall = list"
    form |= {"kernels": {}, "libraries": [], "constants": {}}
    known = os.environ[key.VARIABLE]
    monkeypatch.setenv(key.VARIABLE, "the key of somebody else, as long as one should be")
    file.write(path, data, contents.blobs)
    monkeypatch.setenv(key.VARIABLE, known)
    assert misses(loaded(path)) == 1
    assert not trace.exists()
    file.write(path, data, contents.blobs)
    funcaot.compile(function, backend="eager", artifacts=path)(torch.ones(3))
    assert trace.exists()  # Signed by the user, it is run.


def test_a_file_that_is_not_there(tmp_path):
    compiled = loaded(tmp_path / "none")
    assert "can't be read" in funcaot.report(compiled).entries[0].reason


def test_the_key_is_made_once_and_for_the_user_alone(tmp_path, monkeypatch):
    monkeypatch.delenv(key.VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = saved(tmp_path / "programs")
    assert key.path().stat().st_mode & 0o777 == 0o600
    first = key.path().read_bytes()
    assert is_loaded(loaded(path))
    saved(path)
    assert key.path().read_bytes() == first
    key.path().chmod(0o644)
    assert "others can read" in funcaot.report(loaded(path)).entries[0].reason
    with pytest.raises(ArtifactError, match="others can read"):
        saved(path)
    key.path().unlink()
    assert "no key" in funcaot.report(loaded(path)).entries[0].reason


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ArtifactError, match="can't be written"):
        saved(tmp_path / "none" / "programs")


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_folder_that_may_only_be_read(number, path, monkeypatch):
    compiled = loaded(path)

    def refuses(*arguments, **keywords):
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuses)
        with pytest.raises(ArtifactError, match=f"can't be written: {os.strerror(number)}"):
            compiled.save(path)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert is_loaded(loaded(path))


def test_a_folder_that_vanishes(path, monkeypatch):
    compiled, replace = loaded(path), os.replace

    def vanishes(made, target):
        shutil.rmtree(path.parent)
        return replace(made, target)

    monkeypatch.setattr(os, "replace", vanishes)
    with pytest.raises(ArtifactError, match="can't be written: No such file"):
        compiled.save(path)
    assert not path.parent.exists()


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"], ids=["long", "zero byte"])
def test_a_name_that_no_file_can_have(name, path):
    with pytest.raises(ArtifactError, match="can't be written"):
        loaded(path).save(path.parent / name)
    reason = funcaot.report(loaded(path.parent / name)).entries[0].reason
    assert "the file can't be read" in reason


def test_a_relative_path_where_the_folder_was_removed(path, monkeypatch):
    compiled, folder = loaded(path), path.parent / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(ArtifactError, match="programs can't be written"):
        compiled.save("programs")
    assert "can't be read" in funcaot.report(loaded("programs")).entries[0].reason


def test_a_failure_leaves_what_was_there(path, monkeypatch):
    def fails(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(ArtifactError, match="No space left"):
        saved(path)
    monkeypatch.undo()
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert is_loaded(loaded(path))


KILLED = """
import os, signal, sys
import torch, funcaot
compiled = funcaot.compile(lambda x: x.cos(), backend="eager")
compiled(torch.ones(3))
os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)
compiled.save(sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_process_leaves_what_was_there(path):
    before = path.read_bytes()
    done = subprocess.run([sys.executable, "-c", KILLED, path], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    assert is_loaded(loaded(path))


def test_a_disk_that_is_full_half_way(path):
    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.ones(3))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(ArtifactError, match="can't be written: File too large"):
            compiled.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [each.name for each in path.parent.iterdir()] == [path.name]
    assert is_loaded(loaded(path))


def test_several_writers(path):
    compiled = funcaot.compile(function, backend="eager")
    compiled(torch.ones(3))
    failures = []

    def write():
        for _ in range(20):
            compiled.save(path)

    def read():
        for _ in range(40):
            try:
                file.read(path)
            except Exception as error:  # noqa: BLE001
                failures.append(error)

    threads = [threading.Thread(target=each) for each in (write, write, read)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert is_loaded(loaded(path))


def test_the_libraries_folder_is_the_users(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    content = b"library"
    libraries = file.Libraries({(digest := file.hashlib.sha256(content).hexdigest()): content})
    first = libraries.path(digest)
    assert first.is_relative_to(tmp_path)
    first.write_bytes(b"something else")
    assert libraries.path(digest).read_bytes() == content
    first.parent.chmod(0o777)
    other = libraries.path(digest)
    assert not other.is_relative_to(tmp_path / "funcaot")
    assert other.read_bytes() == content


SCRIPT = """
import sys, torch, funcaot
from torch import nn

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 1))

    def forward(self, x):
        return self.parts(x).square().sum()

torch.manual_seed(0)
model = Network()
compiled = funcaot.compile(model, artifacts=sys.argv[1])
x = torch.linspace(-1, 1, 12).reshape(3, 4)
for _ in range(2):
    loss = compiled(x)
    loss.backward()
gradient = sum(parameter.grad.double().square().sum() for parameter in model.parameters())
report = funcaot.report(compiled)
inductor = "torch._inductor.compile_fx" in sys.modules
print(loss.item(), gradient.item(), report.cache_misses, report.backward_traces, inductor)
if report.cache_misses:
    print(report.entries[0].reason, file=sys.stderr)
    compiled.save(sys.argv[1])
"""


def in_process(script, path, seed):
    environment = {**os.environ, "PYTHONHASHSEED": str(seed)}
    arguments = [sys.executable, str(script), str(path)]
    done = subprocess.run(
        arguments, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    loss, gradient, *rest = done.stdout.split()
    return (float(loss), float(gradient)), rest, done.stderr


@pytest.mark.slow
def test_another_process_neither_captures_nor_compiles(tmp_path):
    script, path = tmp_path / "train.py", tmp_path / "programs"
    script.write_text(SCRIPT)
    first, rest, _ = in_process(script, path, 1)
    assert rest == ["1", "1", "True"]
    for seed in (2, 3):
        again, rest, _ = in_process(script, path, seed)
        assert again == first
        assert rest == ["0", "0", "False"]
    # A line more, above, changes no code; another constant does.
    script.write_text("# one line more\n" + SCRIPT)
    assert in_process(script, path, 4)[1][0] == "0"
    script.write_text(SCRIPT.replace("self.parts(x).square()", "self.parts(x).exp()"))
    changed, rest, errors = in_process(script, path, 5)
    assert rest[0] == "1"
    assert changed != first
    assert "Network.forward has changed" in errors


def other_inductor_options():
    import torch._inductor.config as options

    return options.patch(emulate_precision_casts=not options.emulate_precision_casts)


CHANGES = {
    "the configuration of funcaot": lambda: funcaot.config.patch(fallback_random=True),
    "settings of torch": lambda: sdpa_kernel(SDPBackend.MATH),
    "torch": lambda: mock.patch.object(torch, "__version__", "0.1"),
    "the hardware": lambda: mock.patch.object(machine, "present", return_value={"flags": []}),
    "funcaot": lambda: mock.patch.object(machine, "_sources", return_value="other"),
    "Python": lambda: mock.patch.object(sys, "version", "another one"),
}


UNDER = {
    "the configuration of funcaot": ("eager", CHANGES["the configuration of funcaot"]),
    "settings of torch": ("eager", CHANGES["settings of torch"]),
    "the configuration of Inductor": ("inductor", other_inductor_options),
}


@pytest.mark.parametrize("change", UNDER)
def test_a_program_belongs_to_the_settings_that_it_was_made_under(change, tmp_path):
    """Not to those in force when the file was written, by whatever thread."""
    backend, other = UNDER[change]
    path, x = tmp_path / "programs", torch.arange(3.0)
    compiled = funcaot.compile(function, backend=backend)
    with other():
        compiled(x)
    writer = threading.Thread(target=compiled.save, args=(path,))
    writer.start()
    writer.join()

    def found():
        again = funcaot.compile(function, backend=backend, artifacts=path)
        assert torch.equal(again(x), function(x))
        return again

    with other():
        assert is_loaded(found())
    outside = found()
    assert misses(outside) == 1
    assert f"{change} changed" in funcaot.report(outside).entries[0].reason


def test_a_backward_that_was_compiled_under_other_settings_is_left_out(tmp_path):
    compiled = funcaot.compile(function, backend="eager")
    loss = compiled(torch.ones(3, requires_grad=True)).sum()
    with funcaot.config.patch(fallback_random=True):
        loss.backward()
    saved = compiled.save(tmp_path / "programs")
    assert saved.programs == 1
    assert "the configuration of funcaot changed" in str(saved)


@pytest.mark.parametrize("change", CHANGES)
def test_other_settings_are_a_miss(change, path):
    with CHANGES[change]():
        compiled = loaded(path)
    assert misses(compiled) == 1
    assert f"{change} changed" in funcaot.report(compiled).entries[0].reason
    assert is_loaded(loaded(path))


OPTIONS = """
import os
import sys
from funcaot._torch.inductor.generated import settings_of_inductor
import torch
alone = settings_of_inductor()
assert not [name for name in sys.modules if name.startswith(("torch._inductor", "torch._dynamo."))]
import torch._inductor.config
assert settings_of_inductor() == alone
torch._inductor.config.max_autotune = not torch._inductor.config.max_autotune
assert settings_of_inductor() != alone
torch._inductor.config.max_autotune = not torch._inductor.config.max_autotune
assert settings_of_inductor() == alone
with torch._inductor.config.patch(epilogue_fusion=False):
    assert settings_of_inductor() != alone
import torch._inductor.compile_fx
assert settings_of_inductor() == alone
os.environ["TORCHINDUCTOR_MAX_AUTOTUNE"] = "1"
assert settings_of_inductor() != alone
"""


@pytest.mark.slow
def test_the_options_of_a_compiler_are_read_without_it():
    subprocess.run([sys.executable, "-c", OPTIONS], check=True)


def test_a_link_to_a_file_stays_one(tmp_path):
    (tmp_path / "store").mkdir()
    target, link = tmp_path / "store" / "programs", tmp_path / "latest"
    link.symlink_to(target)
    saved(link)
    assert link.is_symlink()
    assert [each.name for each in target.parent.iterdir()] == ["programs"]
    assert is_loaded(loaded(link))
    assert is_loaded(loaded(target))


def test_a_link_to_a_folder_that_is_set_elsewhere(tmp_path):
    for name in ("store", "empty"):
        (tmp_path / name).mkdir()
    link = tmp_path / "current"
    link.symlink_to("store", target_is_directory=True)
    saved(link / "programs")
    assert is_loaded(loaded(tmp_path / "store" / "programs"))
    link.unlink()
    link.symlink_to("empty", target_is_directory=True)
    assert misses(loaded(link / "programs")) == 1


def test_a_link_to_itself_gives_way(tmp_path):
    (tmp_path / "latest").symlink_to("latest")
    assert misses(loaded(tmp_path / "latest")) == 1
    assert is_loaded(loaded(saved(tmp_path / "latest")))


def test_a_link_that_leads_to_no_folder(tmp_path):
    (tmp_path / "latest").symlink_to("gone/programs")
    assert misses(loaded(tmp_path / "latest")) == 1
    with pytest.raises(ArtifactError, match="can't be written"):
        saved(tmp_path / "latest")
    assert (tmp_path / "latest").is_symlink()


def test_a_pipe_is_left_alone(tmp_path):
    """A rename would put a file in its place, and to read it waits for a writer."""
    path = tmp_path / "programs"
    os.mkfifo(path)
    compiled = loaded(path)
    assert misses(compiled) == 1
    with pytest.raises(ArtifactError, match="it is a device, a pipe or a socket"):
        compiled.save(path)
    assert path.is_fifo()
