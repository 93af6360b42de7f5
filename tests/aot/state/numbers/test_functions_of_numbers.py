"""Functions of Python that make a number of numbers: two programs serve all of them."""

import builtins
import copy
import math

import pytest
import torch

import funcaot
from tests.aot.state.test_open_settings import agree, sampled

pytestmark = pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
LONG = (pytest.mark.slow, pytest.mark.long)
EDGES = (0.5, 1.5, -0.0, 0.0, math.nan, 2.5, 1.0, math.inf, -3.0, 2, True, 1, 0, -math.inf)
STEPS = tuple(range(3, 11))

OPEN = {
    "warm_up": lambda x, n: x * min(1.0, n / 5),
    "floor": lambda x, n: x * max(0.1, 1 - n / 10),
    "between": lambda x, n: x * max(0.0, min(1.0, (n - 4) / 5)),
    "several": lambda x, n: x * max([0.5, n / 4, 1.0]) + min(n, 7, 5),
    "cosine": lambda x, n: x * math.cos(math.pi * min(n, 6) / 6),
    "rounded": lambda x, n: x * round(n / 3, 1) + round(n / 3),
    "divided": lambda x, n: x * divmod(n, 3)[0] + divmod(7.5, n)[1],
    "bits": lambda x, n: x * ((n & 6) | 1) + (n ^ 2) + (1 << n) + (n >> 1),
    "whole": lambda x, n: x * math.trunc(n / 3) + math.gcd(n, 4),
    "angles": lambda x, n: x * math.cos(math.radians(n * 18)) + math.atan2(n, 3),
    "others": lambda x, n: x * math.hypot(n, 1) + math.copysign(2, n) + math.fmod(n, 3),
}


@pytest.mark.parametrize("name", sampled(OPEN, "between", "several", "bits"))
def test_two_programs(name):
    assert agree("attribute", OPEN[name], STEPS) == 2


RESULTS = {
    "least": lambda x, v: (x * min(v, 1.0), min(v, 1.0), min(1.0, v)),
    "greatest": lambda x, v: (x * max(0.0, v), max(v, 1), max(1, v)),
    "of_a_list": lambda x, v: (max([v, 1, 0.3]), max((v, 0.3)), max(v, 2.0, key=lambda a: -a)),
    "of_others": lambda x, v: (max((v, 1), (0.5, 2)), min(iter([v, 1.0])), max([], default=v)),
    "of_a_tensor": lambda x, v: max(torch.tensor(v), x.detach().sum()),
    "of_one": lambda x, v: (x, min(v)),
    "of_text": lambda x, v: (x, min(3, v, "a")),
    "mapped": lambda x, v: (x, list(map(min, [1, v], [0.5, 0.7]))),
    "itself": lambda x, v: (x, max is builtins.max, (min,)[0] is builtins.min, max(v, 1)),
    "rounded": lambda x, v: (x * round(v, 1), round(v * 3, 0), round(v, None), round(v)),
    "caught": lambda x, v: _or_seven(x, v),
    "divided": lambda x, v: (x * divmod(v, 0.5)[1], *divmod(v, 2), *divmod(7, v)),
    "bits": lambda x, v: (v & 1, v | 2, v ^ 3, 1 << v, v >> 1),
    "asked": lambda x, v: (x, math.isnan(v), math.isclose(v, 1.4, rel_tol=0.5)),
}


def _or_seven(x, v):
    try:
        return x * round(v)
    except (ValueError, OverflowError):
        return x * 7


@pytest.mark.parametrize("name", sampled(RESULTS, "least", "of_one", "itself"))
def test_edges(name):
    agree("closure", RESULTS[name], EDGES if name != "caught" else EDGES[:7])


@pytest.mark.parametrize(
    "scale",
    [
        math.nan,
        *(pytest.param(each, marks=LONG) for each in (1.0, 1e4, math.inf)),
    ],
)
def test_extremes_in_a_step_are_computed_in_the_graph(scale):
    model = torch.nn.Linear(3, 2)
    others = copy.deepcopy(model)

    def stepping(model):
        optimizer = torch.optim.Adafactor(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step

    eager, compiled = stepping(model), funcaot.compile(stepping(others), backend="eager")
    for number in range(6):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(number))
        x *= scale if number > 3 else 0.01**number
        eager(x)
        compiled(x)
        for want, have in zip(model.parameters(), others.parameters(), strict=True):
            torch.testing.assert_close(have, want, equal_nan=True)
    assert len(funcaot.report(compiled).entries) == 1
