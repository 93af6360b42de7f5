"""The database of Functions on the GPU: uncompiled, compiled, and under transforms."""

import pytest
import torch

from funcaot.testing.composition import parse
from funcaot.testing.database import FUNCTIONS
from funcaot.testing.generator import cases_of
from funcaot.testing.parametrize import parameters

CHAINS = (
    "grad",
    "vmap_of_grad",
    "jvp",
    "autograd_strided_of_compile",
    "autograd_of_autograd_of_compile",
    "vmap_of_compile",
    "jvp_of_compile",
    "autograd_of_autograd_of_compile_inductor",
)


def pytest_generate_tests(metafunc):
    if "case" not in metafunc.fixturenames:
        return
    chains = [parse(name) for name in CHAINS] if torch.cuda.is_available() else []
    # NumPy computes on CPUs only.
    infos = [info for info in FUNCTIONS if "numpy" not in info.name.lower()]
    cases = [
        case for info in infos for case in cases_of(info, chains, all_samples=False, device="cuda")
    ]
    metafunc.parametrize("case", parameters(cases))


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_functions(case):
    case.run()
