"""Numbers among the arguments stay open after their second value; eager says what is right."""

import gc
import math
import threading
import types

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils._pytree import tree_leaves

import funcaot
from tests.aot.signature.numbers_table import BRANCHES, COMPUTED, SETTLED, WHOLE, Scaled, hooked
from tests.hostile import COMPILER

FLOATS = (0.25, 0.5, 0.75, 0.1, 1.25, 0.0, -0.5, 0.25, 2.0, 3.5)
INTS = (2, 3, 4, 6, 12, 8, 1, 0, -3, 4, 2)


def programs(compiled):
    return len(funcaot.report(compiled).entries)


def run(function, x, number):
    """Results, and two derivatives of their sum, or how it fails."""
    try:
        found = tree_leaves(function(x, number))
    except Exception as error:  # noqa: BLE001
        return [type(error).__name__]
    results = [
        leaf.detach() if isinstance(leaf, torch.Tensor) else (type(leaf).__name__, str(leaf))
        for leaf in found
    ]
    ended = [leaf for leaf in found if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
    if not ended:
        return results
    total = sum(leaf.abs().float().square().sum() for leaf in ended)
    (first,) = torch.autograd.grad(total, x, create_graph=True)
    results.append(first.detach())
    if first.requires_grad:
        results += torch.autograd.grad(first.square().sum(), x, allow_unused=True)
    return results


def agree(function, compiled, values, size=6):
    for seed, value in enumerate(values):
        x = torch.randn(size, generator=torch.Generator().manual_seed(seed)).requires_grad_()
        wanted, found = run(function, x, value), run(compiled, x, value)
        assert len(wanted) == len(found), value
        for want, have in zip(wanted, found, strict=True):
            if isinstance(want, torch.Tensor):
                assert have.dtype == want.dtype
                assert_close(have, want, equal_nan=True)
            else:
                assert want == have


@pytest.mark.parametrize("name", COMPUTED)
def test_what_is_computed_with_takes_two_programs(name):
    compiled = funcaot.compile(COMPUTED[name], backend="eager")
    agree(COMPUTED[name], compiled, FLOATS)
    assert programs(compiled) == 2


@pytest.mark.parametrize("name", BRANCHES)
def test_a_branch_has_a_program_for_each_answer(name):
    compiled = funcaot.compile(BRANCHES[name], backend="eager")
    agree(BRANCHES[name], compiled, FLOATS)
    assert programs(compiled) in (2, 3)


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("name", SETTLED)
def test_what_needs_the_number_has_a_program_for_each(name):
    compiled = funcaot.compile(SETTLED[name], backend="eager")
    agree(SETTLED[name], compiled, FLOATS)
    assert programs(compiled) > 3


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers(name):
    function, expected = WHOLE[name]
    compiled = funcaot.compile(function, backend="eager")
    values = INTS[:6] if name in ("item", "view") else INTS
    agree(function, compiled, values, 24)
    first_six = 6 if expected is None else expected
    own = {1, 0, -3} & set(values) if name not in ("view",) else set()
    assert programs(compiled) >= first_six
    if expected is not None:
        assert programs(compiled) <= expected + len(own)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["arithmetic", "rdiv", "written", "bfloat16", "int64", "lerp", "sine", "returned", "clipped"],
)
def test_on_inductor(name):
    compiled = funcaot.compile(COMPUTED[name])
    agree(COMPUTED[name], compiled, (0.25, 0.5, 0.75, -0.1))
    assert programs(compiled) == 2


@pytest.mark.parametrize("name", ["arithmetic", "written", "bfloat16", "clamp", "addcdiv"])
def test_on_a_hostile_compiler(name):
    compiled = funcaot.compile(COMPUTED[name], backend=COMPILER)
    agree(COMPUTED[name], compiled, FLOATS)


def descend(weight, x, rate):
    loss = (x @ weight).square().mean()
    (gradient,) = torch.autograd.grad(loss, weight)
    with torch.no_grad():
        weight -= rate * gradient
    return loss.detach()


