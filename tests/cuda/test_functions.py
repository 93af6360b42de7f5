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
    cases = []
    if torch.cuda.is_available():
        chains = [parse(name) for name in CHAINS]
        for info in filter(is_for_gpus, FUNCTIONS):
            chosen = [chain for chain in chains if is_promised(info, chain)]
            cases += cases_of(info, chosen, all_samples=False, device="cuda")
    metafunc.parametrize("case", parameters(cases))


def is_for_gpus(info):
    """Whether a Function uses no NumPy and closes over no tensor of the CPU."""
    return "numpy" not in info.name.lower() and info.name != "ClosureProgram"


def is_promised(info, chain):
    """Whether it has no limit under a chain; a GPU draws other numbers for a batch at once."""
    if info.random and "vmap" in chain.name:
        return False
    name = chain.name.removesuffix("_inductor")
    sample = next(iter(info.sample_inputs("cpu", info.dtypes[0])))
    return info.limitation_for(name, sample.name) is None


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.filterwarnings("ignore:TensorFloat32")
def test_functions(case):
    case.run()
