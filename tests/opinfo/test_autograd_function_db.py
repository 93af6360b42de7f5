"""torch's own database of Functions, unedited, through funcaot's operator."""

import pytest
import torch

import funcaot
from funcaot._torch.tensors.testing import autograd_functions
from funcaot.testing.composition import chosen, pairs, singles
from funcaot.testing.database.reasons import IN_PLACE_BATCH
from funcaot.testing.generator import cases_of, is_slow
from funcaot.testing.parametrize import parameters
from funcaot.testing.records import Limitation
from funcaot.testing.torch_operators.torch_opinfo import info_of_opinfo


def numpy_sort_reference(x, dim):
    # It returns its input, with the derivative of sorting.
    values, order = x.sort(dim=dim)
    return x.detach() + values - values.detach(), order, order.argsort(dim=dim)


def sort_reference(x, dim):
    values, order = x.sort(dim=dim)
    return values, order, order.argsort(dim=dim)


# Closed forms, because the Functions themselves would go through the operator.
REFERENCES = {
    "NumpyCube": lambda x: (x**3, 3 * x**2),
    "NumpyExpMarkDirty": lambda x: x.exp(),
    "NumpyMul": torch.mul,
    "NumpyCubeNotComposable": lambda x: x**3,
    "NumpySort": numpy_sort_reference,
    "NumpyTake": lambda x, order, inverse, dim: x.gather(dim, order),
    "Select": lambda x, index: x[index],
    "CubeGenVmap": lambda x: (x**3, 3 * x**2),
    "MulGenVmap": torch.mul,
    "SortGenVmap": sort_reference,
    "SelectGenVmap": lambda x, index: x[index],
    "ScaleGradGenVmap": lambda x: 3.14 * x - 2.14 * x.detach(),
    "ZeroGradientsGenVmap": lambda x, y: (x.detach() + 0 * x, y.detach() + 0 * y),
    "ForwardHasDefaultArgs": lambda x, index=(2,): x[index],
}
BATCHED_ZEROS = "NumPy can't read a batch of the zero tensors that torch's forward mode makes"
KNOWN = {
    "NumpyCube": {
        "limitations": (
            Limitation("jacrev_of_hessian", BATCHED_ZEROS),
            Limitation("batched_grads_of_hessian", BATCHED_ZEROS),
        )
    },
    "NumpyExpMarkDirty": {
        "limitations": (Limitation("vmap_first_only_of_jvp", IN_PLACE_BATCH),),
    },
    # Its backward adds a constant on purpose: only its jvp is the derivative.
    "CubeGenVmap": {"supports_autograd": False},
    # Its backward leaves grad_output out.
    "NumpyCubeNotComposable": {
        "supports_autograd": False,
        "supports_gradgrad": False,
        "supports_forward_ad": False,
        "supports_vmap": False,
        "supports_compile": True,
    },
}


def infos():
    for operator in autograd_functions():
        name = operator.name.removesuffix("AutogradFunction")
        known = {"supports_forward_ad": True, **KNOWN.get(name, {})}
        yield info_of_opinfo(operator, ref=REFERENCES[name], name=name, **known)


@pytest.fixture(autouse=True)
def through_the_operator():
    with funcaot.install():
        yield


FAST = [chain for chain in singles() if not is_slow(chain)]
ALL = [*pairs(), *chosen()]


def generated(chains):
    return parameters(
        case
        for info in infos()
        for case in cases_of(info, chains, all_samples=False, device="cpu")
        if not case.missing
    )


@pytest.mark.parametrize("case", generated(FAST))
def test_single_transform(case):
    case.run()


@pytest.mark.slow
@pytest.mark.parametrize("case", generated(ALL))
def test_composition(case):
    case.run()
