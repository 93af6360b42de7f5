"""Where a function may store things: after each call it is there, as in eager."""

import contextvars
import functools
import types

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import funcaot
from funcaot.errors import LeakWarning, UnsupportedError
from tests.aot.state.state_cases import CASES


def plain(value):
    """A value that can be compared."""
    if isinstance(value, torch.Tensor):
        return value.detach().tolist(), value.requires_grad, value.is_leaf
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return [(key, plain(item)) for key, item in value.items()]
    return value


def run(make, *, compiled):
    function, state, arguments = make()
    if compiled:
        function = funcaot.compile(function, backend="eager")
    rows = []
    torch.manual_seed(1)
    for index in range(5):
        x = torch.full((3,), float(index + 1), requires_grad=index % 2 == 1)
        rows.append((plain(function(x, *arguments)), plain(state())))
    return rows


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_what_is_stored_is_as_in_eager(make):
    assert run(make, compiled=True) == run(make, compiled=False)


def test_what_is_only_counted_or_appended_changes_at_every_call_and_is_not_compared():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls, self.log, self.seen = 0, [], {"n": 0}

        def forward(self, x):
            self.calls += 1
            self.log.append("called")
            self.seen["n"] += 1
            return x * 2

    module = Counting()
    compiled = funcaot.compile(module, backend="eager")
    for _ in range(4):
        compiled(torch.ones(3))
        module.calls += 10
    assert funcaot.report(compiled).cache_misses == 1
    assert (module.calls, module.log, module.seen) == (44, ["called"] * 4, {"n": 4})


def test_appending_tensors_needs_one_compilation_however_long_the_list():
    kept = []

    @funcaot.compile(backend="eager")
    def function(x):
        y = x * 2
        kept.append(y)
        return y

    for _ in range(4):
        y = function(torch.ones(3))
        assert kept[-1] is y
    assert len(kept) == 4
    assert funcaot.report(function).cache_misses == 1


def test_nothing_of_a_refused_capture_is_kept():
    state = types.SimpleNamespace(h=None, n=0, log=[])

    @funcaot.compile(backend="eager")
    def function(x):
        state.h = x * 2
        state.log.append(x)
        state.n = state.n + 1
        return x * x.data_ptr()

    with pytest.raises(UnsupportedError):
        function(torch.ones(3))
    assert (state.h, state.log, state.n) == (None, [], 0)


def keeps_a_function(x, state={}):  # noqa: B006
    y = x * 2
    state["get"] = lambda: y
    return x


def keeps_in_a_set(x, state=set()):  # noqa: B006
    state.add(x * 2)
    return x


def returns_a_generator(x):
    return (x * i for i in range(3))


def keys_by_tensor(x, state={}):  # noqa: B006
    state[x * 2] = 1
    return x


def test_a_function_that_is_kept_is_each_calls_own():
    compiled = funcaot.compile(keeps_a_function, backend="eager")
    (kept,) = keeps_a_function.__defaults__
    for value in (1.0, 2.0, 3.0):
        compiled(torch.full((3,), value))
        assert torch.equal(kept["get"](), torch.full((3,), 2 * value))
    kept.clear()


@pytest.mark.parametrize(
    "function",
    [
        keeps_in_a_set,
        keys_by_tensor,
        returns_a_generator,
    ],
)
def test_refused(function):
    with pytest.raises(UnsupportedError, match=function.__name__):
        funcaot.compile(function, backend="eager")(torch.ones(3))
    assert not (function.__defaults__ or [None])[0]


def test_one_list_given_twice_and_changed_is_refused():
    @funcaot.compile(backend="eager")
    def function(first, second):
        first.append(second[0] * 2)
        return second[0]

    given = [torch.ones(3)]
    function(list(given), list(given))
    with pytest.raises(UnsupportedError, match="in two places"):
        function(given, given)


def test_a_list_that_is_given_and_closed_over_is_refused():
    held = [torch.ones(3)]

    @funcaot.compile(backend="eager")
    def function(given):
        given.append(held[0] * 2)
        return held[0]

    with pytest.raises(UnsupportedError, match="in another way"):
        function(held)


def test_what_is_put_into_the_keywords_of_a_partial_is_stored_in_every_call():
    held = functools.partial(lambda x, **kept: x * 2)

    def function(x):
        held.keywords["last"] = x * 3
        return held(x)

    compiled = funcaot.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0):
        compiled(torch.full((3,), value))
        assert_close(held.keywords["last"], torch.full((3,), 3 * value))


LAST = functools.partial(torch.add, 1)


def test_a_leak_is_named():
    def function(x):
        LAST.__setstate__((torch.add, (x * 3,), {}, None))
        return LAST(x)

    with pytest.warns(LeakWarning, match="LAST"):
        funcaot.compile(function, backend="eager")(torch.ones(3))


KEPT = contextvars.ContextVar("KEPT")


def test_a_context_variable_is_not_set():
    def function(x):
        KEPT.set(x * 3)
        return KEPT.get() * 2

    with pytest.raises(UnsupportedError, match="what a ContextVar holds"):
        funcaot.compile(function, backend="eager")(torch.ones(3))
    assert KEPT.get(None) is None


def test_under_vmap_and_grad():
    state = types.SimpleNamespace(last=None)

    def function(x):
        y = (x * x).sum()
        state.last = y
        return y

    compiled = funcaot.compile(function, backend="eager")
    x = torch.randn(4, 3)
    for run_it in (compiled, function, compiled):
        assert_close(torch.func.vmap(torch.func.grad(run_it))(x), 2 * x)
        assert type(state.last) is torch.Tensor
