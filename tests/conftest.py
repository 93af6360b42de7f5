"""Settings for every test: a thread a worker, the compile cache in build/, fixed seeds."""

import os
import shutil
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

# Before torch is imported, and only where the caller has not chosen otherwise.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", str(Path(__file__).resolve().parents[1] / "build" / "inductor")
)
os.environ.setdefault("MPLBACKEND", "Agg")
# Artifacts are signed; tests leave no key in anybody's home.
os.environ.setdefault("FUNCAOT_ARTIFACT_KEY", "the key of the tests, which nobody else has")
# Every graph that a test compiles is proved to return nothing that shares memory.
os.environ.setdefault("FUNCAOT_CHECK_ALIASES", "1")

import pytest
import torch

# The usual linker takes as long as the compiler for a small kernel, since it reads all of torch.
if GOLD := shutil.which("ld.gold"):
    linker = Path(__file__).resolve().parents[1] / "build" / "linker" / "ld"
    linker.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        linker.symlink_to(GOLD)
    os.environ.setdefault("COMPILER_PATH", str(linker.parent))

# All tests run on the hostile backend, whichever they name (CONTRIBUTING.md).
HOSTILE = os.environ.get("FUNCAOT_TEST_BACKEND") == "hostile"

# Files whose tests run on the backends that they name and on the hostile one; there in which group.
ON_BOTH = {
    "test_aliases": "long",
    "test_backward_mutations": "long",
    "test_shared_memory": "long",
    "test_detached_writes": "long",
    "test_effects": "long",
    "test_effects_levels": "long",
    "test_effects_regressions": "long",
    "test_epilogue_plan": "fast",
    "test_orders": "long",
    "test_state": "long",
}


# Of these files or tests, every n-th case of a test runs in its group; the others with `make
# test-long`. Those of `tests/distributed` become slow after this.
SAMPLED = tomllib.loads((Path(__file__).parent / "sampled.toml").read_text())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave some of the many cases of a test for the long group; what is long is slow too."""
    met: Counter[str] = Counter()
    for item in items:
        if item.get_closest_marker("long"):
            item.add_marker(pytest.mark.slow)
        group = "slow" if item.get_closest_marker("slow") else "fast"
        test = item.nodeid.partition("[")[0]
        name = f"{item.path.stem}::{test.rpartition('::')[2]}"
        share = SAMPLED[group].get(name, SAMPLED[group].get(item.path.stem))
        if share is None or item.get_closest_marker("long"):
            continue
        test += group
        if met[test] % share:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.long)
        met[test] += 1


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test draws the same numbers, alone or among others."""
    torch.manual_seed(0)


# What a thread goes on with, by name. A test that leaves one changed makes others fail later.
STATES: dict[str, Callable[[], object]] = {
    "torch functions of classes": torch._C._get_torch_function_state,
    "modes of torch functions": torch._C._len_torch_function_stack,
    "modes of dispatch": torch._C._len_torch_dispatch_stack,
    "levels": torch._C._functorch.maybe_current_level,
    "grad mode": torch.is_grad_enabled,
    "inference mode": torch.is_inference_mode_enabled,
    "autocast": lambda: torch.is_autocast_enabled("cpu"),
    "default dtype": torch.get_default_dtype,
    "deterministic algorithms": torch.are_deterministic_algorithms_enabled,
    "anomaly mode": torch.is_anomaly_enabled,
    "hooks of saved tensors": lambda: torch._C._autograd._top_saved_tensors_default_hooks(False),
}


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Fail the test that leaves a state of its thread changed, not those that come after it."""
    before = {name: read() for name, read in STATES.items()}
    yield
    left = {name: value for name, read in STATES.items() if (value := read()) != before[name]}
    assert not left, f"left behind: {left}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests of some files run on the hostile backend too; cases come in an order."""
    for mark in metafunc.definition.iter_markers("parametrize"):
        # Sets are walked in another order by each process, and workers must collect alike.
        assert not isinstance(mark.args[1], (set, frozenset)), f"{mark.args[0]}: cases in a set"
    module = Path(metafunc.module.__file__).stem
    if module in ON_BOTH and not HOSTILE:
        marks = () if ON_BOTH[module] == "fast" else [pytest.mark.slow, pytest.mark.long]
        backends = ["named", pytest.param("hostile", marks=marks)]
        metafunc.parametrize("what_compiles", backends, indirect=True)


@pytest.fixture(autouse=True)
def what_compiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The backends that tests name, or the hostile one instead of each of them."""
    chosen = "hostile" if HOSTILE else getattr(request, "param", "named")
    if chosen == "hostile":
        from funcaot.backends import BACKENDS
        from tests.hostile import COMPILER

        for name in list(BACKENDS):
            monkeypatch.setitem(BACKENDS, name, COMPILER)
    return chosen


@pytest.fixture
def by_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transforms straight over a compiled function enter their levels, as others do."""
    off = frozenset({"transform calls"})
    monkeypatch.setattr("funcaot.aot.runtime.outermost.switched_off", lambda: off)


@pytest.fixture(params=["whole", "by level"])
def either_way(request: pytest.FixtureRequest) -> None:
    """Transforms straight over a compiled function are compiled with it, or enter their levels."""
    if request.param == "by level":
        request.getfixturevalue("by_level")
