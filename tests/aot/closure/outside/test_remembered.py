"""Functions that remember results and do more than compute, called inside of compiled ones."""

import functools
import os
import random
import time
import types

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import funcaot
from funcaot.errors import UnsupportedError
from tests.hostile import COMPILER

COUNTS = {"calls": 0}
LOG: list[int] = []
STATE = torch.zeros(3)
TOTAL = 0


class Counter:
    calls = 0


class Slots:
    __slots__ = ("calls",)


SLOTS = Slots()


def counts_in_dictionary(n):
    COUNTS["calls"] += 1
    return n * 2


def counts_in_object(n):
    Counter.calls += 1
    return n * 2


def appends(n):
    LOG.append(n)
    return n * 2


def counts_in_a_global(n):
    global TOTAL
    TOTAL += 1
    return n * 2


def counts_in_a_slot(n):
    SLOTS.calls += 1
    return n * 2


def draws_in_python(n):
    return n * random.random()


def draws_in_numpy(n):
    return n * float(np.random.rand())


def draws_from_the_system(n):
    return n * (os.urandom(1)[0] + 1)


def reads_the_clock(n):
    return n * time.perf_counter()


def reads_a_file(n):
    with open(__file__) as file:
        return n * len(file.readline())


def draws_a_tensor(n):
    return torch.rand(n)


def draws_into_a_tensor(n):
    return torch.empty(n).uniform_()


def draws_a_number(n):
    return n * torch.rand(()).item()


def drops(n):
    return torch.nn.functional.dropout(torch.ones(n))


def writes_to_a_tensor(n):
    STATE.add_(1)
    return n * 2


def writes_to_a_view(n):
    STATE[1:].mul_(2).add_(1)
    return STATE.sum() + n


DEEDS = (
    counts_in_dictionary,
    counts_in_object,
    appends,
    counts_in_a_global,
    counts_in_a_slot,
    draws_in_python,
    draws_in_numpy,
    draws_from_the_system,
    reads_the_clock,
    reads_a_file,
    draws_a_tensor,
    draws_into_a_tensor,
    draws_a_number,
    drops,
    writes_to_a_tensor,
    writes_to_a_view,
)
OF_THE_WORLD = (draws_from_the_system, reads_the_clock)


def as_function(function):
    return functools.cache(function)


def with_limit(function):
    return functools.lru_cache(maxsize=4)(function)


def of_a_partial(function):
    return functools.cache(functools.partial(function))


def of_a_method(function):
    return functools.cache(types.MethodType(lambda self, n: function(n), Counter()))


def in_another(function):
    inner = functools.cache(function)
    return functools.cache(lambda n: inner(n))


WAYS = (as_function, with_limit, of_a_partial, of_a_method, in_another)


def observed():
    return dict(COUNTS), Counter.calls, TOTAL, SLOTS.calls, [*LOG], STATE.tolist()


def reset():
    global TOTAL
    TOTAL = SLOTS.calls = 0
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    COUNTS["calls"] = Counter.calls = 0
    LOG.clear()
    STATE.zero_()


def session(deed, way, compile_):
    """Three calls with one key, two with another, and one with the first again."""
    reset()
    remembered = way(deed)
    function = compile_(lambda x: (x * remembered(x.shape[0])).sin().sum())
    found = []
    for n in (3, 3, 3, 5, 5, 3):
        x = torch.linspace(0, 1, n, requires_grad=True)
        result = function(x)
        found += [result.detach(), *torch.autograd.grad(result, x), observed()]
    rest = random.random(), float(np.random.rand()), torch.rand(2)
    return found, rest, remembered


def check(deed, way, backend):
    expected, expected_rest, _ = session(deed, way, lambda f: f)
    found, rest, remembered = session(
        deed, way, functools.partial(funcaot.compile, backend=backend)
    )
    if deed not in OF_THE_WORLD:
        assert_close(found, expected)
        assert_close(rest, expected_rest)
        return
    kept = {n: remembered(n) for n in (3, 5)}
    values = [each for each in found if isinstance(each, torch.Tensor) and not each.dim()]
    for n, value in zip((3, 3, 3, 5, 5, 3), values, strict=True):
        assert_close(value, (torch.linspace(0, 1, n) * kept[n]).sin().sum())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("deed", DEEDS)
def test_once_as_in_eager(deed, way):
    """Each call did it, or none was allowed to."""
    check(deed, way, COMPILER)


@pytest.mark.parametrize("deed", DEEDS)
def test_on_inductor(deed):
    check(deed, as_function, "inductor")


def test_results_from_before_stay():
    """A new one ended in what is remembered being forgotten."""
    reset()
    remembered = functools.cache(draws_a_tensor)
    before = remembered(3)
    compiled = funcaot.compile(lambda x: x * remembered(x.shape[0]), backend=COMPILER)
    for n in (5, 5, 3, 5):
        assert_close(compiled(torch.ones(n)), remembered(n))
    assert remembered(3) is before


