"""Drawn networks under drawn chains of transforms, against elementary ops in eager."""

import pytest
import torch

from tests.derivatives.networks import Network, check, drawn

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop")
# What torch's own formulas or a refusal say, all of them loud.
LOUD = (
    "modified by an inplace operation|has no second reverse-mode derivative"
    "|Batching rule not implemented"
)
FOUND = [
    # Torch's distances of many rows, where what they raise is that of the capture.
    Network(("cdist_of_many",), ("hessian", "vjp"), 2, torch.float64),
]


def attempt(network, backend):
    failure = None
    try:
        check(network, backend)
    except AssertionError:
        raise
    except Exception as error:  # noqa: BLE001  (only its text says whether it is known)
        failure = f"{network}: {error}"
    assert failure is None or any(text in failure for text in LOUD.split("|")), failure


@pytest.mark.parametrize("network", FOUND, ids=str)
def test_found_before(network):
    attempt(network, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_drawn(seed):
    attempt(drawn(seed), "eager")


@pytest.mark.slow
def test_stand_ins_for_zeros_have_memory_on_inductor():
    """A tangent that torch leaves out has none, and a kernel read it at address 0."""
    check(drawn(12))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", None], ids=["eager", "inductor"])
@pytest.mark.parametrize("seed", range(20, 200))
def test_more_drawn(seed, backend):
    attempt(drawn(seed), backend)
