"""Floats that a function reads by ``item()`` or ``float`` stay in its graph, and are eager's."""

import copy
import json
import math
import types
from collections import Counter, defaultdict, namedtuple

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_flatten

import funcaot
from tests.aot.signature.numbers_table import Scaled

HISTORY = {"total": 0.0, "count": 0, "best": 1e9}
KEPT = types.SimpleNamespace()
RATE = [0.0]
COUNTED = Counter()
FOUND = defaultdict(float)
Pair = namedtuple("Pair", ["first", "second"])


def start():
    HISTORY.clear()
    HISTORY.update(total=0.0, count=0, best=1e9)
    for counts in (COUNTED, FOUND):
        counts.clear()
        counts.update(calls=0, loss=0.0)
    vars(KEPT).clear()
    KEPT.mean, KEPT.values = 0.0, []
    RATE[0] = 0.0


# Each with the programs that it may take for six calls; None where each value has one. What calls
# ``float`` by itself takes one more, before it is known to.
CASES = {}


def case(programs):
    def add(function):
        CASES[function.__name__] = function, programs
        return function

    return add


@case(2)
def returned(x):
    return x.mean().item()


@case(2)
def in_containers(x):
    number = x.mean().item()
    return {"a": [number, (number, x * 1)], "b": {"c": number}}, [number]


@case(2)
def beside_tensors(x):
    number = x.mean().item()
    return x * number, number - x, x / (number + 9), torch.where(x > 0, x, number)


@case(2)
def factors_and_limits(x):
    number = x.abs().mean().item()
    mixed = torch.lerp(x, x * 2, number), torch.addcmul(x, x, x, value=number)
    return x.clamp(-number, number), x.add(x, alpha=number), *mixed


@case(2)
def other_dtypes(x):
    number = x.abs().mean().item()
    return x.half() * number, x.bfloat16() / number, x.long() * number, (x > 0) * number


@case(2)
def arithmetic(x):
    n = x.abs().mean().item()
    return 1 / n, n / 2, n / n, 2 - n, -n, abs(n), +n, n - 1, n * 3, 3 * n, True + n, n * len(x)


@case(2)
def division_by_zero(x):
    try:
        return 1 / (x * 0).sum().item()
    except ZeroDivisionError:
        return 7.0


@case(3)
def branch(x):
    return x * 2 if x.mean().item() > 0 else x * 3


@case(None)
def comparisons(x):
    n = x.mean().item()
    return n > 0, n < 0.1, n == n, max(n, 0.0), min(0.0, n), sorted([n, 0.05]), bool(n)


@case(2)
def not_a_number(x):
    n = (x.mean() * float("nan")).item()
    return n != n, bool(n), n > 0


@case(2)
def classes(x):
    n = x.mean().item()
    return isinstance(n, float), isinstance(n, int | float), type(n) is float


@case(2)
def mathematics(x):
    n = x.abs().mean().item()
    made = math.sqrt(n), math.exp(n), math.log(n), math.tanh(n), math.fabs(-n), math.pow(n, 2)
    return *made, n**2, (n - 9) ** 2, n**0.5, n**-1.5, 2**n, 0.5**n


@case(2)
def questions(x):
    n = (x.sum() / 0).item()
    alone = math.isfinite(x.mean()), math.isnan(x.mean()), math.isfinite(x.mean().item())
    return *alone, math.isinf(n), math.isnan(n - n), math.isfinite(n)


@case(None)
def what_python_alone_computes(x):
    n = x.abs().mean().item()
    return n // 0.3, n % 0.3, (-n) ** 0.5, round(n, 2), math.floor(n)


@case(None)
def where_python_raises(x):
    told = []
    for compute in (lambda: math.log(-x.abs().sum().item()), lambda: math.exp(1e3 * len(x))):
        try:
            told.append(compute())
        except (ValueError, OverflowError) as error:
            told.append(type(error).__name__)
    return told


@case(3)
def by_float(x):
    return float(x.mean()), float(x.mean().item()) * 2, [float(row.sum()) for row in x[:3]]


@case(3)
def by_float_in_a_map(x):
    return list(map(float, x[0])), sum(map(float, x[:2, 0])), max(0, 1)


@case(3)
def by_float_in_a_total(x):
    HISTORY["total"] += float(x.mean())
    return x * 2


@case(3)
def by_float_of_a_whole_number(x):
    count = (x > 0).sum()
    with torch.no_grad():
        count.add_(1)
    KEPT.mean = float(count) / 2
    return x * float(count), float(count.to(torch.uint8)[None]), KEPT.mean


@case(3)
def float_is_itself_elsewhere(x):
    kinds = {float: "real"}[float], isinstance(1.5, float), float("1.5"), float(3)
    return *kinds, float(x.sum()), x.to(float).dtype == torch.float64


@case(2)
def in_lists(x):
    return x[:2].tolist(), x.mean().tolist(), x[0].half().tolist()


@case(None)
def texts(x):
    n = x.mean().item()
    return f"{n:.3f}", str(n), round(n, 3), int(n * 10), json.dumps({"a": n})


@case(2)
def written_to_afterwards(x):
    y = x.clone()
    number = y.sum().item()
    y.zero_()
    return number, y.sum().item()


@case(3)
def running_total(x):
    HISTORY["total"] += x.mean().item() * len(x)
    HISTORY["count"] += len(x)
    return HISTORY["total"] / HISTORY["count"]


@case(3)
def running_mean(x):
    KEPT.mean = 0.9 * KEPT.mean + 0.1 * x.mean().item()
    return x * KEPT.mean


@case(None)
def best(x):
    number = x.mean().item()
    if number < HISTORY["best"]:
        HISTORY["best"] = number
    return x * 1


@case(2)
def appended(x):
    KEPT.values.append(x.mean().item())
    return x * 1


