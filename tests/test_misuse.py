"""Misuse is refused by name; compiled functions travel; a damaged cache is built anew."""

import copy
import functools
import multiprocessing
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import funcaot
from funcaot.errors import FuncaotError

X = torch.ones(3)
MISUSES = {
    "mark_dynamic of a name": lambda: funcaot.mark_dynamic(X, "a"),
    "mark_dynamic of nothing": lambda: funcaot.mark_dynamic(X, None),
    "mark_dynamic of a fraction": lambda: funcaot.mark_dynamic(X, 1.0),
    "mark_dynamic of a list of nothing": lambda: funcaot.mark_dynamic(X, [None]),
    "mark_dynamic of a truth": lambda: funcaot.mark_dynamic(X, True),
    "mark_dynamic of no tensor": lambda: funcaot.mark_dynamic(3, 0),
    "compile of a number": lambda: funcaot.compile(3),
    "no backend": lambda: funcaot.compile(torch.sin, backend=None),
    "several backends": lambda: funcaot.compile(torch.sin, backend=["eager"]),
    "policy": lambda: funcaot.compile(torch.sin, policy=3),
    "dynamic": lambda: funcaot.compile(torch.sin, dynamic="a"),
    "report": lambda: funcaot.report(3),
    "fw_compiler": lambda: funcaot.aot_function(torch.sin, "eager"),
    "bw_compiler": lambda: funcaot.aot_function(torch.sin, lambda g, i: g, "eager"),
    "decompositions": lambda: funcaot.aot_function(torch.sin, lambda g, i: g, decompositions=3),
    "aot_module": lambda: funcaot.aot_module(torch.sin, lambda g, i: g),
    "custom_function_call": lambda: funcaot.custom_function_call(3),
    "custom_vjp": lambda: funcaot.custom_vjp(3),
    "custom_jvp": lambda: funcaot.custom_jvp(None),
    "checkpoint": lambda: funcaot.checkpoint(X),
    "closure_convert": lambda: funcaot.closure_convert(None),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_misuse_is_refused_by_name(misuse):
    with pytest.raises(FuncaotError, match=r"Expected|Instead"):
        misuse()


@pytest.mark.parametrize(
    ("given", "instead"),
    [
        (torch.nn.Linear, r"funcaot\.compile\(Linear\(\.\.\.\)\)"),
        (type("Mine", (torch.autograd.Function,), {}), r"pass Mine\.apply"),
        (float, r"lambda x: float\(x\)"),
        (X, "not what a call of it returns"),
        ("sin", "the function or the instance itself"),
    ],
    ids=str,
)
def test_what_to_compile_instead(given, instead):
    with pytest.raises(FuncaotError, match=instead):
        funcaot.compile(given)


def test_a_name_that_was_meant_is_suggested():
    program = "import funcaot\nfuncaot.complie"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith(
        "AttributeError: module 'funcaot' has no attribute 'complie'. Did you mean: 'compile'?"
    )


def _nested(value, depth, kind):
    for _ in range(depth):
        value = {"inner": value} if kind is dict else kind([value])
    return value


def _innermost(value):
    while not isinstance(value, torch.Tensor):
        value = value["inner"] if isinstance(value, dict) else value[0]
    return value


@pytest.mark.parametrize("kind", [list, tuple, dict])
@pytest.mark.parametrize("depth", [100, 500, 3000])
def test_structures_that_are_nested_deep(depth, kind):
    """Right, or refused by name."""
    takes = funcaot.compile(lambda value: _innermost(value) * 2, backend="eager")
    returns = funcaot.compile(lambda x: _nested(x * 2, depth, kind), backend="eager")
    for _ in range(2):
        for call in (lambda: takes(_nested(X, depth, kind)), lambda: returns(X)):
            try:
                result = call()
            except FuncaotError as refusal:
                found = str(refusal)
            else:
                assert torch.equal(_innermost(result), 2 * X)
                continue
            assert depth > 100
            assert "too deep" in found


@pytest.mark.parametrize("kind", [list, dict])
def test_nested_structures_under_any_recursion_limit(kind):
    """Wherever the limit strikes: right, or refused by name."""
    usual = sys.getrecursionlimit()
    depth = 150
    for limit in [*range(400, 1600, 40), 10_000]:
        takes = funcaot.compile(lambda value: _innermost(value) * 2, backend="eager")
        returns = funcaot.compile(lambda x: _nested(x * 2, depth, kind), backend="eager")
        for call in (lambda: takes(_nested(X, depth, kind)), lambda: returns(X)):  # noqa: B023
            for _ in range(3):
                sys.setrecursionlimit(limit)
                try:
                    result = call()
                except FuncaotError as refusal:
                    assert "too deep" in str(refusal)  # noqa: PT017
                else:
                    assert torch.equal(_innermost(result), 2 * X)
                finally:
                    sys.setrecursionlimit(usual)


def _wrapped(inner):
    return lambda x: inner(x)


def test_closures_that_are_nested_deep():
    """The innermost one changes, and that is noticed."""
    holder = {"k": 2.0}

    def innermost(x):
        return x * holder["k"]

    function = functools.reduce(lambda inner, _: _wrapped(inner), range(500), innermost)
    compiled = funcaot.compile(function, backend="eager")
    for k in (2.0, 2.0, 3.0, 2.0):
        holder["k"] = k
        assert torch.equal(compiled(X), X * k)


# --- pickling -----------------------------------------------------------------------------------


@funcaot.compile(backend="eager")
def decorated(x):
    return x.sin()


class Holder:
    @funcaot.compile(backend="eager")
    def method(self, x):
        return x.cos()

    @staticmethod
    @funcaot.compile(backend="eager")
    def static(x):
        return x.cos()


@pytest.mark.parametrize("function", [decorated, Holder.method, Holder.static])
def test_a_decorated_function_is_pickled_by_name(function):
    assert pickle.loads(pickle.dumps(function)) is function
    assert copy.deepcopy(function) is function
    assert copy.copy(function) is function


def test_another_function_is_compiled_anew():
    function = funcaot.compile(torch.sin, backend="eager")
    other = pickle.loads(pickle.dumps(function))
    assert other is not function
    assert torch.equal(other(X), X.sin())


MODULE = """
import funcaot
@funcaot.compile(backend="eager")
def decorated(x):
    return x.sin()
"""


def test_a_decorated_function_in_a_process_that_is_spawned(tmp_path, monkeypatch):
    (tmp_path / "decorates.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    import decorates

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(decorates.decorated, (2 * X,)).equal((2 * X).sin())


# --- a damaged cache ----------------------------------------------------------------------------

RUN = """
import torch, funcaot
x = torch.full((5,), 0.5, requires_grad=True)
compiled = funcaot.compile(lambda x: (x.sin() @ x.cos()) * x.exp())
compiled(x).sum().backward()
y = x.detach().requires_grad_()
((y.sin() @ y.cos()) * y.exp()).sum().backward()
torch.testing.assert_close(x.grad, y.grad)
"""


def _run(folder):
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, env=environment, timeout=280
    )


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("damage", ["cut", "garbled"])
def test_a_damaged_cache_is_built_anew(tmp_path, damage):
    assert _run(tmp_path).returncode == 0
    files = [path for path in Path(tmp_path).rglob("*") if path.is_file()]
    kinds = {path.suffix for path in files}
    assert {".py", ".so"} <= kinds
    for path in files:
        content = path.read_bytes()
        path.chmod(0o755)
        path.write_bytes(content[: len(content) // 2] if damage == "cut" else b"@" * 100)
    for _ in range(2):
        found = _run(tmp_path)
        assert found.returncode == 0, found.stderr