def test_the_function_catches_errors():
    reset()
    remembered = functools.cache(draws_a_tensor)

    def run(x):
        try:
            return x * remembered(x.shape[0])
        except Exception:  # noqa: BLE001 (as code does that falls back on something)
            return x

    compiled = funcaot.compile(run, backend=COMPILER)
    for _ in range(3):
        assert_close(compiled(torch.ones(4)), remembered(4))


def test_what_only_computes_is_captured_at_once():
    """Tables that are written to part by part, too."""

    @functools.cache
    def table(n):
        made = torch.zeros(n, 2)
        made[:, 0] = torch.arange(n).float()
        made[:, 1].fill_(2.0).mul_(n)
        names = []
        names.append(n)
        return made

    compiled = funcaot.compile(lambda x: x.unsqueeze(1) * table(x.shape[0]), backend=COMPILER)
    for n in (3, 5, 3):
        x = torch.rand(n)
        result = compiled(x)
        assert table.cache_info().currsize == 0
        assert_close(result, x.unsqueeze(1) * table.__wrapped__(n))
    assert funcaot.report(compiled).cache_misses == 2


def test_what_is_never_remembered_is_refused_in_the_end():
    remembered = functools.lru_cache(maxsize=0)(draws_in_python)
    compiled = funcaot.compile(lambda x: x * remembered(3), backend=COMPILER)
    for _ in range(8):
        compiled(torch.ones(2))
    with pytest.raises(UnsupportedError, match="draws_in_python, which remembers results"):
        compiled(torch.ones(2))


class Scaled:
    """Two functions that remember results with one code, and the code called as it is."""

    def __init__(self, scale):
        def computed(n):
            parts = []
            parts.append(n * scale)
            LOG.append(n)
            return sum(parts)

        self.plain, self.remembered = computed, functools.cache(computed)


def test_code_that_is_called_itself():
    """What einops does: one module calls the remembering function, another what is in it."""

    def unfolded(n):
        factors = []
        factors.append(n)
        return factors

    remembered = functools.cache(unfolded)
    assert remembered(2) == [2]

    def run(x):
        return x * sum(unfolded(x.shape[0])) * remembered(2)[0]

    compiled = funcaot.compile(run, backend=COMPILER, fullgraph=True)
    for n in (3, 5, 3):
        x = torch.rand(n)
        assert_close(compiled(x), run(x))
    assert funcaot.report(compiled).cache_misses == 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_two_functions_with_one_code(order):
    """The one that runs is the one whose results are made anew."""

    def session(compile_):
        LOG.clear()
        both = [Scaled(2), Scaled(3)]
        function = compile_(lambda x: x * sum(both[i].remembered(x.shape[0]) for i in order))
        found = [[function(torch.ones(n)), [*LOG]] for n in (3, 3, 4, 3)]
        function = compile_(lambda x: x * both[0].remembered(7) * both[1].remembered(8))
        return found + [[function(torch.ones(n)), [*LOG]] for n in (3, 3, 4, 3)]

    plain = session(lambda f: f)
    assert_close(session(functools.partial(funcaot.compile, backend=COMPILER)), plain)


class Box:
    def __init__(self, items):
        self.items = items
        self.size = len(items)


def test_what_a_function_makes_itself_is_no_change():
    """Results for other keys are kept, and the call around it counts: as a layer with einops."""

    @functools.cache
    def parts(n):
        found = []
        found.append(n)
        counts = {"all": 0}
        counts["all"] += n
        return Box(found).size + counts["all"]

    def run(x):
        COUNTS["calls"] += 1
        return x * parts(x.shape[0])

    reset()
    parts(2)
    compiled = funcaot.compile(run, backend=COMPILER, dynamic=False)
    for n in (3, 5, 3, 5):
        x = torch.rand(n)
        assert_close(compiled(x), x * parts(n))
    assert COUNTS["calls"] == 4
    assert funcaot.report(compiled).cache_misses == 2


class Key:
    """Equal to every other one, whatever it holds."""

    def __init__(self, log):
        self.log = log

    def __eq__(self, other):
        return isinstance(other, Key)

    def __hash__(self):
        return 7


@pytest.mark.parametrize("before", [0, 1])
def test_what_is_changed_in_an_argument(before):
    @functools.cache
    def noted(key, n):
        key.log.append(n)
        return n * 2

    def session(compile_):
        noted.cache_clear()
        log = []
        for n in range(before):
            noted(Key([]), 10 + n)
        function = compile_(lambda x, log: x * noted(Key(log), x.shape[0]))
        return [(function(torch.ones(n), log), [*log]) for n in (3, 3, 5, 3)]

    compile_ = functools.partial(funcaot.compile, backend=COMPILER)
    assert_close(session(compile_), session(lambda f: f))
