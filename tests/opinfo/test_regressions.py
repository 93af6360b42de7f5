"""Cases of the database that once failed, each against the eager reference."""

import pytest

from funcaot.testing.composition import parse
from funcaot.testing.database import by_name
from funcaot.testing.generator import Case, run_case

CASES = [
    # A level outside saves the tangent that a generated in-place rule overwrites.
    ("ExpInPlace", "grad_of_jvp", "matrix"),
    ("ExpInPlaceOnView", "hessian_of_jacfwd", "matrix"),
    # A graph returned its own operand, which the same call kept for a backward.
    ("InputReturnedAsIs", "grad_of_compile", "both"),
    ("InputReturnedAsIs", "vmap_of_grad_of_compile", "both"),
    # The tracer took the operand for the output, so that the call overwrote its own input.
    ("InputReturnedAsIs", "vmap_of_compile", "both"),
    # The graph of a write to a view has no batching rules as autograd writes it.
    ("ExpInPlaceOnView", "jacrev_of_compile", "matrix"),
    # Reverse mode was never asked for.
    ("JvpOnly", "jvp_of_compile", "matrix"),
    # The derivative of an opaque backward isn't visibly free of the cotangent.
    ("NumpyMultiply", "jvp_of_compile", "both"),
    # Torch reads metadata of what a fake tensor is made of.
    ("SplitInHalves", "compile_of_jacfwd", "matrix"),
]


@pytest.mark.parametrize(("name", "chain", "sample"), CASES)
def test_agrees_with_the_reference(name, chain, sample):
    run_case(Case(by_name(name), parse(chain), sample))


@pytest.mark.slow
def test_function_that_calls_functions_compiles_with_inductor():
    chain = parse("vmap_of_grad_of_compile_inductor")
    run_case(Case(by_name("CallsFunctions"), chain, "both"))