def test_twenty_learning_rates_take_two_programs():
    x, start = torch.randn(8, 4), torch.randn(4, 2)
    compiled = funcaot.compile(descend, backend="eager")
    here, there = start.clone().requires_grad_(), start.clone().requires_grad_()
    for step in range(20):
        rate = 0.1 * (1 + math.cos(math.pi * step / 20))
        assert_close(compiled(here, x, rate), descend(there, x, rate))
        assert_close(here.detach(), there.detach())
    assert programs(compiled) == 2


@pytest.mark.parametrize("place", ["argument", "attribute"])
def test_special_numbers_first_say_nothing_of_others(place):
    """A dropout that starts at 0 or 1, as a schedule does, stays open after that."""
    held = types.SimpleNamespace(p=0.5)

    def function(x, p):
        return torch.dropout(x, held.p if p is None else p, train=True)

    compiled = funcaot.compile(function, backend="eager")
    x = torch.rand(20)
    for p in (0.5, 1.0, 0.0, 0.25, 0.75, 0.3, 0.1):
        held.p = p
        found = []
        for call in (function, compiled):
            torch.manual_seed(0)
            found.append(call(x, p if place == "argument" else None))
        assert_close(found[1], found[0])
    assert programs(compiled) == 4


def test_generated_code_takes_calls_of_other_numbers():
    compiled = funcaot.compile(lambda x, a: x * a if a < 5 else x, backend="eager")
    for value in (1.0, 2.0, 3.0, 3.5):
        compiled(torch.ones(3), value)
    calls = compiled.entries[1].calls
    with funcaot.config.patch(fast_path=True):
        assert compiled._cache.first((torch.ones(3), 4.0), {}).tolist() == [4.0] * 3
        assert repr(compiled._cache.first((torch.ones(3), 6.0), {})) == "MISS"
        assert repr(compiled._cache.first((torch.ones(3), 4), {})) == "MISS"
    assert compiled.entries[1].calls == calls + 1
    assert compiled(torch.ones(3), 6.0).tolist() == [1.0] * 3


def test_generated_code_computes_with_the_number_of_its_call():
    function = lambda x, a: (x * a**2, round(a, 1), {"a": a})  # noqa: E731
    compiled = funcaot.compile(function, backend="eager")
    for value in (1.25, 2.5, 3.5, 3.75):
        compiled(torch.ones(3), value)
    with funcaot.config.patch(fast_path=True):
        found = compiled._cache.first((torch.ones(3), 4.125), {})
    assert repr(found) == repr(function(torch.ones(3), 4.125))


def test_transforms_over_a_compiled_function():
    compiled = funcaot.compile(lambda x, a: (x.sin() * a).sum(), backend="eager")
    for value in (1.0, 2.0, 3.0, 4.0):
        x = torch.randn(3, 4)
        found = torch.vmap(torch.func.grad(compiled), in_dims=(0, None))(x, value)
        assert_close(found, x.cos() * value)
        assert_close(
            torch.func.jvp(lambda z, a=value: compiled(z, a), (x,), (x,))[1],
            (x.cos() * value * x).sum(),
        )


def test_numbers_in_containers_and_by_name():
    compiled = funcaot.compile(lambda x, *, s: x * s["a"][0] + s["b"], backend="eager")
    for value in (1.5, 2.5, 3.5, 4.5):
        assert compiled(torch.ones(1), s={"a": [value], "b": 2.0}).item() == value + 2
    assert programs(compiled) == 2


BY_A_SIZE = {
    "divided": lambda x, a: x * (a / x.shape[0]),
    "computed": lambda x, a: x * (1 - a**2 / x.shape[0]) + x[: min(x.shape[0], 3)].sum(),
    "whole": lambda x, a: x * (int(a * 4) / x.shape[0]),
}


@pytest.mark.parametrize("name", BY_A_SIZE)
def test_a_number_by_a_size_that_is_open_too(name):
    compiled = funcaot.compile(BY_A_SIZE[name], backend="eager")
    for size, value in ((5, 1.5), (6, 2.25), (7, 0.75), (9, 3.5)):
        x = torch.randn(size)
        assert_close(compiled(x, value), BY_A_SIZE[name](x, value))
    assert programs(compiled) == 2


