"""Kernels of one graph are compiled as one file."""

import os
import subprocess
import sys

import pytest
import torch
from torch._inductor.utils import fresh_cache

import funcaot

files = pytest.importorskip("funcaot._torch.inductor.kernels.files")
early = pytest.importorskip("funcaot._torch.inductor.kernels.early")

INCLUDE = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
BODY = 'extern "C"  void  kernel(const float* in_ptr0, float* out_ptr0)\n{\n    #pragma omp\n}\n'
POINTERS = ["const float*", "float*"]


def test_a_usual_kernel_gets_a_name_of_its_own():
    kernel = files.kernel_of(POINTERS, "\n" + INCLUDE + BODY)
    named = kernel.named("cpp_fused_0")
    assert "void  cpp_fused_0(const float*" in named
    assert "#include" not in named


@pytest.mark.parametrize("count", [15, 16])
def test_a_kernel_with_many_loops_inside_has_them_as_loops(count):
    unrolled = "    #pragma GCC unroll 16\n    for (long x0_inner = 0; x0_inner < 16; x0_inner++)\n"
    other = "    #pragma GCC unroll 4\n    for (int i = 0; i < 4; i++)\n"
    body = BODY.replace("    #pragma omp\n", unrolled * count + other)
    named = files.kernel_of(POINTERS, INCLUDE + body).named("cpp_fused_0")
    assert named.count("unroll 16\n") == (count if count < 16 else 0)
    assert named.count("unroll 1\n") == (count if count >= 16 else 0)
    assert named.count("unroll 4\n") == 1


@pytest.mark.parametrize(
    ("argument_types", "source"),
    [
        (["const float*", "std::vector<float>"], INCLUDE + BODY),
        (POINTERS, BODY),
        (POINTERS, INCLUDE + "#include <vector>\n" + BODY),
        (POINTERS, INCLUDE + "#define N 3\n" + BODY),
        (POINTERS, INCLUDE + BODY + "void more() { kernel(nullptr, nullptr); }\n"),
    ],
    ids=["argument", "no prefix", "include", "macro", "called"],
)
def test_an_unusual_kernel_stays_alone(argument_types, source):
    assert files.kernel_of(argument_types, source) is None


def sizes(lengths, threads):
    waiting = {
        f"k{place}": files.Kernel((), "x" * length, "") for place, length in enumerate(lengths)
    }
    distributed = files.in_files(waiting, threads)
    assert sorted(name for file in distributed for name in file) == sorted(waiting)
    return [sum(len(kernel.source) for kernel in file.values()) for file in distributed]


def test_there_is_a_file_for_each_thread_and_none_is_too_large(monkeypatch):
    monkeypatch.setattr(files, "_SHORT", 1)
    assert sizes([], 1) == []
    assert sizes([5, 4, 3], 1) == [12]
    assert sizes([5, 4, 3, 2], 2) == [7, 7]
    assert sizes([5, 4], 8) == [5, 4]
    assert max(sizes([files._LARGEST // 4] * 12, 1)) <= files._LARGEST


def test_what_is_short_is_one_file():
    short = files._SHORT
    assert sizes([5, 4, 3], 8) == [12]
    assert sizes([short - 1] * 3, 8) == [short - 1] * 3
    assert sizes([short // 2] * 4, 8) == [short] * 2


def test_long_files_are_those_that_were_filled_on_the_way():
    long = files._LONG
    assert sizes([long // 2, long // 2, 7, long, 5, 6], 2) == [long, long + 7, 11]
    assert sizes([long // 2, long // 2, 7, long, 5, 6], 1) == [2 * long + 18]


def function(x, weight, places):
    """Kernels before, between and after two matrix products."""
    hidden = (x.sin() @ weight).exp()
    return ((hidden / hidden.sum(0)) @ weight).tanh()[places]


def files_of_kernels(path):
    """How many there are in a cache; a library of products may be beside them."""
    made = path.rglob("*.main.so")
    return sum('{"run"' not in file.with_suffix(".cpp").read_text() for file in made)


@pytest.mark.slow
@pytest.mark.parametrize(("threads", "broken"), [(1, False), (2, False), (1, True)])
def test_values_are_eagers_and_an_error_in_a_kernel_is_raised(
    threads, broken, monkeypatch, tmp_path
):
    if broken:
        monkeypatch.setattr(files, "_METHOD", "no C++: %(name)s")
    monkeypatch.setattr(files, "_SHORT", 1)
    x, weight = torch.randn(5, 8), torch.randn(8, 8)
    places = torch.tensor([4, 0, 0])
    with torch._inductor.config.patch(compile_threads=threads), fresh_cache(dir=str(tmp_path)):
        compiled = funcaot.compile(function)
        torch.testing.assert_close(compiled(x, weight, places), function(x, weight, places))
        made = files_of_kernels(tmp_path)
    assert made == (3 if broken else threads)
    with pytest.raises(RuntimeError, match="index out of bounds"):
        compiled(x, weight, torch.tensor([4, 9, 0]))
    torch.testing.assert_close(compiled(x, weight, places), function(x, weight, places))


@pytest.mark.slow
@pytest.mark.parametrize("broken", [False, True])
def test_a_long_file_is_compiled_while_others_are_written(broken, monkeypatch, tmp_path):
    """It is the one that the module asks for; an error on the way changes nothing."""
    monkeypatch.setattr(files, "_LONG", 1)
    started = []

    def start(file):
        started.append(sorted(file))
        if broken:
            raise OSError("no space left")
        return early_start(file)

    early_start = early.start
    monkeypatch.setattr(early, "start", start)
    x, weight, places = torch.randn(5, 8), torch.randn(8, 8), torch.tensor([4, 0, 0])
    with torch._inductor.config.patch(compile_threads=2), fresh_cache(dir=str(tmp_path)):
        compiled = funcaot.compile(function)
        torch.testing.assert_close(compiled(x, weight, places), function(x, weight, places))
        made = files_of_kernels(tmp_path)
    assert len(started) == made == 3


@pytest.mark.slow
def test_open_sizes_are_numbers_that_kernels_take():
    compiled = funcaot.compile(lambda x: (x * 2).softmax(0).sum(1), dynamic=True)
    for rows in (3, 70):
        x = torch.randn(rows, rows + 1)
        torch.testing.assert_close(compiled(x), (x * 2).softmax(0).sum(1))


FORKED = """
import os, sys, torch, funcaot
from torch._inductor.async_compile import AsyncCompile

def function(x):
    return x.cumsum(0).sin().cumsum(0)

if sys.argv[1] == "submit":
    funcaot.compile(function)(torch.ones(4))
    AsyncCompile.pool().submit(int).result()
else:
    x = torch.ones(4, requires_grad=True)
    funcaot.compile(function)(x).sum().backward()
child = os.fork()
if not child:
    if sys.argv[1] == "submit":
        assert AsyncCompile.pool().submit(int).result(timeout=60) == 0
    else:
        x = torch.ones(3, 2)
        given = funcaot.compile(lambda x: function(x).cos())(x)
        torch.testing.assert_close(given, function(x).cos())
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize("what", ["submit", pytest.param("compile", marks=pytest.mark.slow)])
def test_a_forked_process_compiles(what, tmp_path):
    """The threads of the parent's pool aren't there; torch's waits for them for ever."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    if what == "compile":  # else what is found on disk needs no thread
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path)
    command = [sys.executable, "-c", FORKED, what]
    subprocess.run(command, check=True, env=environment, timeout=400)