@case(2)
def appended_in_a_tuple(x):
    KEPT.values.append((x.mean().item(), 1))
    return x * 1


@case(2)
def appended_in_a_dictionary(x):
    number = x.mean().item()
    KEPT.values.append({"loss": number, "both": [number, (number, 1)]})
    return x * 1


@case(2)
def in_a_new_object(x):
    return types.SimpleNamespace(value=x.mean().item(), all=[x.sum().item()])


@case(2)
def in_a_named_tuple(x):
    return Pair(x.mean().item(), Pair(x.sum().item(), x * 2))


@case(2)
def kept_and_returned(x):
    made = {"loss": x.mean().item()}
    KEPT.values.append(made)
    return made, made


@case(3)
def updated(x):
    HISTORY.update(total=x.mean().item(), best=2 * x.mean().item())
    return x * 1


@case(4)
def with_a_key_that_is_new(x):
    HISTORY["total"] += x.mean().item()
    HISTORY["new"] = HISTORY.get("new", 0.0) + x.mean().item()
    return x * 1


@case(3)
def counted(x):
    COUNTED["calls"] += 1
    COUNTED["loss"] += x.mean().item()
    return x * COUNTED["calls"]


@case(3)
def with_a_default(x):
    FOUND["calls"] += 1
    FOUND["loss"] += x.mean().item()
    return x * FOUND["calls"]


@case(3)
def used_in_the_next_call(x):
    before, RATE[0] = RATE[0], x.mean().item()
    return x * before


@case(None)
def given_to_a_function(x):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(Scaled.apply(x, x.mean().item()).sum(), x)


@case(2)
def without_a_gradient(x):
    x = x.detach().requires_grad_()
    number = (x * x).mean().item()
    return torch.autograd.grad((x * number + number).sum(), x)


@case(2)
def of_other_layouts(x):
    return x[:1, :1].item(), x.sum(0, keepdim=True)[0, 0].item(), x.double().mean().item() * 3


def shown(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.float().tolist()
    if isinstance(value, types.SimpleNamespace):
        return vars(value)
    return type(value), value


def seen(called):
    start()
    found = []
    for seed in range(6):
        x = torch.randn(4 + (seed == 4), 3, generator=torch.Generator().manual_seed(seed))
        leaves, tree = tree_flatten(called(x))
        kept = dict(HISTORY), KEPT.mean, copy.deepcopy(KEPT.values), list(RATE)
        kept += dict(COUNTED), dict(FOUND)
        found.append(([shown(leaf) for leaf in leaves], str(tree), kept))
    return found


def check(name, backend):
    function, programs = CASES[name]
    compiled = funcaot.compile(function, backend=backend)
    expected, actual = seen(function), seen(compiled)
    for one, other in zip(actual, expected, strict=True):
        assert close(one, other, 1e-6 if backend == "eager" else 1e-4)
    if programs is not None:
        assert funcaot.report(compiled).cache_misses <= programs


def close(one, other, tolerance):
    ones, others = (tree_flatten(each)[0] for each in (one, other))
    return len(ones) == len(others) and all(
        a == b or (a != a and b != b) or math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)
        for a, b in zip(ones, others, strict=True)
    )


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("name", CASES)
def test_as_in_eager(name):
    check(name, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, (_, programs) in CASES.items() if programs])
def test_with_inductor(name):
    check(name, "inductor")


def test_a_training_step_that_returns_its_loss():
    """One program for the first call, which finds no gradients, and one for all others."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    @funcaot.compile(backend="eager")
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    losses = [step(torch.ones(4, 3)) for _ in range(5)]
    assert all(type(loss) is float for loss in losses)
    assert losses == sorted(losses, reverse=True)
    assert len({*losses}) == 5
    assert funcaot.report(step).cache_misses == 2


def test_code_that_takes_floats_alone():
    """It fails with what stands for one; then the function is captured with its value."""

    def function(x):
        return x * len(float.hex(x.sum().item()))

    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 0.1, 3.0):
        x = torch.full((2,), value)
        assert compiled(x).tolist() == function(x).tolist()


def test_numbers_that_arent_to_be_left_open():
    with funcaot.config.patch(open_numbers=False):
        compiled = funcaot.compile(returned, backend="eager")
        for value in (1.0, 2.0, 3.0):
            assert compiled(torch.full((2,), value)) == value
    assert funcaot.report(compiled).cache_misses == 3


class Doubles(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found * 2 if func is torch.Tensor.item else found


@pytest.mark.parametrize(
    "make",
    [lambda x: TwoTensor(x, x * 3), lambda x: x.as_subclass(Doubles)],
    ids=["wrapper", "own class"],
)
def test_of_classes_that_say_what_their_number_is(make):
    def function(x):
        number = x.mean().item()
        return x * number + number

    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0):
        x = make(torch.full((2,), value))
        assert repr(compiled(x)) == repr(function(x))


@pytest.mark.parametrize("scheduled", [False, True])
def test_momentum_of_running_statistics(scheduled):
    """With no momentum, a layer counts its calls in a tensor, and takes ``1 / float(calls)``."""
    here, there = nn.BatchNorm1d(3, momentum=None), nn.BatchNorm1d(3, momentum=None)
    compiled = funcaot.compile(here, backend="eager")
    for step in range(5):
        x = torch.randn(4, 3)
        for layer, call in ((here, compiled), (there, there)):
            layer.momentum = 1 / (step + 2) if scheduled else None
            layer.train(step != 3)
            layer.result = call(x)
        torch.testing.assert_close(here.result, there.result)
        torch.testing.assert_close(here.state_dict(), there.state_dict())
        assert here.running_mean._version == there.running_mean._version
    assert funcaot.report(compiled).cache_misses <= 4