def counts(x, state):
    state["step"] += 1
    state["rates"][0] *= 0.5
    return x * state["step"] * state["rates"][0] ** 2


def test_numbers_that_change_in_an_argument():
    compiled = funcaot.compile(counts, backend="eager")
    x, found, wanted = torch.ones(2), {"step": 2, "rates": [64.0]}, {"step": 2, "rates": [64.0]}
    for _ in range(4):
        assert torch.equal(compiled(x, found), counts(x, wanted))
        assert repr(found) == repr(wanted)
    assert programs(compiled) == 2


def late(x, n):
    class Late(torch.autograd.Function):
        @staticmethod
        def forward(ctx, z):
            ctx.factor = n * 2
            return z * n

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.factor * 0.9**n

    return Late.apply(x.sin()) * n**2


def given(x, n):
    return Scaled.apply(x.sin(), n) * 0.9**n


def checkpointed(x, n):
    body = lambda z: z.sin() * 0.9**n * n  # noqa: E731
    return torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)


LATE = {"closed over": late, "kept": given, "hook": hooked, "checkpoint": checkpointed}


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("name", LATE)
def test_each_backward_has_the_number_of_its_own_call(name):
    function, found, wanted = LATE[name], [], []
    compiled = funcaot.compile(function, backend="eager")
    for call, kept in ((compiled, found), (function, wanted)):
        inputs = [torch.linspace(0, 1, 4, requires_grad=True) for _ in range(4)]
        results = [call(x, n) for x, n in zip(inputs, (3, 4, 2.5, 4), strict=True)]
        for x, result in reversed([*zip(inputs, results, strict=True)]):
            kept.extend(torch.autograd.grad(result.sum(), x))
    assert_close(found, wanted)


KINDS = {
    "power": lambda x, n: x * 0.9 ** min(n, 9) + (n % 7 if abs(n) < math.inf else 0),
    "kind": lambda x, n: x * [isinstance(n, k) for k in (bool, int, float)].index(True),
    "returned": lambda x, n: (x * float(n), n, n * n),
    "looked up": lambda x, n: x * {1: 2.0, 2.5: 3.0}.get(n, 5.0),
    "caught": lambda x, n: x * (math.sqrt(n) if n >= 0 else -1) * (1 if n == n else 2),
    "tensor": lambda x, n: (x + torch.tensor(n), torch.tensor([n, 1]).dtype),
}
SPECIAL = (3, 4, 5, 1, True, 2.5, 3.5, 1.0, -2, -3, 0, False, -0.0, 0.0, math.nan, math.inf, 1.5)
HUGE = (2**31, 2**53 + 1, 2**70, np.float64(1.5), np.int64(4), 6, 4.5)


@pytest.mark.filterwarnings("ignore::funcaot.errors.RecompileWarning")
@pytest.mark.parametrize("values", [SPECIAL, HUGE], ids=["special", "huge"])
@pytest.mark.parametrize("name", KINDS)
def test_numbers_of_all_kinds_one_after_another(name, values):
    compiled = funcaot.compile(KINDS[name], backend="eager")

    def said(function, value):
        try:
            return repr(function(torch.ones(2), value))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            return type(error)

    for value in values:
        assert said(compiled, value) == said(KINDS[name], value), value


class Kept(torch.nn.Module):
    def forward(self, x, a):
        self.last = a
        return x * a


def test_a_number_that_is_kept_is_the_plain_one():
    module = Kept()
    compiled = funcaot.compile(module, backend="eager")
    for value in (1.5, 2.5, 3.5):
        compiled(torch.ones(2), value)
        assert type(module.last) is float
        assert module.last == value


