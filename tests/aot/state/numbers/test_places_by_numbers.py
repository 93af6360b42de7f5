"""Sizes and places that a number decides which the function reads by itself."""

import copy
import types

import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import funcaot
from tests.aot.state.test_open_settings import agree, sampled

pytestmark = pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
LONG = (pytest.mark.slow, pytest.mark.long)
TABLE = torch.linspace(-1, 1, 320).reshape(40, 8)
VECTOR = torch.linspace(0.5, 2, 40)
STEPS = (3, 4, 5, 6, 1, 0, 7, 8)

USES = {
    "item": lambda x, n: x * VECTOR[n],
    "row": lambda x, n: x[:8] * TABLE[n],
    "from_the_end": lambda x, n: x[:8] * TABLE[-1 - n],
    "two_places": lambda x, n: x * TABLE[n, n % 8],
    "column": lambda x, n: x * TABLE[:24, n % 8],
    "slice": lambda x, n: x[: n + 2] * 2,
    "window": lambda x, n: x[n % 4 : n % 4 + 4] * 2,
    "written": lambda x, n: _written(x, n),
    "added": lambda x, n: _added(x, n),
    "select": lambda x, n: x[:8] * TABLE.select(0, n),
    "narrow": lambda x, n: TABLE.narrow(0, n, 2) * x[:8],
    "roll": lambda x, n: x.roll(n),
    "arange": lambda x, n: x.sum() * torch.arange(n + 2),
    "positions": lambda x, n: x * torch.sin(torch.arange(n, n + 24) / 10),
    "filled": lambda x, n: x + torch.full((24,), n),
    "made": lambda x, n: x + torch.tensor(n),
    "compared": lambda x, n: x * (torch.arange(24) == n),
    "masked": lambda x, n: torch.where(torch.arange(24) < n, x, 0.0),
    "expanded": lambda x, n: x.expand(n + 2, 24) * 2,
    "largest": lambda x, n: x.topk(min(n + 1, 8)).values,
    "one_hot": lambda x, n: torch.nn.functional.one_hot(torch.tensor(n % 24), 24) * x,
    "rounded": lambda x, n: x[: round(n / 3) + 2] * 2,
}


def _written(x, n):
    rows = TABLE.clone()
    rows[n % 4] = x[:8]
    return rows


def _added(x, n):
    rows = VECTOR.clone()
    rows[n] += 1
    return rows * x.sum()


@pytest.mark.parametrize("name", sampled(USES, "window", "written"))
def test_few_programs(name):
    assert agree("attribute", USES[name], STEPS) <= 5


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("place", ["entry", "item", "closure", "global", "class", "module"])
def test_wherever_the_number_is(place):
    assert agree(place, USES["written"], STEPS) <= 4


STATES = {}


def state(**values):
    def add(function):
        STATES[function.__name__] = values, function
        return function

    return add


@state(n=0, ring=torch.zeros(3, 2, 4))
def ring(own, x):
    y = torch.dropout(x, 0.5, train=True)
    own.ring[own.n % 3] = y.detach()
    own.n += 1
    return (y * own.ring.mean(0)).sum()


@state(n=0, queue=torch.zeros(8, 4))
def queue(own, x):
    own.queue[own.n : own.n + 2] = x.detach()
    own.n = (own.n + 2) % 8
    return x @ own.queue.T


@state(n=0, keys=torch.zeros(16, 4))
def cache_of_keys(own, x):
    own.keys[own.n : own.n + 1] = x.detach().sum(0)
    own.n += 1
    return x @ own.keys[: own.n].T


@state(n=0, rows=torch.arange(40.0).reshape(10, 4))
def a_view(own, x):
    own.n += 1
    return own.rows[own.n], x * 2


@state(n=0, rows=torch.arange(40.0).reshape(10, 4), history=[])
def a_history(own, x):
    own.history.append(own.n)
    own.n += 1
    return x * own.rows[own.n]


@state(n=0, rate=0.1, rows=torch.arange(40.0).reshape(10, 4))
def a_rate_beside_a_slice(own, x):
    own.n += 1
    own.rate *= 0.9
    return own.rows[: own.n + 1].sum() * x * own.rate


@state(n=0, items=torch.arange(5.0))
def out_of_range(own, x):
    own.n += 1
    return own.items[own.n] * x


@state(n=0, items=torch.arange(5.0))
def caught(own, x):
    own.n += 1
    try:
        found = own.items[own.n]
    except IndexError:
        found = x.sum()
    return found * x


@state(n=3, items=torch.arange(9.0))
def below_zero(own, x):
    own.n -= 1
    return own.items[own.n] * x


@state(n=0, rows=torch.arange(40.0).reshape(10, 4))
def a_gradient(own, x):
    own.n += 1
    (gradient,) = torch.autograd.grad((x**3 * own.rows[own.n]).sum(), x, create_graph=True)
    return (gradient * own.rows[(own.n + 1) % 10]).sum()


@state(n=0)
def a_history_beside_a_number_of_a_tensor(own, x):
    own.n += 1
    own.last = [own.n, own.n / 2]
    return x[0, : int(x.detach().argmax()) % 3 + 1]


def made(name):
    values, function = STATES[name]
    own = types.SimpleNamespace(
        **{
            key: value.clone() if isinstance(value, torch.Tensor) else type(value)(value)
            for key, value in values.items()
        }
    )
    return own, lambda x: function(own, x)


def run(function, seed):
    torch.manual_seed(seed)
    x = torch.randn(2, 4).requires_grad_()
    try:
        results = tree_leaves(function(x))
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__]
    sum(each.square().sum() for each in results if each.requires_grad).backward()
    views = [each._base is not None for each in results]
    return [*(each.detach().clone() for each in results), views, x.grad, torch.rand(())]


def check(name, backend):
    (own, eager), (others, function) = made(name), made(name)
    compiled = funcaot.compile(function, backend=backend)
    for seed in range(7):
        found, wanted = run(compiled, seed), run(eager, seed)
        if isinstance(wanted[0], str):
            assert found == wanted
        else:
            assert_close(found, wanted)
        assert_close(vars(others), vars(own))
    return len(funcaot.report(compiled).entries)


@pytest.mark.parametrize("name", sampled(STATES, "a_history", "a_rate_beside_a_slice"))
def test_state(name):
    assert check(name, "eager") <= 6


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("name", ["cache_of_keys", "a_view", "a_gradient"])
def test_state_on_inductor(name):
    check(name, "inductor")


@pytest.mark.parametrize("kind", ["SGD", pytest.param("Adam", marks=LONG)])
def test_in_a_function_that_steps_an_optimizer(kind):
    model = torch.nn.Linear(4, 2)
    others = copy.deepcopy(model)
    own, theirs = (types.SimpleNamespace(n=0, losses=torch.zeros(8)) for _ in range(2))

    def stepping(model, own):
        optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            optimizer.step()
            own.losses[own.n] = loss.detach()
            own.n += 1

        return step

    eager = stepping(model, own)
    compiled = funcaot.compile(stepping(others, theirs), backend="eager")
    for _ in range(6):
        eager(torch.ones(2, 4))
        compiled(torch.ones(2, 4))
        assert_close(vars(theirs), vars(own))
        assert_close(list(others.parameters()), list(model.parameters()))
    assert len(funcaot.report(compiled).entries) <= 4
