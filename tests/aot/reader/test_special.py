"""Changes that no composition of the matrix makes, and modules that are really imported."""

import gc
import importlib
import sys

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError
from tests.aot.reader import cases_of_keys
from tests.aot.reader.held.worlds import World, argument, differences, run
from tests.aot.reader.special_cases import CASES

CASES |= cases_of_keys.CASES


def seen_by(script, wrap):
    world = World(script)
    try:
        return run(world, wrap(world.target))
    finally:
        world.close()


@pytest.mark.parametrize("fast", [True, False], ids=["generated path", "general path"])
@pytest.mark.parametrize("case", CASES)
def test_a_special_change_is_noticed(case, fast):
    eager = seen_by(CASES[case], lambda target: target)
    assert eager[2] != eager[1] == eager[0], "the change changes nothing"
    with funcaot.config.patch(fast_path=fast):
        ours = seen_by(CASES[case], lambda target: funcaot.compile(target, backend="eager"))
    assert not differences(ours, eager)


FILES = {
    "matrix_settings.py": "k = 2\nunread = 1\n",
    "matrix_helpers.py": "import matrix_settings\nfrom matrix_settings import k as copied\n"
    "def by_module(x): return x * matrix_settings.k\n"
    "def by_copy(x): return x * copied\n"
    "def inside(x):\n    from matrix_settings import k\n    return x * k\n",
}
READS = {
    "attribute": """
import matrix_settings
def target(x): return x * matrix_settings.k
""",
    "import inside": """
def target(x):
    import matrix_settings
    return x * matrix_settings.k
""",
    "from import inside": """
def target(x):
    from matrix_settings import k
    return x * k
""",
    "helper by module": """
import matrix_helpers
def target(x): return matrix_helpers.by_module(x)
""",
    "helper by import": """
from matrix_helpers import inside
def target(x): return inside(x)
""",
    "importlib": """
import importlib
def target(x): return x * importlib.import_module("matrix_settings").k
""",
    "sys.modules": """
import sys
def target(x): return x * sys.modules["matrix_settings"].k
""",
    "importlib by a text held elsewhere": """
import importlib
names = {"settings": "matrix_settings"}
def target(x): return x * importlib.import_module(names["settings"]).k
""",
    "method": """
import matrix_settings
class Box:
    def go(self, x): return x * matrix_settings.k
box = Box()
def target(x): return box.go(x)
""",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path with modules, which are forgotten afterwards."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in ("matrix_settings", "matrix_helpers", "matrix_main"):
        sys.modules.pop(name, None)


# Where a number is reached so that its second value stays open.
LEFT_OPEN = {"attribute", "helper by module", "method", "import inside", "from import inside"}
LEFT_OPEN |= {"helper by import", "importlib", "sys.modules"}


@pytest.mark.parametrize("read", READS)
def test_an_imported_module(folder, read):
    (folder / "matrix_main.py").write_text(READS[read])
    main = importlib.import_module("matrix_main")
    settings = importlib.import_module("matrix_settings")
    compiled = funcaot.compile(main.target, backend="eager")
    for value in (2, 2, 3, 3, 2, 7, 2):
        settings.k = value
        assert torch.equal(compiled(argument()), main.target(argument()))
    programs = 2 if read in LEFT_OPEN else 3
    assert funcaot.report(compiled).cache_misses == programs
    settings.unread = 5
    compiled(argument())
    assert funcaot.report(compiled).cache_misses == programs


@pytest.mark.parametrize("read", ["attribute", "helper by module", "import inside"])
def test_a_module_that_is_reloaded(folder, read):
    (folder / "matrix_main.py").write_text(READS[read])
    main = importlib.import_module("matrix_main")
    compiled = funcaot.compile(main.target, backend="eager")
    for value in (2, 2, 3, 3, 2):
        (folder / "matrix_settings.py").write_text(f"k = {value}\n")
        importlib.reload(importlib.import_module("matrix_settings"))
        assert torch.equal(compiled(argument()), main.target(argument()))
        assert torch.equal(compiled(argument()), argument() * value)


def test_a_helper_that_is_edited_and_reloaded(folder):
    (folder / "matrix_main.py").write_text(READS["helper by module"])
    main = importlib.import_module("matrix_main")
    compiled = funcaot.compile(main.target, backend="eager")
    assert torch.equal(compiled(argument()), argument() * 2)
    (folder / "matrix_helpers.py").write_text("def by_module(x): return x.sin()\n")
    importlib.reload(main.matrix_helpers)
    for _ in range(2):
        assert torch.equal(compiled(argument()), argument().sin())


def test_a_name_that_was_copied_by_an_import_stays(folder):
    (folder / "matrix_main.py").write_text(
        "import matrix_helpers\ndef target(x): return matrix_helpers.by_copy(x)\n"
    )
    main = importlib.import_module("matrix_main")
    compiled = funcaot.compile(main.target, backend="eager")
    for value in (2, 3, 5):
        importlib.import_module("matrix_settings").k = value
        assert torch.equal(compiled(argument()), argument() * 2)
    assert funcaot.report(compiled).cache_misses == 1


ADVANCING = {
    "itertools.count": "import itertools\ncounter = itertools.count(1)\n"
    "read = lambda: next(counter)",
    "a generator": "def numbers():\n    for n in range(1, 100):\n        yield n\n"
    "counter = numbers()\nread = lambda: next(counter)",
    "an iterator of a list": "counter = iter(list(range(1, 100)))\nread = lambda: next(counter)",
    "random.random": "import random\nrandom.seed(0)\nread = random.random",
    "a random generator of its own": "import random\nread = random.Random(0).random",
    "a random generator of NumPy": "import numpy\ndraw = numpy.random.default_rng(0)\n"
    "read = lambda: float(draw.random())",
    "a counter in a closure": "def make():\n    n = 0\n    def read():\n        nonlocal n\n"
    "        n += 1\n        return n\n    return read\nread = make()",
    "a queue that is emptied": "queue = list(range(1, 100))\nread = lambda: queue.pop(0)",
}


def test_a_counter_that_is_not_read_is_no_obstacle():
    """A library that numbers what it makes, which this function may do and doesn't."""
    names: dict = {}
    text = "import itertools\ncounter = itertools.count(1)\nused = False\n"
    text += "def target(x):\n    return x * (next(counter) if used else 2)"
    exec(text, names)
    compiled = funcaot.compile(names["target"], backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(argument()), argument() * 2)
        assert next(names["counter"])
    assert funcaot.report(compiled).cache_misses == 1
    names["used"] = True
    with pytest.raises(funcaot.errors.UnsupportedError, match="reads counter"):
        compiled(argument())


@pytest.mark.parametrize("kind", ADVANCING)
def test_what_advances_at_each_call(kind):
    """A number that each call takes from a state: as in eager, or an error that names it."""
    results = []
    for wrap in (lambda f: f, lambda f: funcaot.compile(f, backend="eager")):
        names: dict = {}
        exec(ADVANCING[kind] + "\ndef target(x):\n    return x * read()\n", names)
        call, found = wrap(names["target"]), []
        for _ in range(4):
            try:
                found.append(call(torch.ones(2)).tolist())
            except UnsupportedError:  # allowed: it says what to do instead
                return
        results.append(found)
    assert results[1] == results[0]


def test_what_the_garbage_collector_calls_is_not_read():
    names: dict = {"gc": gc, "n": 0}
    source = "def count(phase, info):\n    global n\n    n = n * 2 + 1\n"
    exec(source + "def target(x):\n    gc.collect()\n    return x * 2\n", names)
    compiled = funcaot.compile(names["target"], backend="eager")
    gc.callbacks.append(names["count"])
    try:
        for _ in range(4):
            assert torch.equal(compiled(argument()), argument() * 2)
    finally:
        gc.callbacks.remove(names["count"])
    assert funcaot.report(compiled).cache_misses == 1