def test_nothing_stays_open_where_that_is_asked_for():
    for options in ({"dynamic": False}, {}):
        compiled = funcaot.compile(lambda x, a: x * a, backend="eager", **options)
        with funcaot.config.patch(open_numbers=bool(options)):
            for value in (1.0, 2.0, 3.0, 4.0):
                assert compiled(torch.ones(1), value).item() == value
        assert programs(compiled) == 4


def test_an_error_of_the_users_leaves_the_number_open():
    def picky(x, a):
        if a > 5:
            raise ValueError("too much")
        return x * a

    compiled = funcaot.compile(picky, backend="eager")
    for value in (1.0, 2.0):
        compiled(torch.ones(2), value)
    with pytest.raises(ValueError, match="too much"):
        compiled(torch.ones(2), 6.0)
    for value in (3.0, 4.0):
        assert compiled(torch.ones(1), value).item() == value
    assert programs(compiled) <= 3
    with pytest.raises(ZeroDivisionError):
        funcaot.compile(lambda x, a: x * (1 / a), backend="eager")(torch.ones(2), 0.0)


def test_a_division_by_zero_later():
    compiled = funcaot.compile(lambda x, a: x * (1 / a), backend="eager")
    for value in (1.0, 2.0, 4.0):
        assert compiled(torch.ones(1), value).item() == 1 / value
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(1), 0.0)
    assert programs(compiled) == 2


def test_threads_that_bring_other_numbers():
    compiled = funcaot.compile(lambda x, a: x * a + 1, backend="eager")
    wrong = []

    def work(seed):
        for step in range(30):
            value = seed + step / 7
            if not torch.equal(compiled(torch.ones(2), value), torch.ones(2) * value + 1):
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(float(n),)) for n in range(4)]
    [thread.start() for thread in threads], [thread.join() for thread in threads]
    assert wrong == []
    assert programs(compiled) == 2


def test_no_capture_keeps_what_stood_for_a_number():
    from funcaot._torch.tensors.sizes.open_numbers import OpenFloat, OpenInt

    compiled = funcaot.compile(lambda x, a, n: x[:n] * a, backend="eager")
    for step in range(4):
        compiled(torch.ones(9), 0.5 + step, 2 + step)
    gc.collect()
    assert not [thing for thing in gc.get_objects() if type(thing) in (OpenFloat, OpenInt)]


class TestMarkStatic:
    def test_an_argument(self):
        compiled = funcaot.compile(lambda x, a: x * a, backend="eager")
        funcaot.mark_static(compiled, "a")
        for value in (1.0, 2.0, 3.0):
            compiled(torch.ones(2), value)
        assert programs(compiled) == 3

    def test_sizes_of_an_argument(self):
        compiled = funcaot.compile(lambda x, y: x.sum() + y, backend="eager")
        funcaot.mark_static(compiled, "x")
        for size in (2, 3, 4, 5):
            compiled(torch.ones(size), torch.ones(size))
        assert programs(compiled) == 4

    def test_a_tensor(self):
        compiled = funcaot.compile(lambda x: x * 2, backend="eager")
        for size in (2, 3, 4):
            x = torch.ones(size, size)
            funcaot.mark_static(x, 0)
            compiled(x)
        shown = [str(entry.signature) for entry in funcaot.report(compiled).entries]
        assert len(shown) == 3
        assert shown[-1] == "float32[4, s0]"

    def test_a_module(self):
        compiled = funcaot.compile(torch.nn.Linear(3, 3), backend="eager")
        funcaot.mark_static(compiled, "input")
        for size in (2, 3, 4):
            compiled(torch.ones(size, 3))
        assert programs(compiled) == 3

    @pytest.mark.parametrize(
        "wrong", [(torch.ones(2), 1), (torch.ones(2), "x"), (print,), ("f", "b"), ("f", 0)]
    )
    def test_what_cannot_be_marked(self, wrong):
        compiled = funcaot.compile(lambda a: a, backend="eager")
        what = compiled if isinstance(wrong[0], str) else wrong[0]
        with pytest.raises(funcaot.errors.FuncaotError, match="mark_static"):
            funcaot.mark_static(what, *wrong[1:])
