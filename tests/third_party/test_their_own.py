"""Libraries' own tests of compilation, with ``funcaot.compile`` in place of ``torch.compile``.

Their code isn't copied: NequIP installs its tests; MACE's are in its source distribution, whose
folder is named by ``FUNCAOT_THEIR_SOURCES``::

    pip download --no-deps --no-binary :all: mace-torch==0.3.16
    tar xzf mace_torch-0.3.16.tar.gz && export FUNCAOT_THEIR_SOURCES=$PWD

TorchMD-Net ships no tests, and has one of compilation only, of scripted models, which torch.compile
refuses.
"""

import importlib.util
import os
import types
from pathlib import Path

import pytest
import torch
import training

import funcaot

pytestmark = pytest.mark.filterwarnings("ignore")
compiled: list[object] = []


@pytest.fixture(autouse=True)
def _ours(monkeypatch):
    """What they give to ``torch.compile`` is compiled by funcaot."""
    compiled.clear()

    def compile_by_funcaot(model, **settings):
        compiled.append(funcaot.compile(model, backend=training.BACKEND))
        return compiled[-1]

    monkeypatch.setattr(torch, "compile", compile_by_funcaot)
    yield
    assert compiled
    assert all(funcaot.report(each).cache_misses == 1 for each in compiled)


def sources(pattern):
    """A file of a source distribution."""
    found = sorted(Path(os.environ.get("FUNCAOT_THEIR_SOURCES", "/nowhere")).glob(pattern))
    if not found:
        pytest.skip(f"no {pattern} in the folder that FUNCAOT_THEIR_SOURCES names")
    return found[-1]


@pytest.fixture(params=[torch.float32, torch.float64], ids=["float32", "float64"])
def mace(request):
    """MACE's file, and the dtype that its fixture would set."""
    path = sources("mace_torch-*/tests/test_compile.py")
    spec = importlib.util.spec_from_file_location("mace_test_compile", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with module.tools.torch_tools.default_dtype(request.param):
        yield module, request.param


@pytest.mark.parametrize("name", ["test_mace", "test_mace_compile_stress"])
def test_mace(mace, name):
    """Energies, forces and stresses of ``mace.tools.compile.prepare``d models, as in eager mode."""
    module, dtype = mace
    getattr(module, name)("cpu", dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_nequip(monkeypatch, dtype):
    """Its test of compilation in training, outputs and gradients, which it skips on CPUs."""
    from nequip.utils.global_state import set_global_state
    from nequip.utils.unittests import model_tests_train_time_compile as theirs
    from test_potentials import frames_of_nequip

    skips = types.SimpleNamespace(skip=lambda reason: None)
    monkeypatch.setattr(theirs, "pytest", skips)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    set_global_state(allow_tf32=False)
    try:
        config = {
            "_target_": "nequip.model.NequIPGNNModel",
            "seed": 123,
            "model_dtype": dtype,
            "type_names": ["H", "C"],
            "r_max": 4.0,
            "num_layers": 1,
            "l_max": 1,
            "parity": True,
            "num_features": 4,
            "radial_mlp_width": 8,
            "avg_num_neighbors": 20.0,
        }
        suite = theirs.TrainTimeCompileMixin()
        torch.manual_seed(0)
        suite.test_train_time_compile(
            model=(suite.make_model(config, device="cpu"), config, None),
            model_test_data=frames_of_nequip(0),
            device="cpu",
            model_dtype=dtype,
            train_time_compile_modifiers=None,
            train_time_compile_tol={"float32": 5e-5, "float64": 1e-12}[dtype],
        )
    finally:
        torch.set_default_dtype(before)
