"""Every Function of the database, compiled: on the hostile backend, and on Inductor itself."""

import itertools

import pytest
import torch

from funcaot.backends import BACKENDS
from funcaot.testing.compare import compare
from funcaot.testing.composition import applies, missing_support, parse
from funcaot.testing.database import FUNCTIONS
from funcaot.testing.derivatives import EagerAutograd
from funcaot.testing.generator import SEED, cases_of
from funcaot.testing.parametrize import parameters
from funcaot.testing.program import Program, program_of
from tests.hostile import COMPILER

pytestmark = [pytest.mark.slow, pytest.mark.long]

CHAINS = (
    "autograd_strided_of_compile",
    "autograd_of_autograd_of_compile",
    "vmap_of_compile",
    "jvp_of_compile",
    "compile_of_vmap_of_grad",
)
# Forward and backward, and with them the double backward: each starts the C++ compiler.
INDUCTOR_CHAINS = (
    "autograd_strided_of_compile_inductor",
    "autograd_of_autograd_of_compile_inductor",
)
GROUP = 8


def hostile_cases():
    chains = [parse(name) for name in CHAINS]
    for info in FUNCTIONS:
        yield from cases_of(info, chains, all_samples=False, device="cpu")


def pytest_generate_tests(metafunc):
    # Collecting them takes seconds, which the fast group need not pay.
    chosen = metafunc.config.getoption("markexpr")
    wanted = "slow" in chosen.replace("not slow", "") or chosen == "long"
    if "case" in metafunc.fixturenames:
        metafunc.parametrize("case", parameters(hostile_cases()) if wanted else [])
    elif "group" in metafunc.fixturenames:
        metafunc.parametrize(("name", "group"), list(inductor_groups()) if wanted else [])


def test_on_the_hostile_backend(case, monkeypatch):
    monkeypatch.setitem(BACKENDS, "eager", COMPILER)
    case.run()


def sample_of(info):
    return next(iter(info.sample_inputs("cpu", info.dtypes[0])))


def is_simple(info, chain):
    """Whether it runs beside others: with a reference, all rules, and no random numbers."""
    name = chain.name.removesuffix("_inductor")  # a limit is one on every backend
    return (
        applies(info, chain, info.dtypes[0])
        and not missing_support(info, chain)
        and info.ref is not None
        and not info.random
        and info.limitation_for(name, sample_of(info).name) is None
    )


def groups(name):
    """The Functions that a chain has a meaning for, some at a time."""
    chain = parse(name)
    simple = [info for info in FUNCTIONS if is_simple(info, chain)]
    return [simple[begin : begin + GROUP] for begin in range(0, len(simple), GROUP)]


def side_by_side(programs):
    """One program that runs several, each on primals of its own."""
    ends = list(itertools.accumulate(len(program.primals) for program in programs))
    begins = [0, *ends[:-1]]

    def joined(functions):
        def run(*primals):
            parts = zip(functions, begins, ends, strict=True)
            return tuple(
                output for function, begin, end in parts for output in function(*primals[begin:end])
            )

        return run

    return Program(
        joined([program.run for program in programs]),
        joined([program.expected for program in programs]),
        tuple(primal for program in programs for primal in program.primals),
        tuple(
            begin + argnum
            for begin, program in zip(begins, programs, strict=True)
            for argnum in program.argnums
        ),
        EagerAutograd(),
        tuple(output for program in programs for output in program.example),
    )


def inductor_groups():
    for name in INDUCTOR_CHAINS:
        for number, group in enumerate(groups(name)):
            yield pytest.param(name, group, id=f"{name}-{number}")


def test_on_inductor(name, group):
    torch.manual_seed(SEED)
    programs = [program_of(info, sample_of(info), EagerAutograd()) for info in group]
    program = parse(name).apply(side_by_side(programs))
    tolerances = [info.tolerance for info in group if info.tolerance is not None]
    expected = program.expected(*program.primals)
    difference = compare(
        program.run(*program.primals), expected, max(tolerances) if tolerances else None
    )
    names = ", ".join(info.name for info in group)
    assert difference.message is None, f"{names}: {difference.message}"


def test_most_functions_run_on_inductor():
    assert sum(map(len, groups(INDUCTOR_CHAINS[0]))) > 60
    assert sum(map(len, groups(INDUCTOR_CHAINS[1]))) > 60
