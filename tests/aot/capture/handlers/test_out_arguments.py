"""``out=`` of another shape or dtype, an input, a view: as in eager, or refused by name."""

import warnings

import pytest
import torch

import funcaot
from funcaot.errors import UnsupportedError


def rows():
    return torch.arange(8.0).view(2, 4)


def empty(**options):
    return torch.empty(0, **options)


ADD = lambda x, o: torch.add(x, 1.5, out=o)  # noqa: E731
CASES = {
    "empty": (ADD, lambda: (rows(), empty())),
    "larger": (ADD, lambda: (rows(), torch.zeros(3))),
    "smaller": (ADD, lambda: (torch.ones(2), torch.zeros(8))),
    "same elements": (ADD, lambda: (rows(), torch.zeros(8))),
    "same": (ADD, lambda: (rows(), torch.zeros(2, 4))),
    "transposed": (ADD, lambda: (rows(), torch.zeros(4, 2).t())),
    "strides of the input": (ADD, lambda: (rows().t(), empty())),
    "wider dtype": (ADD, lambda: (rows(), empty(dtype=torch.double))),
    "wrong dtype": (ADD, lambda: (rows(), torch.zeros(2, 4, dtype=torch.long))),
    "wrong dtype, empty": (ADD, lambda: (rows(), empty(dtype=torch.long))),
    "differentiated": (ADD, lambda: (rows().requires_grad_(), empty())),
    "gaps": (ADD, lambda: (rows(), torch.zeros(8, 2)[:, 0])),
    "room": (ADD, lambda: (rows(), torch.zeros(20)[:0])),
    "used": (
        lambda x, o: (torch.add(x, 1, out=o), o * 2)[1],
        lambda: (rows(), empty()),
    ),
    "several": (
        lambda x, a, b: torch.max(x, 1, out=(a, b)),
        lambda: (rows(), empty(), empty(dtype=torch.long)),
    ),
    "sorted": (
        lambda x, a, b: torch.sort(x, out=(a, b)),
        lambda: (rows(), empty(), torch.zeros(3, dtype=torch.long)),
    ),
    "made inside": (lambda x: torch.add(x, 1, out=torch.empty(0)), lambda: (rows(),)),
    "made inside, used": (
        lambda x: (lambda o: (torch.matmul(x, x.t(), out=o), o.sum())[1])(torch.zeros(3)),
        lambda: (rows(),),
    ),
    "part": (
        lambda x, o: (torch.mul(x, 2, out=o[1]), o)[1],
        lambda: (torch.ones(4), torch.zeros(2, 4)),
    ),
    "smaller part": (
        lambda x, o: (torch.mul(x, 2, out=o[1]), o)[1],
        lambda: (torch.ones(3), torch.zeros(2, 4)),
    ),
    "input": (lambda x: torch.mul(x, 2, out=x), lambda: (rows(),)),
    "view of the input": (
        lambda x: torch.add(x[1:], 2, out=x[1:]),
        lambda: (torch.arange(4.0),),
    ),
    "input that is too small": (
        lambda x, y: torch.add(x, y, out=x),
        lambda: (torch.ones(4), torch.ones(2, 4)),
    ),
    "cat": (lambda x, o: torch.cat([x, x], out=o), lambda: (rows(), empty())),
    "sum": (lambda x, o: torch.sum(x, 1, out=o), lambda: (rows(), torch.zeros(5))),
    "arange": (lambda o: torch.arange(5, out=o), lambda: (empty(),)),
    "ones": (lambda o: torch.ones(3, out=o), lambda: (torch.zeros(2),)),
    "normal": (lambda o: torch.normal(0.0, 1.0, (2, 2), out=o), lambda: (empty(),)),
    "cumsum": (lambda x, o: torch.cumsum(x, 1, out=o), lambda: (rows(), empty())),
    "norm": (lambda x, o: torch.linalg.norm(x, out=o), lambda: (rows(), empty())),
    "twice": (
        lambda x, o: (torch.add(x, 1, out=o), torch.mul(x[0], 3, out=o))[1],
        lambda: (rows(), empty()),
    ),
}


def outcome(function, make):
    args = make()
    torch.manual_seed(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = function(*args)
        except UnsupportedError:
            raise
        except RuntimeError as error:
            return str(error), []
    results = list(result) if isinstance(result, tuple) else [result]
    tensors = [*results, *args]
    objects = [id(tensor) for tensor in tensors]
    found = [(t.shape, t.stride(), t.dtype, t.tolist(), objects.index(id(t))) for t in tensors]
    return found, [str(warning.message) for warning in caught]


def check(case, backend):
    function, make = CASES[case]
    compiled = funcaot.compile(function, backend=backend)
    wanted = outcome(function, make)
    try:
        found = outcome(compiled, make)
    except UnsupportedError as error:
        assert "resize" in str(error)  # noqa: PT017
        return str(error)
    assert found == wanted
    for _ in range(2):
        assert outcome(compiled, make)[0] == wanted[0]
    return None


@pytest.mark.parametrize("case", CASES)
def test_out(case):
    refused = check(case, "eager")
    assert refused is None or case in ("gaps", "room", "twice", "strides of the input")


@pytest.mark.parametrize("case", ["empty", "larger", "several"])
def test_out_on_the_default_backend(case):
    assert check(case, "inductor") is None
