"""What Python's functions make of sizes stays open: ``float``, ``int``, ``round``, ``math``.

The oracle is the function in eager mode.
"""

import math
import pickle

import pytest
import torch

import funcaot

CASES = {
    "float": lambda x: x.sum() / float(x.shape[0]),
    "float of two": lambda x: x.sum() * (float(x.shape[0]) / float(x.shape[1])),
    "int of a float": lambda x: x[: int(x.shape[0] * 0.5)],
    "int of a root": lambda x: x[: int(math.sqrt(x.shape[0]))],
    "sqrt": lambda x: x.sum() / math.sqrt(x.shape[0]),
    "sqrt of a quotient": lambda x: x.sum() / math.sqrt(x.shape[0] / 3),
    "log": lambda x: torch.logsumexp(x, 0) - math.log(x.shape[0]),
    "log of a quotient": lambda x: x * math.log(x.shape[0] / 3),
    "exp": lambda x: x * math.exp(-x.shape[0]),
    "log2": lambda x: x * math.log2(x.shape[0]),
    "cos": lambda x: x * math.cos(x.shape[0]),
    "power": lambda x: x.sum() / x.shape[0] ** 0.5,
    "ceil": lambda x: x[: math.ceil(x.shape[0] / 2)],
    "floor": lambda x: x[: math.floor(x.shape[0] / 2)],
    "round": lambda x: x[: round(x.shape[0] * 0.5)],
    "mapped": lambda x: x + torch.zeros([*map(int, x.shape)]),
    "in a tensor": lambda x: x * torch.tensor(float(x.shape[0])),
}


def _check(compiled, function, sizes):
    for size in sizes:
        x = torch.rand(size, 3, dtype=torch.float64, requires_grad=True)
        found, expected = compiled(x), function(x)
        torch.testing.assert_close(found, expected)
        gradients = (torch.autograd.grad(y.exp().sum(), x)[0] for y in (found, expected))
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_one_program_for_all_sizes(function):
    compiled = funcaot.compile(function, backend="eager")
    _check(compiled, function, (8, 9, 10, 13, 5, 9, 30))
    assert funcaot.report(compiled).cache_misses <= 2


@pytest.mark.slow
@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_on_inductor(function):
    compiled = funcaot.compile(function)
    _check(compiled, function, (8, 9, 10, 13))
    assert funcaot.report(compiled).cache_misses <= 2


def test_sizes_that_are_marked():
    function = CASES["int of a float"]
    compiled = funcaot.compile(function, backend="eager")
    for size in (8, 9, 10):
        x = torch.rand(size, 3, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), function(x))
    assert funcaot.report(compiled).cache_misses <= 2


@pytest.mark.parametrize("make", [int, float])
def test_a_class_that_is_called_is_itself_afterwards(make):
    def function(x):
        number = float(x.shape[0]) if make is float else int(x.shape[0] / 2)
        assert float is make or int is make
        assert isinstance(number, make)
        return x * number

    compiled = funcaot.compile(function, backend="eager")
    _check(compiled, function, (8, 9, 10, 13))


def test_a_number_that_has_to_be_one():
    def function(x):
        return torch.nn.functional.layer_norm(x, (3,), eps=1 / float(x.shape[0]))

    compiled = funcaot.compile(function, backend="eager")
    _check(compiled, function, (8, 9, 10, 8))


@pytest.mark.parametrize(
    "function",
    [lambda x: x * math.log(x.shape[0] - 9), lambda x: x * math.sqrt(x.shape[0] - 10)],
    ids=["log", "sqrt"],
)
def test_what_has_no_result_raises(function):
    compiled = funcaot.compile(function, backend="eager")
    for size in (12, 13, 9):
        x = torch.rand(size, 3)
        if size > 10:
            torch.testing.assert_close(compiled(x), function(x))
            continue
        for each in (function, compiled):
            with pytest.raises(ValueError, match=r"math domain error|expected"):
                each(x)


LOG = math.log
RATES = {math.log: 2.0, math.exp: 3.0}
KEPT: list = []


def _is_same(x, f=LOG):
    return x * 2 if f is math.log else x


def _is_same_of_an_alias(x, f=LOG):
    m = math
    return x * 2 if f is m.log else x


def _looked_up(x):
    return x * RATES[math.log]


def _keeps(x):
    KEPT.append(math.log)
    return x


def _keeps_and_calls(x):
    f = math.sqrt
    KEPT.append(f)
    return x * f(4.0) * math.sqrt(x.shape[0])


@pytest.mark.parametrize(
    "function", [_is_same, _is_same_of_an_alias, _looked_up, _keeps, _keeps_and_calls]
)
def test_functions_of_math_that_are_kept_are_themselves(function):
    KEPT.clear()
    compiled = funcaot.compile(function, backend="eager")
    _check(compiled, function, (8, 9, 10, 13))
    assert not [f for f in KEPT if f not in (math.log, math.sqrt) or type(f) is not type(len)]
    assert funcaot.report(compiled).cache_misses <= 2


def test_what_stands_for_a_function_of_math_passes_for_it():
    def function(x):
        found = getattr(math, "log")  # noqa: B009
        assert found == math.log
        assert {math.log: 1}[found] == 1
        assert pickle.loads(pickle.dumps(found)) == math.log
        return x * found(x.shape[0])

    compiled = funcaot.compile(function, backend="eager")
    _check(compiled, function, (8, 9, 10))
